"""The rewriter port: what the checkpoint protocol lets a runner write, since it sees no rows."""

from collections.abc import Sequence
from typing import Protocol

from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.commit.prepared import Prepared
from hoodie_nb.commit.sealing import Sealed
from hoodie_nb.events import EventLog
from hoodie_nb.writer.intake import Intake


class Rewriter(Protocol):
    """What the protocol writes by itself: a runner does it, for this room sees no rows."""

    def write_sealed(
        self,
        coordinator: WriteCoordinator,
        intake: Intake,
        events: EventLog,
        records: Sequence[Sealed],
        /,
    ) -> Prepared:
        """Write the rows of sealed checkpoints as one instant."""

    def redo(
        self,
        coordinator: WriteCoordinator,
        intake: Intake,
        events: EventLog,
        records: Sequence[Prepared],
        /,
    ) -> Prepared:
        """Write a prepared instant again on the table as it is now."""
