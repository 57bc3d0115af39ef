"""Mapping of types Arrow ↔ Avro, for the schema in commits and `hoodie.properties`.

| Arrow | Avro |
| --- | --- |
| string, binary, bool, int32, int64, float, double | the same (`boolean`, `int`, `long`) |
| date32 | int, date |
| timestamp[us, UTC] / timestamp[us] | long, timestamp-micros / local-timestamp-micros |
| decimal(p, s) | fixed, decimal |
| list, map with string keys, struct | array, map, record |

Every field is a union with null, default null.
"""

import json
import re
from typing import Any

import pyarrow as pa

from hoodie_nb.errors import InvalidTable, readable
from hoodie_nb.types.schema import LOGICAL, LOGICAL_OF, META_COLUMNS, META_FIELDS, PLAIN, WORDS


def record_name(table: str) -> str:
    """Return the Avro record name for a table: letters, digits and `_`, no leading digit."""
    name = re.sub(r"\W", "_", table, flags=re.ASCII)
    return f"{'_' if name[:1].isdigit() else ''}{name}_record"


def to_avro(schema: pa.Schema, table: str, *, meta: bool = False) -> dict[str, Any]:
    """Return the Avro record for `schema`; `meta` puts Hudi's five meta columns first."""
    name = record_name(table)
    namespace = f"hoodie.{name.removesuffix('_record')}"
    fields = [*(META_FIELDS if meta else []), *schema]
    return {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "fields": [_avro_field(f, f"{namespace}.{name}") for f in fields],
    }


def _avro_field(field: pa.Field, inside: str) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": ["null", _avro_type(field.type, field.name, inside)],
        "default": None,
    }


def _avro_type(kind: pa.DataType, name: str, inside: str) -> Any:  # noqa: ANN401 -- Avro is JSON
    if kind in WORDS:
        return WORDS[kind]
    if kind in LOGICAL_OF:
        return LOGICAL_OF[kind]
    if pa.types.is_decimal128(kind):
        return {
            "type": "fixed",
            "name": "fixed",
            "namespace": f"{inside}.{name}",
            "size": _decimal_bytes(kind.precision),
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _avro_type(kind.value_type, name, inside)]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _avro_type(kind.item_type, name, inside)]}
    if pa.types.is_struct(kind):
        fields = [_avro_field(f, f"{inside}.{name}") for f in kind]
        return {"type": "record", "name": name, "namespace": inside, "fields": fields}
    raise InvalidTable(
        f"column {name!r} of the table has type {kind}, which this library reads but does not "
        "write: write the table with the engine that created it"
    )


def _decimal_bytes(precision: int) -> int:
    size = 1
    while 10**precision > 2 ** (8 * size - 1):
        size += 1
    return size


def parse_avro(text: str, where: str) -> pa.Schema:
    """Return the Arrow schema of Avro JSON, or raise InvalidTable naming its location."""
    cure = "restore the file from a backup, or use the engine that created the table"
    with readable(f"{where}: the table's schema", cure):
        schema = from_avro(json.loads(text))
        if len({*schema.names}) < len(schema.names):
            raise ValueError(f"the columns {schema.names} are not distinct")
        return schema


def from_avro(avro: dict[str, Any]) -> pa.Schema:
    """Return the Arrow schema of an Avro record, without Hudi's meta columns."""
    own = [f for f in avro["fields"] if f["name"] not in META_COLUMNS]
    return pa.schema([(f["name"], _column_type(f)) for f in own])


def _column_type(field: dict[str, Any]) -> pa.DataType:
    try:
        return _arrow_type(field["type"])
    except ValueError as error:
        raise ValueError(f"column {field['name']!r}: {error}") from None


def _arrow_type(avro: Any) -> pa.DataType:  # noqa: ANN401 -- Avro is JSON
    if isinstance(avro, list):
        kinds = [branch for branch in avro if branch != "null"]
        if len(kinds) != 1:
            raise ValueError(f"a union of {len(kinds)} types, {avro!s:.80}, is not supported")
        avro = kinds[0]
    if isinstance(avro, str):
        avro = {"type": avro}
    kind = avro["type"]
    if isinstance(kind, (dict, list)):
        return _arrow_type(kind)
    logical = avro.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    if logical == "timestamp-millis":
        return pa.timestamp("ms", "UTC")
    if logical in LOGICAL:
        return LOGICAL[logical][1]
    if logical is not None and kind != "string":  # our next commit would drop it from the schema
        raise ValueError(f"logical type {logical!s:.40} is not supported")
    if kind == "array":
        return pa.list_(_arrow_type(avro["items"]))
    if kind == "map":
        return pa.map_(pa.string(), _arrow_type(avro["values"]))
    if kind == "record":
        return pa.struct([(f["name"], _arrow_type(f["type"])) for f in avro["fields"]])
    if kind in ("enum", "string"):
        return pa.string()
    if kind in PLAIN:
        return PLAIN[kind]
    raise ValueError(f"Avro type {avro!s:.80} is not supported")
