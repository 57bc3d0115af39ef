"""The rules that a table was made with, kept apart from `hoodie.properties`.

The checksum in `hoodie.properties` is that of the table's name, no more. If the line that names the
ordering column is damaged or gone, every older row would win from then on and no reader could tell.
So key, partitioning, ordering and merging are kept a second time, when the table is made or first
written by us, and a writer compares.

*On disk*: `.hoodie/.hoodie_nb/rules.json`, a record with its checksum. Readers do without.

**Caveats**: an engine that changes one of these on purpose is refused too, until the file is gone.
"""

from typing import Any

from hoodie_nb.errors import InvalidTable
from hoodie_nb.table.checksums import decode_record, encode_record
from hoodie_nb.table.properties import TableConfig
from hoodie_nb.table.property_file import PATH as PROPERTIES
from hoodie_nb.table.storage import OURS, Storage, read_bytes

PATH = f"{OURS}/rules.json"
_CURE = f"delete it, then {PROPERTIES} counts as it is"


def rules_of(config: TableConfig) -> dict[str, Any]:
    """Return what decides which rows are one record, where they lie, and which of two counts."""
    return {
        "record_key": [*config.record_key],
        "partition_by": [*config.partition_by],
        "ordering": config.ordering,
        "merge_mode": config.merge_mode,
        "hive_style": config.hive_style,
        "url_encode": config.url_encode,
    }


def keep_rules(storage: Storage, config: TableConfig) -> None:
    """Keep the rules of a table."""
    storage.put(PATH, encode_record(rules_of(config)))


def refuse_other_rules(storage: Storage, config: TableConfig) -> None:
    """Raise InvalidTable if the properties say anything else than the kept rules, if there are."""
    if not storage.entry(PATH):
        return
    path = f"{storage.root}/{PATH}"
    kept, found = decode_record(read_bytes(storage, PATH), path, _CURE), rules_of(config)
    other = [f"{k}={found[k]!r} (it was {kept.get(k)!r})" for k in found if found[k] != kept.get(k)]
    if other:
        raise InvalidTable(
            f"{storage.root}/{PROPERTIES} says {', '.join(other)}: a line is damaged or gone, and "
            f"rows would be kept by other rules. Restore it from a backup; if it was changed on "
            f"purpose, delete {path}"
        )
