"""The open table, to read: caches of its timeline, configuration, file groups, schema.

The view of the file groups is cached between calls; it lists a partition when it is asked for. It
is dropped whenever the completed commits on the timeline have changed, so a commit of another
writer is never missed.
"""

import functools
from collections.abc import Sequence

import pyarrow as pa

from hoodie_nb.clock import Clock, SystemClock
from hoodie_nb.config import WriteOptions
from hoodie_nb.definition import properties
from hoodie_nb.definition.evolved import refuse_renamed
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.forked import renew_in_child
from hoodie_nb.logs.log_name import LogFile
from hoodie_nb.storage.addresses import Address, storage_at
from hoodie_nb.storage.storage import Storage
from hoodie_nb.storage.walk import Choice
from hoodie_nb.timeline.commits import CommitMetadata
from hoodie_nb.timeline.timeline import Instant, Timeline
from hoodie_nb.types.avro_schema import parse_avro
from hoodie_nb.view.file_groups import FileGroups
from hoodie_nb.view.logs import logs_named
from hoodie_nb.view.partitions import Partitions

COMMITS_KEPT = 64
_DELTAS_KEPT = 4096  # whose logs are known


class ReadHandle:
    """One open table, as a reader sees it; created by `open_to_read`."""

    def __init__(self, storage: Storage, clock: Clock, config: TableConfig) -> None:
        self.storage = storage
        self.clock = clock
        self.config = config
        self.timeline = Timeline(storage, clock, config.layout)
        self.undone: dict[str, frozenset[str]] = {}  # by restores and rollbacks, as `undone_by`
        self._groups = FileGroups()
        self._commits_seen: tuple[Instant, ...] = ()
        self._partitions: Partitions | None = None  # the last listing, unless it is outdated
        self._commits: dict[str, CommitMetadata] = {}
        self._named: dict[str, Sequence[LogFile]] = {}  # of delta commits, by time
        renew_in_child(self)

    def after_fork(self) -> None:
        """Drop the listing, in which a thread of the parent may have been."""
        self._partitions = None

    @functools.cached_property
    def options(self) -> WriteOptions:
        """Return the table's write options (InvalidTable if damaged); readers do not need them."""
        return properties.load_options(self.storage)

    def reload(self) -> None:
        """Read the properties again: another engine may have changed the table (InvalidTable)."""
        self.config = properties.load(self.storage)
        self.timeline.use(self.config.layout)

    def file_groups(self) -> FileGroups:
        """Return the latest slices, which are listed again only if the timeline has changed."""
        self._listed()
        return self._groups

    def _listed(self) -> Partitions:
        """Return the partitions of the latest slices."""
        listing = self.timeline.listing
        found = self._partitions
        if found is None or listing.commit_times != self._groups.instants:
            found = self.view()
            self._partitions = found
            self._groups = found.on_demand()
        self._commits_seen = listing.commits
        return found

    def view(
        self, as_of: str | None = None, keep: Choice | None = None, *, logs: bool = True
    ) -> Partitions:
        """Return a new view of the table as of a time, of the folders that `keep` chooses.

        Not `logs`: of the base files only.
        """
        deltas = self.logs_named if logs and self.config.merge_on_read else None
        return Partitions(self.storage, self.timeline, as_of, keep, deltas=deltas)

    def logs_named(self, instant: Instant) -> Sequence[LogFile]:
        """Return the logs that a delta commit names; it is read once, however many there are."""
        time17 = instant.requested_time
        found = self._named.get(time17)
        if found is None:
            found = logs_named(self.commit_metadata(instant, keep=False), time17)
            if len(self._named) >= _DELTAS_KEPT:
                self._named.pop(min([*self._named], default=""), None)  # or another thread did
            self._named[time17] = found
        return found

    def forget_file_groups(self) -> None:
        """Drop the cached view of the file groups: files may have been deleted by hand."""
        self._partitions = None

    @property
    def cached_file_groups(self) -> FileGroups:
        """Return the cached view, without reading the timeline."""
        return self._groups

    def commit_metadata(self, instant: Instant, *, keep: bool = True) -> CommitMetadata:
        """Return what a completed commit wrote; the last `COMMITS_KEPT` are decoded once."""
        found = self._commits.get(instant.requested_time)
        if found is None:
            found = self.timeline.commit(instant)
            if keep:
                if len(self._commits) >= COMMITS_KEPT:
                    oldest = next(iter([*self._commits]), "")
                    self._commits.pop(oldest, None)  # or another thread did
                self._commits[instant.requested_time] = found
        return found

    @property
    def schema(self) -> pa.Schema:
        """Return the table's schema without meta columns: the newest commit's, else the first.

        Raises InvalidTable if a column had another name before.
        """
        for instant in reversed(self.timeline.completed_commits()):
            extra = self.commit_metadata(instant).extra
            avro = extra.get("schema")
            if avro:
                refuse_renamed(self.storage, extra)
                return parse_avro(avro, f"{self.storage.root}/{self.timeline.path(instant)}")
        return self.config.schema


def open_to_read(path: Address, clock: Clock | None = None) -> ReadHandle:
    """Open the table at `path`, or raise InvalidTable if there is none or of an unknown kind."""
    storage = storage_at(path)
    return ReadHandle(storage, clock or SystemClock(), properties.load(storage))
