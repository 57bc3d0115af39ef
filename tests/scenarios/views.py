"""The verbs that print: the table for a reader, the disk, the job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hoodie_nb.checks.fsck import fsck
from hoodie_nb.reading.read import to_arrow

if TYPE_CHECKING:
    from scenarios.verbs import World

STAGING = (
    ".hoodie/.hoodie_nb/staged",
    ".hoodie/.temp",
    ".hoodie/.hoodie_nb/prepared",
    ".hoodie/.hoodie_nb/sealed",
)


class Views:
    """The visible state of a `World`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def do_read(self) -> list[str]:
        """Print the snapshot, one line per partition: key=value@ts."""
        parts: dict[str, list[str]] = {}
        for row in to_arrow(self._world.handle()).to_pylist():
            parts.setdefault(row["part"], []).append(f"{row['id']}={row['v']}@{row['ts']}")
        return [f"{p}: {' '.join(sorted(rows))}" for p, rows in sorted(parts.items())] or [
            "no rows"
        ]

    def do_timeline(self) -> list[str]:
        """Print the instants and their states."""
        found = self._world.handle().timeline.instants()
        kinds = [("" if i.action == "commit" else f"{i.action}:") + i.state for i in found]
        return [f"{i.requested_time}:{k}" for i, k in zip(found, kinds, strict=True)] or ["empty"]

    def do_buffers(self) -> list[str]:
        """Print the rows that are in no durable checkpoint yet."""
        return [f"rows={self._world.job.waiting_rows}"]

    def do_files(self) -> list[str]:
        """Print the latest slices."""
        return [
            f"{s.partition_path}/{s.file_id} of {s.instant_time}"
            for s in self._world.handle().file_groups()
        ]

    def do_staged(self) -> list[str]:
        """Print staged files, markers and prepared records."""
        found = []
        for name in STAGING:
            folder = self._world.path / name
            for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
                name = re.split("[-.]", entry.name)[0]
                name = {36: "a run", 12: name.lstrip("0") or "0"}.get(len(name), name)
                found.append(f"{folder.name} {name}")
        return found or ["nothing"]

    def do_index(self) -> list[str]:
        """Print the cost of the last lookup."""
        values = self._world.job.events.records("index_looked_up")[-1].values
        shown = ("keys", "found", "candidates", "false_positives")
        return [" ".join(f"{name}={values[name]}" for name in shown)]

    def do_fsck(self) -> list[str]:
        """Print the findings of fsck."""
        return [f.what for f in fsck(self._world.path)] or ["clean"]
