"""Before a write by hand, or a stream's start: recovers; commits what is prepared or sealed."""

from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.commit.rewriter import Rewriter
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.rewriting import Rewriting
from hoodie_nb.records.progress import Checkpoint

IN_PROCESS: Rewriter = Rewriting()  # for every job: this process writes the protocol's rows


def settled(table: TableHandle, events: EventLog, *, dry_run: bool = False) -> WriteCoordinator:
    """Return the coordinator of a settled table; for a plan only, the table is read again."""
    coordinator = WriteCoordinator(table, events)
    if dry_run:
        table.reload()
    else:
        settle(coordinator)
    return coordinator


def settle(
    coordinator: WriteCoordinator, *, sealing: str | None = None, last: Checkpoint | None = None
) -> None:
    """Settle a table before a write: recover it, and commit all prepared or sealed work.

    Seals of the query `sealing` are kept until the end of its interval, if there is nothing else.
    `last` is the last successful checkpoint: if it is not in the table, nothing is changed.
    """
    coordinator.forget_records()
    coordinator.catch_up()
    intake = Intake(coordinator.table.config, coordinator.table.schema)
    checkpointing = Checkpointing(coordinator, intake, Shape(), IN_PROCESS)
    if last is not None:
        checkpointing.check_held(last)
    coordinator.tidy_up()
    if last is not None:
        checkpointing.check_held(last)  # a rollback by hand may have been completed
    if coordinator.sealed.all() and not checkpointing.seals_of(sealing):
        checkpointing.complete()
    elif coordinator.prepared.all():
        checkpointing.commit_prepared()
