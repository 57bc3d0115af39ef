"""Whether a table may be written at all: all checks in order, remembered once passed."""

from __future__ import annotations

from hoodie_nb.errors import InvalidTable
from hoodie_nb.events import Emit
from hoodie_nb.evidence import foreign
from hoodie_nb.storage.storage import META
from hoodie_nb.timeline.timeline import Timeline
from hoodie_nb.view.file_groups import Commits, FileGroups, table_folders
from hoodie_nb.view.read_handle import ReadHandle


class Fitness:
    """What the writes of one handle have found out about its table, and what they may ignore."""

    def __init__(self) -> None:
        self.emit: Emit = lambda *_, **__: None
        self.accepts_loss = False
        self._fits = False
        self._levels_fit = False

    def forget(self) -> None:
        """Look at the table again before the next write: its properties have changed."""
        self._fits = False
        self._levels_fit = False

    def refuse_unfit(self, table: ReadHandle, groups: FileGroups, *, whole: bool) -> None:
        """Raise InvalidTable for another engine's layout: of some partitions, or the whole table.

        A table that fits is not looked at again.
        """
        if self._fits and (self._levels_fit or not whole):
            return
        why = foreign.objection(table.storage, table.config, groups)
        if whole:
            why = why or foreign.other_levels(table.config, groups.slices)
        if why:
            raise InvalidTable(
                f"{table.storage.root} {why}: write it with the engine that created it"
            )
        if not groups.instants:
            _refuse_uncommitted(table)
        self._fits = next(groups.unordered(), None) is not None
        self._levels_fit = whole and self._fits


def _refuse_uncommitted(table: ReadHandle) -> None:
    """Raise InvalidTable if files would count as archived after a first commit."""
    now = Timeline(table.storage, table.clock, table.timeline.layout)
    later = Commits(frozenset(), frozenset(i.requested_time for i in now.pending()), "9")
    for folder in table_folders(table.storage, later):
        for file in folder.counted() if folder.is_partition else ():
            raise InvalidTable(
                f"the timeline of {table.storage.root} has no commit, but {file.path} exists: "
                f"readers would show its rows after the next commit. Restore {META} from "
                "a backup, or move the base files out of the table if their rows are not "
                "wanted"
            )
