"""Questions to the archive, in either format: which commits it has, what they wrote.

A commit older than the timeline was either archived, or undone by a rollback or restore of any
engine: a stream must not skip a batch that was undone, and a reader of changes not continue from
it. A table is refused if the first commit of its timeline has a savepoint, and the archive has
commits that are newer (Hudi: `hoodie.archive.beyond.savepoint`).

*On disk*: the log files of layout 1 (`archive_log`), and two columns of the Parquet files of layout
2 (`archive_lsm`) that the current manifest names: a file that it does not name is from an archiving
that crashed, and its commits may have been undone since. Both layouts are read, because the table
may have been upgraded: each file once, and only when it is needed.

**Caveats**: somebody may have cleared the archive. So a commit that it does not have counts as
undone only if it is newer than the oldest commit in it, or if an archived rollback names it.
*Source:* HoodieArchivedTimeline, LSMTimeline.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from hoodie_nb.errors import InvalidTable, readable
from hoodie_nb.storage.storage import Entry, Storage
from hoodie_nb.timeline.archive_log import log_number, records_in
from hoodie_nb.timeline.archive_lsm import is_manifest, read_manifest, span
from hoodie_nb.timeline.instant import COMMITS, State
from hoodie_nb.types.avro_file import decode

_ATTEMPTS = 10
_MERGED_LOGS = "restore it from a backup: it says which log files a compaction has merged"
_CONTENTS = (  # in layout 1
    *("hoodieCommitMetadata", "hoodieReplaceCommitMetadata"),
    "hoodieRollbackMetadata",
)
Rollback = tuple[str, frozenset[str]]  # its time, and the times of what it rolled back
T = TypeVar("T")


class _Part(NamedTuple):
    """The completed commits in a file of the archive, and time and action of other instants.

    `damage` says why it may have others.
    """

    path: str
    commits: frozenset[str] = frozenset()
    others: frozenset[tuple[str, str]] = frozenset()
    damage: str = ""


class Archive:
    """The archive of one table, in the folders that `folders` returns."""

    def __init__(self, storage: Storage, folders: Callable[[], Collection[str]]) -> None:
        self._storage = storage
        self._folders = folders
        self._known: dict[tuple[str, Entry | int], _Part] = {}
        self._possible: set[str] = set()
        self._ended: dict[str, dict[str, str]] = {}  # when instants completed, by file

    def refuse_beyond(self, times: Sequence[str]) -> None:
        """Raise InvalidTable if commits after the first one of `times` were archived.

        Those are the commits of a timeline whose first one has a savepoint. Some may be in the
        archive already: it has them before they leave the timeline.
        """
        archived, why = self.commits(times[0])
        newest = max(archived.difference(times), default="")
        if newest > times[0]:
            raise InvalidTable(
                f"commits of {self._storage.root} up to {newest} were archived, but {times[0]} is "
                "older and on the timeline, since it has a savepoint (an engine's "
                "hoodie.archive.beyond.savepoint=true): such a table is not read or written. "
                f"Delete the savepoints up to {newest} with Hudi, and let Hudi archive"
            )
        if why:
            raise InvalidTable(
                f"{why}, so it is not known whether commits were archived that are newer than "
                f"savepoint {times[0]}: restore that file from a backup"
            )

    def lacks(self, time17: str) -> bool:
        """Whether the archive shows that no commit of that time was archived.

        Raises InvalidTable if it may be in a file that cannot be read.
        """
        if time17 in self._possible or any(time17 in p.commits for p in self._known.values()):
            return False
        return self._steadily(lambda: self._denies(time17))

    def _denies(self, time17: str) -> bool:
        damage = ""
        reaches = False
        for part in self._parts():
            if time17 in part.commits:
                return False
            reaches |= any(known < time17 for known in part.commits)
            damage = part.damage or damage
        if damage:
            raise InvalidTable(
                f"{damage}, so it is not known whether commit {time17} was archived or undone: "
                "restore that file from a backup, or start the stream with a new checkpoint "
                "folder (repeated upserts converge)"
            )
        if not reaches and not any(time17 in gone for _, gone in self._rollbacks(time17)):
            self._possible.add(time17)
            return False
        return True

    def commits(self, after: str = "") -> tuple[frozenset[str], str]:
        """Return the archived commits, and what is damaged if there may be more.

        At least those after a time.
        """
        parts = self._steadily(lambda: [*self._parts(after)])
        why = next((part.damage for part in parts if part.damage), "")
        return frozenset[str]().union(*(part.commits for part in parts)), why

    def cleaned(self) -> bool:
        """Whether a clean was archived; also if it may be in a file that cannot be read."""
        return self._steadily(
            lambda: any(p.damage or "clean" in {a for _, a in p.others} for p in self._parts())
        )

    def knows(self, time17: str) -> bool:
        """Whether an instant of that time, other than a commit, was archived."""
        return self._steadily(
            lambda: any(time17 in {time for time, _ in p.others} for p in self._parts())
        )

    def _completions(self) -> dict[str, str]:
        columns = ["instantTime", "completionTime"]
        paths = [path for path in self.files() if path.endswith(".parquet")]
        for path in paths:
            if path not in self._ended:
                with readable(f"{self._storage.root}/{path}", _MERGED_LOGS, pa.ArrowException):
                    rows = pq.read_table(self._storage.fetch(path), columns=columns)
                times = zip(*(rows.column(c).to_pylist() for c in columns), strict=True)
                self._ended[path] = {time17: done for time17, done in times if done}
        return {time17: done for path in paths for time17, done in self._ended[path].items()}

    def completion_times(self) -> dict[str, str]:
        """Return when each archived instant of layout 2 completed; each file is read once."""
        return self._steadily(self._completions)

    def rollbacks(self, after: str) -> list[Rollback]:
        """Return the archived rollbacks after a time; InvalidTable if there may be others."""
        return self._steadily(lambda: [*self._rollbacks(after)])

    def _rollbacks(self, after: str) -> Iterator[Rollback]:
        for part in self._parts(after):
            damage = part.damage
            if any(time17 > after and action == "rollback" for time17, action in part.others):
                try:
                    yield from self._rolled_back(part.path)
                except (pa.ArrowException, ValueError, LookupError, TypeError) as error:
                    damage = f"{self._storage.root}/{part.path} cannot be read ({error!r:.200})"
            if damage:
                raise InvalidTable(
                    f"{damage}, so it is not known which commits up to {after} were undone: "
                    "restore that file from a backup, or continue from a completed commit of "
                    "`table.history()`, with a copy that was read as of it"
                )

    def _rolled_back(self, path: str) -> Iterator[Rollback]:
        for time17, action, content in self.entries(path, content=True):
            if action == "rollback":
                record = decode(content) if isinstance(content, bytes) else content
                yield time17, frozenset(map(str, record["commitsRollback"]))

    def files(self) -> Iterator[str]:
        """Yield the paths of the files that count; those of a damaged manifest are not known."""
        for _, found in self._listed():
            yield from (path for path, _ in found)

    def _listed(self) -> Iterator[tuple[str, list[tuple[str, Entry | int]]]]:
        """Yield the files of each folder, newest first, and why it may have others."""
        for folder in sorted(self._folders()):
            damage = ""
            found = list[tuple[int, str, Entry | int]]()
            entries = self._storage.list_folder(folder)
            for entry in entries:
                if number := log_number(entry.name):
                    found.append((number, f"{folder}/{entry.name}", entry))
            if any(is_manifest(entry.name) for entry in entries):
                try:
                    listed = read_manifest(self._storage, folder).files
                    found += [(0, f"{folder}/{name}", size) for name, size in listed.items()]
                except ValueError as error:
                    damage = f"{self._storage.root}/{folder} cannot be read ({error!s:.200})"
            newest = sorted(found, key=lambda each: each[:2], reverse=True)
            yield damage, [(path, file) for _, path, file in newest]

    def _parts(self, after: str = "") -> Iterator[_Part]:
        """Yield the archive's files, newest first; of layout 2 those with times after `after`."""
        for damage, found in self._listed():
            if damage:
                yield _Part("", damage=damage)
            for path, file in found:
                name = path.rpartition("/")[2]
                if log_number(name) or span(name)[1] > after:
                    if (path, file) not in self._known:
                        self._known[path, file] = self._read(path)
                    yield self._known[path, file]

    def _steadily(self, look: Callable[[], T]) -> T:
        """Return what `look` returns; again if an engine has merged files of the archive."""
        for _ in range(_ATTEMPTS):
            try:
                return look()
            except FileNotFoundError as error:
                missing = error
        raise InvalidTable(
            f"a file of the archive is missing: restore it from a backup ({missing})"
        ) from None

    def entries(self, path: str, *, content: bool = False) -> Iterator[tuple[str, str, Any]]:
        """Yield time and action of each instant in a file of the archive.

        With `content` also that of its completed file: bytes in layout 2, a record in layout 1.
        """
        if path.endswith(".parquet"):
            columns = ["instantTime", "action", *["metadata"] * content]
            for row in pq.read_table(self._storage.fetch(path), columns=columns).to_pylist():
                yield row["instantTime"], row["action"], row.get("metadata")
        else:
            for record in records_in(self._storage, path):
                if record["actionState"] in (None, State.COMPLETED.upper()):
                    found = next((record[name] for name in _CONTENTS if record.get(name)), None)
                    yield record["commitTime"], record["actionType"], found

    def _read(self, path: str) -> _Part:
        found = set[tuple[str, str]]()
        damage = ""
        try:
            for time17, action, _ in self.entries(path):
                found.add((time17, action))  # also those before a damaged one
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            damage = f"{self._storage.root}/{path} cannot be read ({error!s:.200})"
        commits = frozenset(time17 for time17, action in found if action in COMMITS)
        others = frozenset(each for each in found if each[1] not in COMMITS)
        return _Part(path, commits, others, damage)
