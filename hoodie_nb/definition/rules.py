"""A checked copy of key, partitioning and ordering: refuses a table whose properties changed.

The checksum in `hoodie.properties` covers only the table's name. If the line that names the
ordering column is damaged or lost, older rows would win from then on, and no reader would notice.
So key, partitioning, ordering and merging are stored a second time, when this library creates the
table or first writes it, and writers compare both copies.

The id is random. It is in every record of a prepared or sealed checkpoint and of progress: a record
that was copied from another table is refused.

*On disk*: `.hoodie/.hoodie_nb/rules.json`, a record with its checksum. Readers do not need it.

**Caveats**: after an engine changes one of these on purpose, writers are refused until the file is
deleted; a merge-on-read table without it can only be read. A copy of a whole table has the same
id.
"""

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.definition.property_file import PATH as PROPERTIES
from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage.checksums import LOST, decode_record, encode_record
from hoodie_nb.storage.storage import OURS, Storage, read_bytes

PATH = f"{OURS}/rules.json"
ID = "table_id"
NOT_OF_LOGS = "(not in a merge-on-read table, which can only be read without it)"
_FIX = f"restore it from a backup, or delete it to accept {PROPERTIES} as it is {NOT_OF_LOGS}"


def rules_of(config: TableConfig) -> dict[str, Any]:
    """Return what identifies a record, where it is stored, and which of two versions wins."""
    return {
        "record_key": [*config.record_key],
        "partition_by": [*config.partition_by],
        "ordering": config.ordering,
        "merge_mode": config.merge_mode,
        "hive_style": config.hive_style,
        "url_encode": config.url_encode,
        "global_keys": config.global_keys,
        "times": None if config.times is None else asdict(config.times),
    }


class KeptRules:
    """The kept rules and the id of one table, read once until `refresh`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.refresh()

    def refresh(self) -> None:
        """Read the file again at the next access: the table may have been replaced."""
        self._cached: dict[str, Any] | None = None
        self._met = ""  # the id in the table's records, if it has none in its rules

    @property
    def _kept(self) -> dict[str, Any]:
        if self._cached is None:
            path = f"{self._storage.root}/{PATH}"
            found = self._storage.entry(PATH)
            whole = found is not None and not found.is_folder
            content = read_bytes(self._storage, PATH) if whole else b""
            self._cached = decode_record(content, path, _FIX) if found else {}
        return self._cached

    @property
    def known(self) -> bool:
        """Whether there are any: this library has created the table, or has written it."""
        return bool(self._kept)

    def keep(self, config: TableConfig) -> None:
        """Keep the rules of a table, and give it an id."""
        rules = {**rules_of(config), ID: self._met or uuid.uuid4().hex}
        self._storage.put(PATH, encode_record(rules))
        self._cached = rules

    def complete(self, config: TableConfig) -> None:
        """Keep rules and id unless they are kept: another engine made the table."""
        if not self._kept.get(ID):
            self.keep(config)

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Return the bytes of a record of this table; `decode` is the inverse."""
        return encode_record({**values, ID: self._kept.get(ID, "")})

    def decode(self, content: bytes, path: str, stake: str = LOST) -> dict[str, Any]:
        """Return the values of a record; InvalidTable if it is damaged or of another table."""
        values = decode_record(content, path, stake)
        theirs = values.pop(ID, "")
        ours = self._kept.get(ID, "") or self._met
        if theirs and ours and theirs != ours:
            raise InvalidTable(
                f"{self._storage.root}/{path} belongs to another table (its id is {theirs}, that "
                f"of this table is {ours}) and is not applied here: delete what was copied into "
                f"{OURS}, or restore that folder from a backup of this table"
            )
        self._met = theirs or self._met
        return values

    def refuse_other(self, config: TableConfig) -> None:
        """Raise InvalidTable if the properties differ from the stored rules, if there are any."""
        kept = self._kept
        found = rules_of(config) if kept else {}
        other = [
            f"{k}={found[k]!r} (it was {kept.get(k)!r})" for k in found if found[k] != kept.get(k)
        ]
        if other:
            root = self._storage.root
            raise InvalidTable(
                f"{root}/{PROPERTIES} says {', '.join(other)}: a line is damaged or lost, and rows "
                f"would be merged by other rules. Restore it from a backup; if it was changed on "
                f"purpose, delete {root}/{PATH} {NOT_OF_LOGS}"
            )
