"""A table with a model of its rows, now and after each commit, and what must hold of both."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

from core.faults import FaultyStorage
from core.tables import (
    Model,
    hudi_rows,
    pending_names,
    schema_of,
    timeline_names,
    without_meta,
)
from index_truth import index_gaps
from services.shape import Shape

from hoodie_nb import Table
from hoodie_nb.clock import SystemClock
from hoodie_nb.definition import properties
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.evidence.handle import TableHandle

SCHEMA = schema_of()


class JudgedTable:
    """A table that two processes have open, its model, and the model after each commit."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(f"services {seed}")
        self.shape = Shape.of(seed, self.draw)
        self.path = folder / f"t{seed}"
        Table.create(
            self.path,
            schema=SCHEMA,
            record_key="id",
            partition_by="p" if self.shape.partitioned else None,
            ordering=self.shape.ordering,
            hive_style=self.shape.hive_style,
            table_version=self.shape.version,
            table_type="merge_on_read" if self.shape.merge_on_read else "copy_on_write",
            options=self.shape.options,
        )
        self.tables = [self.opened(), self.opened()]
        self.model, self.states = Model(ordering=self.shape.ordering), dict[str, Model]()
        self.saved = set[str]()
        self.dirty = False  # a crash has left work to recover
        self.between: list[list[str]] = []  # a pending restore: what readers may see

    def opened(self) -> Table:
        """Return the table as a new process has it open."""
        storage = FaultyStorage(self.path)
        return Table(TableHandle(storage, SystemClock(), properties.load(storage)))

    # --- the timeline, by the names of its files -------------------------------------------------

    def commits(self) -> set[str]:
        """Return the times of the completed commits, by the names on the timeline."""
        return {n[:17] for n in timeline_names(self.path) if n.endswith("commit")}

    def savepoints(self) -> set[str]:
        """Return the times of the completed savepoints, by the names on the timeline."""
        return {n[:17] for n in timeline_names(self.path) if n.endswith(".savepoint")}

    def restores(self) -> set[str]:
        """Return the times of the restores on the timeline, in any state."""
        return {n[:17] for n in timeline_names(self.path) if ".restore" in n}

    def gone(self, time17: str) -> tuple[str, ...]:
        """Return the reasons why a commit may be refused that is too old."""
        archived = time17 < min(self.commits())
        unknown = "it is not known whether all files"  # a clean was archived
        return ("cleaned away", unknown, *["not a completed commit"] * archived)

    # --- what must hold ---------------------------------------------------------------------------

    def look(self) -> None:
        """Compare both readers with the model; if nothing is to be recovered, the rest, too."""
        seen = [without_meta(table.to_arrow()) for table in self.tables]
        seen.append(hudi_rows(self.path))
        allowed = self.between or [self.model.snapshot()]
        assert seen[0] == seen[1] == seen[2], f"readers differ: {seen}"
        assert seen[0] in allowed, f"{seen[0]} instead of {allowed}"
        if not self.between:
            self.look_back()
        if not self.dirty:
            self.look_at_rest()

    def look_back(self) -> None:
        """Compare a few earlier commits with the model, if they can still be read."""
        table = self.draw.choice(self.tables)
        for time17 in self.draw.sample(sorted(self.states), min(3, len(self.states))):
            try:
                rows = without_meta(table.to_arrow(as_of=time17))
            except InvalidConfig as error:
                assert any(text in str(error) for text in self.gone(time17)), error
                assert time17 not in self.saved
                continue
            wanted = self.states[time17].snapshot()
            assert rows == wanted == hudi_rows(self.path, time17), f"as of {time17}"

    def look_at_rest(self) -> None:
        """Nothing is pending, no file is lost, stray or wrong, and the index finds all keys."""
        pending = pending_names(self.path)
        assert pending == [], f"pending: {pending}"
        assert [str(finding) for finding in self.tables[0].fsck()] == []
        assert self.gaps() == []

    def gaps(self) -> list[str]:
        """Return the keys that the index misses."""
        return index_gaps(self.tables[1]._handle)


def storage_of(table: Table) -> FaultyStorage:
    """Return the storage of a table's process."""
    return cast(FaultyStorage, table._handle.storage)
