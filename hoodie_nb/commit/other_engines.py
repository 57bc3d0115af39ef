"""Checks for traces of other engines that forbid a write now."""

from collections.abc import Collection

from hoodie_nb.errors import ConcurrentWriter, InvalidTable
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.storage import META
from hoodie_nb.table.timeline import COMMITS, Instant

_HEARTBEAT_MS = 120_000


def refuse_metadata_table(table: TableHandle) -> None:
    """Raise InvalidTable if the table has a metadata table, which would miss our rows."""
    if table.config.metadata_partitions:
        raise InvalidTable(
            f"{table.storage.root} has a Hudi metadata table "
            f"({table.config.metadata_partitions}), which would miss our rows: switch it off "
            "with Hudi (hoodie.metadata.enable=false on one write) first"
        )


def refuse_other_engines(table: TableHandle, ours: Collection[str] = ()) -> None:
    """Raise InvalidTable or ConcurrentWriter if another engine prevents a write now.

    Checked before a write starts and before it is published; `ours` are our own instants.
    """
    table.rules.refuse_other(table.config)
    refuse_metadata_table(table)
    newest = table.timeline.completed_commits()[-1:]
    if any("latest_schema" in table.commit_metadata(instant).extra for instant in newest):
        raise InvalidTable(
            f"{table.storage.root} has a schema that another engine has evolved with renamed or "
            "dropped columns (latest_schema): write it with that engine"
        )
    for pending in table.timeline.pending():
        if pending.action in (*COMMITS, "restore") and pending.requested_time not in ours:
            refuse_foreign(table, pending)


def refuse_foreign(table: TableHandle, pending: Instant) -> None:
    """Raise ConcurrentWriter if a pending commit belongs to another engine that may be alive."""
    path = f"{META}/.heartbeat"
    for entry in table.storage.list_folder(path):
        age = table.clock.now_ms() - entry.modified_ms
        if entry.name == pending.requested_time and age < _HEARTBEAT_MS:
            raise ConcurrentWriter(
                f"another engine writes instant {pending.requested_time} of "
                f"{table.storage.root} (heartbeat {age // 1000} s ago): wait until it ends"
            )
    if pending.action != "commit":
        raise ConcurrentWriter(
            f"{pending} of {table.storage.root} is another engine's plan: let that engine "
            "complete or cancel it"
        )
