"""Which commits have left the timeline for the archive: where a timeline begins depends on it.

Hudi's `hoodie.archive.beyond.savepoint` archives commits after that of a savepoint. Only then the
first commit on the timeline, a saved one, is not the one from which on none was archived. The
archive is read only if the first commit has a savepoint, and each file of it once.

*On disk*: layout 1: see `archive_log`; layout 2: `<min>_<max>_<level>.parquet`, with the oldest and
the newest time in it. *Source:* HoodieTimeline.getFirstNonSavepointCommit, LSMTimeline.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hoodie_nb.table.archive_log import log_number, read_blocks
from hoodie_nb.table.instant import COMMITS, Instant, State
from hoodie_nb.table.storage import Entry, Storage, read_bytes

_HISTORY = re.compile(r"\d+_(\d+)_\d+\.parquet")
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Start:
    """The time of the commit from which on none was archived; empty if there is none.

    If the archive cannot be read (`why`), commits before `unsure` may have been archived.
    """

    time17: str = ""
    unsure: str = ""
    why: str = ""


class Archive:
    """The archive of one table, in its folders."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[tuple[str, Entry], tuple[frozenset[str], str]] = {}

    def start(
        self, folders: Collection[str], times: Sequence[str], unsaved: Instant | None
    ) -> Start:
        """Return the start of a timeline whose first commit has a savepoint.

        `times` are those of its commits, `unsaved` the first without a savepoint.
        """
        found, why = self._gone(folders, times)
        newest = max(found, default="")
        first = times[0]
        if newest > first:  # if it is the newest of all, the start is to come
            first = next((t for t in times if t > newest), f"{int(newest) + 1:017}")
        until = unsaved.requested_time if unsaved else "9" * 17
        return Start(first, until if why else "", why)

    def _gone(self, folders: Collection[str], times: Sequence[str]) -> tuple[set[str], str]:
        """Return the archived commits that are not on the timeline, and what is damaged."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._look(folders, times)
            except FileNotFoundError:  # an engine has merged files of the archive
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _look(self, folders: Collection[str], times: Sequence[str]) -> tuple[set[str], str]:
        found, why = set[str](), ""
        for folder in sorted(folders):
            for entry in self._storage.list_folder(folder):
                path, history = f"{folder}/{entry.name}", _HISTORY.fullmatch(entry.name)
                if not (log_number(entry.name) or (history and history[1] > times[0])):
                    continue
                if (path, entry) not in self._known:
                    self._known[path, entry] = self._read(path)
                archived, damage = self._known[path, entry]
                found |= archived
                why = why or damage
        return found.difference(times), why

    def _read(self, path: str) -> tuple[frozenset[str], str]:
        """Return the commits in a file of the archive, and what is wrong with it."""
        content, found = read_bytes(self._storage, path), set[str]()
        try:
            if path.endswith(".parquet"):
                table = pq.read_table(pa.BufferReader(content), columns=["instantTime", "action"])
                found = {*table.filter(pc.field("action").isin(COMMITS))["instantTime"].to_pylist()}
            else:
                for record in read_blocks(content):  # also those before a damaged one
                    done = record["actionState"] in (None, State.COMPLETED.upper())
                    if done and record["actionType"] in COMMITS:
                        found.add(record["commitTime"])
        except (ValueError, LookupError, OSError) as error:
            return frozenset(found), f"{self._storage.root}/{path} cannot be read ({error!s:.200})"
        return frozenset(found), ""
