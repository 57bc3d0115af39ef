"""What the archive says about one commit: whether it was archived, or was never completed.

A commit that is older than the timeline was archived, or it was undone before: by a rollback or a
restore of any engine. The difference matters to streams, which must not skip a batch that is gone.

*Layouts*: the log files of layout 1 (`archive_log`), and the Parquet files of layout 2, of which
only two columns are read; both, as a table may have been upgraded. Files are read newest first, and
once: until the time is found.

**Caveats**: others may have cleared an archive, so it denies only commits that are newer than its
oldest one: the very first commit of a table is not missed. *Source:* LSMTimeline.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from hoodie_nb.errors import InvalidTable
from hoodie_nb.table.archive_log import Record, log_number, read_blocks
from hoodie_nb.table.instant import COMMITS, LAYOUT_1, LAYOUT_2, State
from hoodie_nb.table.storage import Storage, read_bytes
from hoodie_nb.table.timeline import Timeline

_LSM = re.compile(r"(\d{14,17})_(\d{14,17})_\d+\.parquet")


@dataclass(frozen=True, slots=True)
class _Part:
    """The commits in a file of the archive; `damage` says why it may have others."""

    times: frozenset[str]
    damage: str = ""


class ArchivedCommits:
    """The completed commits in the archive of one table; answers are kept."""

    def __init__(self, storage: Storage, timeline: Timeline) -> None:
        self._storage, self._timeline = storage, timeline
        self._parts: dict[tuple[str, int], _Part] = {}
        self._possible: set[str] = set()

    def lacks(self, time17: str) -> bool:
        """Whether the archive shows that no commit of that time was archived.

        Raises InvalidTable if it may be in a file that cannot be read.
        """
        if time17 in self._possible or any(time17 in p.times for p in self._parts.values()):
            return False
        damaged, reaches = "", False
        for path, part in self._files():
            if time17 in part.times:
                return False
            reaches |= any(known < time17 for known in part.times)
            damaged = f"{path} cannot be read ({part.damage})" if part.damage else damaged
        if damaged:
            raise InvalidTable(
                f"{self._storage.root}/{damaged}, so it is not known whether commit {time17} was "
                "archived or undone: restore that file from a backup, or start the stream with a "
                "new checkpoint folder (repeated upserts converge)"
            )
        if not reaches:
            self._possible.add(time17)
        return reaches

    def _files(self) -> Iterator[tuple[str, _Part]]:
        """Yield the archive's files, newest first."""
        for folder in sorted({self._timeline.layout.archive, LAYOUT_1.archive, LAYOUT_2.archive}):
            found = [
                (log_number(entry.name) or 0, entry.name, entry.size_bytes)
                for entry in self._storage.list_folder(folder)
                if log_number(entry.name) is not None or _LSM.fullmatch(entry.name)
            ]
            for _, name, size in sorted(found, reverse=True):
                path = f"{folder}/{name}"
                if (path, size) not in self._parts:
                    self._parts[path, size] = self._read(path)
                yield path, self._parts[path, size]

    def _read(self, path: str) -> _Part:
        if _LSM.fullmatch(path.rpartition("/")[2]):
            return self._read_parquet(path)
        times: set[str] = set()
        try:
            for record in read_blocks(read_bytes(self._storage, path)):
                if _is_commit(record):
                    times.add(record["commitTime"])
        except ValueError as error:
            return _Part(frozenset(times), f"{error!s:.200}")
        return _Part(frozenset(times))

    def _read_parquet(self, path: str) -> _Part:
        try:
            found = pq.read_table(self._storage.fetch(path), columns=["instantTime", "action"])
            rows = zip(*(found[name].to_pylist() for name in found.column_names), strict=True)
            return _Part(frozenset(time17 for time17, action in rows if action in COMMITS))
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            return _Part(frozenset(), f"{error!s:.200}")


def _is_commit(record: Record) -> bool:
    done = record["actionState"] in (None, State.COMPLETED.upper())
    return done and record["actionType"] in COMMITS
