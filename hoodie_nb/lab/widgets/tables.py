"""`Timeline` and `FileGroups` of any table, without a job: the facts that `lab/draw` is given.

*Source*: only the active timeline and the listed files, so that any table that this library
can open can be shown, whichever engine wrote it.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import ipywidgets as W

from hoodie_nb.actions.clean_records import earliest_time
from hoodie_nb.display import counted
from hoodie_nb.evidence.handle import TableHandle, open_table
from hoodie_nb.lab.draw import file_groups as groups_drawn
from hoodie_nb.lab.draw import timeline as timeline_drawn
from hoodie_nb.lab.draw.file_groups import GroupFacts
from hoodie_nb.lab.draw.timeline import InstantFacts
from hoodie_nb.lab.look.svg import WIDTH
from hoodie_nb.lab.widgets.frame import Frame, Pictures
from hoodie_nb.storage.storage import is_remote
from hoodie_nb.timeline.timeline import COMMITS, Instant, State
from hoodie_nb.view.file_groups import Commits, table_folders


def handle_of(table: Any) -> TableHandle:  # noqa: ANN401 -- a Table, a handle or a path
    """Return a separate handle of a table, so that a view does not affect other users."""
    if isinstance(table, str | os.PathLike):
        return open_table(table)
    handle = getattr(table, "_handle", table)
    root: str = handle.storage.root
    return open_table(handle.storage if is_remote(root) else root)


def instant_facts(table: TableHandle, instant: Instant) -> InstantFacts:
    """Return the facts about an instant from the timeline."""
    known = (instant.requested_time, instant.action, str(instant.state), instant.completion_time)
    if instant.action not in COMMITS or instant.state is not State.COMPLETED:
        return InstantFacts(*known)
    metadata = table.commit_metadata(instant)
    rows = metadata.total("numWrites")
    size = metadata.total("totalWriteBytes")
    return InstantFacts(*known, metadata.operation.lower(), len(metadata.files), rows, size)


def group_facts(table: TableHandle, as_of: str | None) -> list[GroupFacts]:
    """Return the file groups as of an instant (17 digits; None: now)."""
    commits = Commits.of(table.timeline)
    slices: Counter[tuple[str, str]] = Counter()
    for folder in table_folders(table.storage, commits):
        names = (file.name for file in folder.counted())
        shown = (name for name in names if name.instant_time <= (as_of or "9"))
        slices.update((folder.path, name.file_id) for name in shown)
    found = table.view(as_of).listed()
    return [
        GroupFacts(
            piece.partition_path,
            piece.file_id,
            max([piece.instant_time, *(log.name.instant_time for log in piece.logs)]),
            piece.size_bytes,
            slices[piece.partition_path, piece.file_id] or 1,
            tuple(log.size_bytes for log in piece.logs),
        )
        for piece in found
    ]


class Timeline(Frame):
    """A table's instants as bars from requested to completed; `refresh()` reads it again."""

    def __init__(self, table: Any) -> None:  # noqa: ANN401 -- a Table, a handle or a path
        self._table = handle_of(table)
        found = len(self._table.timeline.instants())
        super().__init__(Pictures({"timeline": (WIDTH, timeline_drawn.height(found + 2))}))
        self.refresh()

    def refresh(self) -> None:
        """Read the timeline again."""
        found = self._table.timeline.instants()
        self.instants = [instant_facts(self._table, instant) for instant in found]
        self.pictures.show("timeline", timeline_drawn.timeline(self.instants))

    @property
    def summary(self) -> str:
        """Return one line: how many instants, how many of them pending."""
        pending = sum(i.completion_time is None for i in self.instants)
        return f"Timeline: {counted(len(self.instants), 'instant')}, {pending} pending"


class FileGroups(Frame):
    """A table's file groups; the slider goes from commit to commit, as `go(commit)` does."""

    def __init__(self, table: Any) -> None:  # noqa: ANN401 -- a Table, a handle or a path
        self._table = handle_of(table)
        done = (i.requested_time for i in self._table.timeline.completed_commits())
        first = earliest_time(self._table)  # files of earlier ones were cleaned away
        self._times = [time17 for time17 in done if time17 >= first]
        self._slider = W.SelectionSlider(
            options=self._times or ["no commit yet"],
            value=(self._times or ["no commit yet"])[-1],
            description="as of",
            layout={"width": "600px"},
        )
        self._slider.observe(lambda change: self._show(change["new"]), "value")
        commits = Commits.of(self._table.timeline)
        folders = table_folders(self._table.storage, commits)
        self._partitions = sum(folder.is_partition for folder in folders)
        pictures = Pictures({"groups": (WIDTH, groups_drawn.height(self._partitions))})
        super().__init__(pictures, above=[self._slider])
        self._show(self._slider.value)

    def go(self, commit: int) -> None:
        """Show the table as of a commit, by its position from 0; -1 is the newest."""
        self._slider.value = self._times[commit]

    def _show(self, time17: str) -> None:
        as_of = time17 if self._times else ""
        self.groups = group_facts(self._table, as_of) if as_of else []
        target = self._table.options.max_file_bytes
        drawn = groups_drawn.file_groups(self.groups, target, as_of, self._partitions)
        self.pictures.show("groups", drawn)

    @property
    def summary(self) -> str:
        """Return one line: groups and slices as of the slider's instant."""
        slices = sum(group.slices for group in self.groups)
        logs = sum(len(group.logs) for group in self.groups)
        found = f"{len(self.groups)} groups, {slices} slices" + (f", {logs} logs" if logs else "")
        return f"FileGroups as of {self._slider.value}: {found}"
