"""Avro container files of one record, for plans and commit metadata.

*On disk*: Avro's object container file. The schemas are in `avro/`, one file per record type.
"""

import contextlib
import functools
import io
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import fastavro

MAGIC = b"Obj\x01"


@functools.cache
def schema_text(name: str) -> str:
    """Return one of Hudi's schemas as JSON."""
    text = resources.files(__package__).joinpath(f"avro/{name}.avsc").read_text()
    return json.dumps(json.loads(text), separators=(",", ":"))


def load_schema(name: str) -> Any:  # noqa: ANN401 -- fastavro's schema
    """Return one of Hudi's schemas, parsed."""
    return fastavro.parse_schema(json.loads(schema_text(name)))


def encode(
    schema: Any,  # noqa: ANN401 -- fastavro's schema
    record: dict[str, Any],
    notes: dict[str, str] | None = None,
) -> bytes:
    """Return the file of a record, with notes in its header; `decode` is the inverse."""
    out = io.BytesIO()
    fastavro.writer(out, schema, [record], metadata=notes)
    return out.getvalue()


def notes_of(content: bytes) -> Mapping[str, str]:
    """Return the notes in the header of a file; none if it cannot be read."""
    with contextlib.suppress(Exception):  # broken Avro raises many kinds of errors
        return dict(fastavro.reader(io.BytesIO(content)).metadata)
    return {}


def decode(content: bytes) -> Any:  # noqa: ANN401 -- a record of any schema
    """Return the record in a file, read by the schema in it; ValueError if it is damaged."""
    try:
        (record,) = fastavro.reader(io.BytesIO(content))
    except Exception as error:  # broken Avro raises many kinds of errors
        raise ValueError(f"its Avro is damaged: {error!r:.200}") from None
    return record
