"""The interface by which the checkpoint protocol has a runner write rows again."""

from collections.abc import Sequence
from typing import Protocol

from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.intake.intake import Intake
from hoodie_nb.records.prepared import Prepared
from hoodie_nb.records.sealing import Sealed


class Rewriter(Protocol):
    """Writes rows for the protocol: a runner implements it, since this package handles no rows."""

    def write_sealed(
        self, coordinator: WriteCoordinator, intake: Intake, records: Sequence[Sealed], /
    ) -> Prepared:
        """Write the rows of sealed checkpoints as one instant."""

    def redo(
        self, coordinator: WriteCoordinator, intake: Intake, records: Sequence[Prepared], /
    ) -> Prepared:
        """Write a prepared instant again on top of the current table."""
