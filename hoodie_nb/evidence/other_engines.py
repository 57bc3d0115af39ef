"""Refuses a write: other engines' pending plans, live heartbeats, log files, a metadata table.

No write is possible while there is a pending commit of an engine that may be alive, another
engine's plan, an upgrade that was interrupted, a metadata table (dropped later, if the table can be
written), or a schema that was evolved by ALTER TABLE (see `evolved`).
"""

import contextlib
from collections.abc import Collection

import pyarrow as pa

from hoodie_nb.definition.evolved import LATEST
from hoodie_nb.definition.rules import PATH as RULES
from hoodie_nb.errors import ConcurrentWriter, InvalidTable
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.storage.storage import META
from hoodie_nb.timeline.instant import ENDS_AS
from hoodie_nb.timeline.timeline import COMMITS, Instant, Timeline

_HEARTBEAT_MS = 120_000


def refuse_foreign_logs(table: TableHandle) -> None:
    """Raise InvalidTable for a merge-on-read table that this library does not write at all."""
    if table.config.merge_on_read and table.config.refusal:
        raise InvalidTable(f"{table.storage.root}: {table.config.refusal}")
    if table.config.merge_on_read and not table.rules.known:
        raise InvalidTable(
            f"{table.storage.root} is a merge-on-read table of another engine, which can only be "
            "read here (to_arrow, to_pandas, to_spark): write it with that engine; if this library "
            f"has created it, restore {RULES} from a backup"
        )


def refuse_unwritable(table: TableHandle) -> None:
    """Raise InvalidTable if no instant of the table may be changed by this library."""
    refuse_foreign_logs(table)
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
        plans = ("restore", *(ENDS_AS if table.config.merge_on_read else ()))
        if pending.action in (*COMMITS, *plans) and pending.requested_time not in ours:
            _refuse_foreign(table, pending)


def refuse_older_types(table: TableHandle, schema: pa.Schema) -> None:
    """Raise InvalidTable if columns become wider while logs have them as they are.

    hudi-rs converts base files, but of logs neither inner types nor those that lack a column, too.
    """
    if not table.config.merge_on_read or schema.equals(table.schema):
        return
    kinds = {column.name: column.type for column in table.schema}
    wider = [c.name for c in schema if c.type != kinds.get(c.name, c.type)]
    if wider and any(piece.logs for piece in table.file_groups()):
        raise InvalidTable(
            f"columns {wider} would become wider, but {table.storage.root} has log files with "
            "their types of now, which not every reader converts: call table.compact() first"
        )


def is_overwrite(timeline: Timeline, pending: Instant) -> bool:
    """Whether a pending replacecommit has no plan: it is an overwrite, which can be rolled back.

    Clusterings have one, and so have overwrites of newer versions of Hudi.
    """
    with contextlib.suppress(OSError):
        plan = timeline.read(pending.requested)
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
    rolls_back = pending.action in ("commit", "deltacommit")
    if not rolls_back and not is_overwrite(table.timeline, pending):
        raise ConcurrentWriter(
            f"{pending} of {table.storage.root} is another engine's plan: let that engine "
            "complete or cancel it"
        )
