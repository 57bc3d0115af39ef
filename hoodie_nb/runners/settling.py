"""Settling: a table is brought to rest before a write, in this process."""

from hoodie_nb.commit.checkpointing import Checkpointing
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.commit.prepared import drop_torn
from hoodie_nb.commit.progress import Checkpoint
from hoodie_nb.commit.rewriter import Rewriter
from hoodie_nb.events import EventLog
from hoodie_nb.runners import rewriting
from hoodie_nb.writer.intake import Intake
from hoodie_nb.writer.pipelines import Shape

IN_PROCESS: Rewriter = rewriting  # of every job: what the protocol itself writes, this process does


def settle(
    coordinator: WriteCoordinator,
    events: EventLog,
    *,
    sealing: str | None = None,
    last: Checkpoint | None = None,
) -> None:
    """Bring a table to rest before a write: recover it, commit all that is prepared or sealed.

    What the query `sealing` has sealed stays for the end of its interval, if there is nothing else.
    `last` is the last checkpoint that has succeeded: if the table lacks it, nothing is touched.
    """
    coordinator.look_again()
    drop_torn(coordinator.table, coordinator.prepared.instant_times())
    coordinator.catch_up()
    intake = Intake(coordinator.table.config, coordinator.table.schema)
    checkpointing = Checkpointing(coordinator, intake, Shape(), events, IN_PROCESS)
    if last is not None:
        checkpointing.check_held(last)
    coordinator.tidy_up()
    if coordinator.sealed.all() and not checkpointing.seals_of(sealing):
        checkpointing.complete()
    elif coordinator.prepared.all():
        checkpointing.commit_prepared()
