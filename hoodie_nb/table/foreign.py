"""Tables of other engines: what only their files or timeline show, and what forbids a write.

*Layouts.* The properties do not contain everything: the index that placed the rows, and the way in
which a value became a key or a folder, may be options of each write. So the table itself is checked
before the first write: its file ids, the depth of its partitions, and one of its rows, whose key
and partition path must equal the text that this library would generate. A table that differs can be
read but not written: an upsert would store its keys again, elsewhere. A few files are looked at;
the depth of all partitions, before a write creates one: its rows may be in a path of another depth.

*States.* No write is possible while there is a pending commit of an engine that may be alive,
another engine's plan, an upgrade that was interrupted, a metadata table (dropped later, if the
table can be written), or a schema that was evolved by ALTER TABLE (see `evolved`).

**Caveats**: only one row is checked, of a readable file. *Source:* BucketIdentifier,
ConsistentBucketIndexUtils, KeyGenUtils.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hoodie_nb.errors import ConcurrentWriter, HoodieError, InvalidTable
from hoodie_nb.table.base_file import first_row
from hoodie_nb.table.evolved import LATEST
from hoodie_nb.table.file_groups import FileGroups, FileSlice
from hoodie_nb.table.keys import partition_paths, record_keys
from hoodie_nb.table.properties import TableConfig
from hoodie_nb.table.schema import PARTITION_PATH, RECORD_KEY
from hoodie_nb.table.storage import META, Storage
from hoodie_nb.table.timeline import COMMITS, Instant, State, Timeline

if TYPE_CHECKING:
    from hoodie_nb.table.handle import TableHandle

_BUCKET_NODES = f"{META}/.bucket_index"
# a bucket number replaces the first part of a random UUID; ours are not random (version 5)
_BUCKET = re.compile(r"000\d{5}-[0-9a-f]{4}-4[0-9a-f]{3}-.*")
_SAMPLED = 4
_HEARTBEAT_MS = 120_000


def objection(storage: Storage, config: TableConfig, groups: FileGroups) -> str | None:
    """Return why an upsert would duplicate or misplace rows of the table; None if it would not.

    Looks at a few files, of the first partitions.
    """
    some = [*itertools.islice(groups.unordered(), _SAMPLED)]
    levels = other_levels(config, [piece.partition_path for piece in some])
    return _other_index(storage, groups) or levels or _other_text(storage, config, some)


def _other_index(storage: Storage, groups: FileGroups) -> str | None:
    first = next(groups.unordered(), None)
    ids = (piece.file_id for piece in groups.unordered())
    numbered = first is not None and all(map(_BUCKET.fullmatch, ids))  # lists all only if they are
    if numbered or storage.entry(_BUCKET_NODES):
        return (
            f"uses Hudi's bucket index ({first.file_id if first and numbered else _BUCKET_NODES})"
        )
    return None


def other_levels(config: TableConfig, paths: Iterable[str]) -> str | None:
    """Return why one of the partition paths is none of this table's; None if all may be."""
    for path in paths:
        if len(path.split("/")) * bool(path) != config.levels:
            columns = ", ".join(config.partition_by) or "none"
            return (
                f"has partition {path!r}, whose levels do not match the partition columns {columns}"
            )
    return None


def _other_text(storage: Storage, config: TableConfig, pieces: Iterable[FileSlice]) -> str | None:
    needed = [*config.record_key, *config.partition_by, PARTITION_PATH, RECORD_KEY]
    for piece in pieces:
        with contextlib.suppress(HoodieError):  # unreadable, or an invalid value
            row = first_row(storage.fetch(piece.path), needed)
            if row is None:
                continue
            ours = partition_paths(row, config)[0].as_py(), record_keys(row, config)[0].as_py()
            theirs = row.column(PARTITION_PATH)[0].as_py(), row.column(RECORD_KEY)[0].as_py()
            if None not in theirs and ours != theirs:  # a row without a key proves nothing
                return f"has a row with partition path and key {theirs}, which would be {ours} here"
            break
    return None


# --- writes ---------------------------------------------------------------------------------------


def refuse_unwritable(table: TableHandle) -> None:
    """Raise InvalidTable if no instant of the table may be changed by this library."""
    table.refuse_split_timeline()
    table.rules.refuse_other(table.config)
    if table.config.unwritable:
        raise InvalidTable(table.config.unwritable)
    if table.config.metadata_partitions and not table.drops_metadata_table:
        raise InvalidTable(
            f"{table.storage.root} has a Hudi metadata table "
            f"({table.config.metadata_partitions}), which would miss our rows: use "
            "Table.open(path, drop_metadata_table=True), which drops it at the next write, or "
            "drop it with Hudi (hoodie.metadata.enable=false on one write)"
        )


def refuse_other_engines(table: TableHandle, ours: Collection[str] = ()) -> None:
    """Raise InvalidTable or ConcurrentWriter if another engine prevents a write now.

    Checked before a write starts and before it is published; `ours` are our own instants.
    """
    refuse_unwritable(table)
    newest = table.timeline.completed_commits()[-1:]
    if any(LATEST in table.commit_metadata(instant).extra for instant in newest):
        raise InvalidTable(
            f"{table.storage.root} has a schema that another engine has evolved by ALTER TABLE "
            f"(hoodie.schema.on.read.enable; {LATEST} in its newest commit), and our commits would "
            "lose the ids of its columns: write it with that engine"
        )
    for pending in table.timeline.pending():
        if pending.action in (*COMMITS, "restore") and pending.requested_time not in ours:
            _refuse_foreign(table, pending)


def is_overwrite(timeline: Timeline, pending: Instant) -> bool:
    """Whether a pending replacecommit has no plan: it is an overwrite, which can be rolled back.

    Clusterings have one, and so have overwrites of newer versions of Hudi.
    """
    with contextlib.suppress(OSError):
        plan = timeline.read(replace(pending, state=State.REQUESTED))
        return pending.action == "replacecommit" and not plan
    return False


def _refuse_foreign(table: TableHandle, pending: Instant) -> None:
    """Raise ConcurrentWriter if a pending commit belongs to another engine that may be alive."""
    path = f"{META}/.heartbeat"
    for entry in table.storage.list_folder(path):
        age = table.clock.now_ms() - entry.modified_ms
        if entry.name == pending.requested_time and age < _HEARTBEAT_MS:
            raise ConcurrentWriter(
                f"another engine is writing instant {pending.requested_time} of "
                f"{table.storage.root} (heartbeat {age // 1000} s ago): wait until it ends"
            )
    if pending.action != "commit" and not is_overwrite(table.timeline, pending):
        raise ConcurrentWriter(
            f"{pending} of {table.storage.root} is another engine's plan: let that engine "
            "complete or cancel it"
        )
