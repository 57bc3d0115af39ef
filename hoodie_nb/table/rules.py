"""The rules with which a table was created: a second copy, separate from `hoodie.properties`.

The checksum in `hoodie.properties` covers only the table's name. If the line that names the
ordering column is damaged or lost, older rows would win from then on, and no reader would notice.
So key, partitioning, ordering and merging are stored a second time when the table is created or
first written by us, and writers compare both.

*On disk*: `.hoodie/.hoodie_nb/rules.json`, a record with its checksum. Readers do not need it.

**Caveats**: after an engine changes one of these on purpose, writers are refused until the file is
deleted.
"""

from typing import Any

from hoodie_nb.errors import InvalidTable
from hoodie_nb.table.checksums import decode_record, encode_record
from hoodie_nb.table.properties import TableConfig
from hoodie_nb.table.property_file import PATH as PROPERTIES
from hoodie_nb.table.storage import OURS, Storage, read_bytes

PATH = f"{OURS}/rules.json"
_FIX = f"delete it to accept {PROPERTIES} as it is"


def rules_of(config: TableConfig) -> dict[str, Any]:
    """Return what identifies a record, where it is stored, and which of two versions wins."""
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
    """Raise InvalidTable if the properties differ from the stored rules, if there are any."""
    if not storage.entry(PATH):
        return
    path = f"{storage.root}/{PATH}"
    kept, found = decode_record(read_bytes(storage, PATH), path, _FIX), rules_of(config)
    other = [f"{k}={found[k]!r} (it was {kept.get(k)!r})" for k in found if found[k] != kept.get(k)]
    if other:
        raise InvalidTable(
            f"{storage.root}/{PROPERTIES} says {', '.join(other)}: a line is damaged or lost, and "
            f"rows would be merged by other rules. Restore it from a backup; if it was changed on "
            f"purpose, delete {path}"
        )
