"""Columns that another engine renamed (`ALTER TABLE`): such a table is refused.

With `hoodie.schema.on.read.enable` Hudi gives each column an id and keeps every version of the
schema. A renamed column has its old name in older files, and a column that was dropped and added
again has values there that are no longer its own. This library finds columns by name, so it would
show nulls or old values: such a table is refused, for reading too. Added, dropped, moved and
widened columns are read by name.

*On disk*: `latest_schema` in the newest commit, all versions in `.hoodie/.schema`.
*Source:* InternalSchema, FileBasedInternalSchemaStorageManager.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hoodie_nb.errors import InvalidTable, readable
from hoodie_nb.storage.storage import META, Storage, read_bytes

LATEST = "latest_schema"
_FOLDER = f"{META}/.schema"
_END = ".schemacommit"


def refuse_renamed(storage: Storage, extra: Mapping[str, str]) -> None:
    """Raise InvalidTable if the newest commit's schema has a column that once had another name.

    `extra`: the commit's metadata. Also raised if the versions of the schema cannot be read.
    """
    if not extra.get(LATEST):
        return
    names = [e.name for e in storage.list_folder(_FOLDER) if e.name.endswith(_END)]
    path = f"{_FOLDER}/{max((n for n in names if n[:1] != '.'), default=_END)}"
    cure = "restore it from a backup, or read the table with the engine that evolved its schema"
    with readable(f"{storage.root}/{path} has the earlier column names and", cure, OSError):
        latest = dict(_columns(json.loads(extra[LATEST])))
        versions = json.loads(read_bytes(storage, path))["schemas"]
        changed = [
            text for version in versions for text in _changed(latest, dict(_columns(version)))
        ]
    if changed:
        raise InvalidTable(
            f"{storage.root} has columns that another engine has renamed, or dropped and added "
            f"again ({', '.join(dict.fromkeys(changed))}), and older files have their old names: "
            "read and write it with that engine, or copy it with that engine to a new table"
        )


def _columns(schema: Any, inside: str = "") -> Iterator[tuple[int, str]]:  # noqa: ANN401 -- JSON
    """Yield the id and path of each field of a record, at any depth."""
    for field in schema["fields"]:
        path = inside + field["name"]
        yield field["id"], path
        yield from _inner(field["type"], path)


def _inner(kind: Any, path: str) -> Iterator[tuple[int, str]]:  # noqa: ANN401 -- JSON
    if not isinstance(kind, dict):
        return
    if kind["type"] == "record":
        yield from _columns(kind, f"{path}.")
    for part in ("element", "value"):
        yield from _inner(kind.get(part), path)


def _changed(latest: Mapping[int, str], older: Mapping[int, str]) -> Iterator[str]:
    ids = {path: number for number, path in older.items()}
    for number, path in latest.items():
        if older.get(number, path) != path:
            yield f"{older[number]!r} is {path!r} now"
        elif ids.get(path, number) != number:
            yield f"{path!r} is a different column now"
