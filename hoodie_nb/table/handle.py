"""An open table: its storage, configuration, timeline and file groups.

The view of the file groups is cached between calls; it lists a partition when it is asked for. It
is dropped whenever the completed commits on the timeline have changed, so a commit of another
writer is never missed.
"""

import functools
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pyarrow as pa

from hoodie_nb.clock import Clock, SystemClock, instant_time
from hoodie_nb.config import WriteOptions
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.events import Emit
from hoodie_nb.table import foreign, metadata_table, properties, property_file
from hoodie_nb.table.addresses import Address, storage_at
from hoodie_nb.table.avro_schema import parse_avro
from hoodie_nb.table.clean_plan import HOUR_COMMITS, Mark, Outdated
from hoodie_nb.table.commits import CommitMetadata, WriteStatus
from hoodie_nb.table.creation import clear, present, refuse_nested, refuse_remains
from hoodie_nb.table.evolved import refuse_renamed
from hoodie_nb.table.file_groups import Commits, FileGroups, base_files, table_folders
from hoodie_nb.table.lost import note_written
from hoodie_nb.table.partitions import Partitions
from hoodie_nb.table.properties import TableConfig
from hoodie_nb.table.property_lines import text_of
from hoodie_nb.table.rules import KeptRules
from hoodie_nb.table.split import refuse_split_timeline
from hoodie_nb.table.storage import META, Storage, joined
from hoodie_nb.table.timeline import Instant, Listing, Timeline
from hoodie_nb.table.touched import TouchedPartitions

COMMITS_KEPT = 64


class TableHandle:
    """One open table; created by `open_table` and `create_table`."""

    def __init__(self, storage: Storage, clock: Clock, config: TableConfig) -> None:
        self.storage = storage
        self.clock = clock
        self.config = config
        self.timeline, self.rules = Timeline(storage, clock, config.layout), KeptRules(storage)
        self._groups = self.checked_groups = FileGroups()  # checked: what the last write touched
        self._commits_seen: tuple[Instant, ...] = ()
        self._listed = self._fits = self._levels_fit = False
        self._start = ""
        self.emit: Emit = lambda *_, **__: None
        self.accepts_loss = self.drops_metadata_table = False
        self._commits: dict[str, CommitMetadata] = {}
        self._swept: Listing | None = None
        self._whole: frozenset[str] | None = None
        self.clean_mark: Mark | None = None
        self.outdated: deque[Outdated] = deque(maxlen=HOUR_COMMITS)  # by commits of this handle
        self.archive_at = 0
        self.undone: dict[str, frozenset[str]] = {}  # by restores and rollbacks, as `undone_by`

    @functools.cached_property
    def options(self) -> WriteOptions:
        """Return the table's write options (InvalidTable if damaged); readers do not need them."""
        return properties.load_options(self.storage)

    def reload(self, *, to_write: bool = False) -> None:
        """Read the properties again: another engine may have changed the table (InvalidTable).

        A writer also needs the options: damage to them is reported before anything else.
        """
        if to_write:
            property_file.restore(self.storage)
        config = properties.load(self.storage)
        self._fits &= config == self.config
        self._levels_fit &= config == self.config
        self.config = config
        self.timeline.use(self.config.layout)
        if to_write:
            _ = self.options

    def file_groups(self) -> FileGroups:
        """Return the latest slices, which are listed again only if the timeline has changed."""
        listing = self.timeline.listing
        start = self.timeline.start(listing)  # it also changes with a savepoint
        same = listing.commit_times == self._groups.instants and start == self._start
        if not self._listed or not same:
            partitions = Partitions(self.storage, self.timeline)
            self._groups, self._start = partitions.on_demand(), start
            self._touched, self._listed = TouchedPartitions(self, partitions), True
        self._commits_seen = listing.commits
        return self._groups

    def refuse_split_timeline(self) -> None:
        """Raise InvalidTable if an upgrade was interrupted; looks again only if names are gone."""
        listing, known = self.timeline.listing, self._whole
        moved = listing.commit_times != self._groups.instants  # also after a commit of ours
        if known is None or moved or not known <= listing.names:
            refuse_split_timeline(self.storage, listing.layout)
        self._whole = listing.names

    def drop_metadata_table(self) -> None:
        """Drop Hudi's metadata table if it is to be, and what a crash has left of it.

        Raises InvalidTable, and drops nothing, if the table cannot be written.
        """
        if self.drops_metadata_table:
            self.refuse_unfit(self.file_groups(), whole=True)
            metadata_table.drop(self.storage)
            self.reload()

    def make_writable(self, emit: Emit) -> None:
        """Raise InvalidTable if any write would damage the table; `emit` is for events of checks.

        The partitions are checked when the write touches them.
        """
        self.emit = emit
        self.refuse_unfit(self.file_groups(), whole=not self.config.levels)
        self.rules.complete(self.config)
        self._touched.restore()

    def refuse_unfit(self, groups: FileGroups, *, whole: bool) -> None:
        """Raise InvalidTable for another engine's layout: of some partitions, or the whole table.

        A table that fits is not looked at again.
        """
        if self._fits and (self._levels_fit or not whole):
            return
        why = foreign.objection(self.storage, self.config, groups)
        if whole:
            why = why or foreign.other_levels(self.config, groups.slices)
        if why:
            raise InvalidTable(
                f"{self.storage.root} {why}: write it with the engine that created it"
            )
        if not groups.instants:
            self._refuse_uncommitted()
        self._fits = next(groups.unordered(), None) is not None
        self._levels_fit = whole and self._fits

    def _refuse_uncommitted(self) -> None:
        """Raise InvalidTable if files would count as archived after a first commit."""
        now = Timeline(self.storage, self.clock, self.timeline.layout)
        later = Commits(frozenset(), frozenset(i.requested_time for i in now.pending()), "9")
        for folder in table_folders(self.storage, later):
            for entry, _ in base_files(folder.entries, later) if folder.is_partition else ():
                path = joined(folder.path, entry.name)
                raise InvalidTable(
                    f"the timeline of {self.storage.root} has no commit, but {path} exists: "
                    f"readers would show its rows after the next commit. Restore {META} from "
                    "a backup, or move the base files out of the table if their rows are not "
                    "wanted"
                )

    def mark_swept(self) -> None:
        """Record that there is no unfinished write on the current timeline."""
        self._swept = self.timeline.listing

    def is_swept(self) -> bool:
        """Whether this was recorded and nothing was written since; checked before each write."""
        swept, self._swept = self._swept, None
        return swept is not None and swept.names == self.timeline.listing.names

    def forget_file_groups(self) -> None:
        """Drop the cached view of the file groups: files may have been deleted by hand."""
        self._listed = False

    @property
    def cached_file_groups(self) -> FileGroups:
        """Return the cached view, without reading the timeline."""
        return self._groups

    def groups_to_write(self) -> FileGroups:
        """Return the latest slices; InvalidTable when a damaged partition is asked for."""
        groups = self.file_groups()
        self.checked_groups = self._touched.view(groups, self._commits_seen)
        return self.checked_groups

    def remember(self, instant_time: str, statuses: Sequence[WriteStatus]) -> None:
        """Cache the view after a commit of this process."""
        note_written(self.storage.root, instant_time, [status.path for status in statuses])
        self.outdated.append(Outdated.of(instant_time, statuses, self._groups))
        self._groups = self._groups.with_commit(instant_time, statuses)
        self._start = self._start or instant_time

    def keep_groups(self, before: tuple[str, ...]) -> None:
        """Keep the cached view after archiving, if it was that of the commits `before`."""
        if self._groups.instants == before:
            listing = self.timeline.listing
            self._groups = replace(self._groups, instants=listing.commit_times)
            self._start = self.timeline.start(listing)

    def commit_metadata(self, instant: Instant, *, keep: bool = True) -> CommitMetadata:
        """Return what a completed commit wrote; the last `COMMITS_KEPT` are decoded once."""
        found = self._commits.get(instant.requested_time)
        if found is None:
            where = f"{self.storage.root}/{self.timeline.path(instant)}"
            found = CommitMetadata.parse(self.timeline.read(instant), where)
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


def open_table(
    path: Address, clock: Clock | None = None, *, drops_metadata_table: bool = False
) -> TableHandle:
    """Open the table at `path`, or raise InvalidTable if there is none or of an unknown kind."""
    storage = storage_at(path)
    table = TableHandle(storage, clock or SystemClock(), properties.load(storage))
    table.drops_metadata_table = drops_metadata_table
    return table


def create_table(
    path: Address,
    config: TableConfig,
    *,
    options: Mapping[str, object] | None = None,
    if_exists: str = "error",
    clock: Clock | None = None,
    holding: Callable[[Storage], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> TableHandle:
    """Create an empty table; `if_exists` is "error", "open" (must agree) or "replace".

    The options of an existing table that are given are changed.

    `holding` takes the table's lock, against other processes that create or replace it.
    """
    if if_exists not in ("error", "open", "replace"):
        raise InvalidConfig(f"if_exists={if_exists!r}: choose 'error', 'open' or 'replace'")
    wanted = WriteOptions().updated(options or {})
    storage, clock = storage_at(path), clock or SystemClock()

    def schema_of(config: TableConfig) -> pa.Schema:
        return TableHandle(storage, clock, config).schema

    found = present(storage, config, if_exists, schema_of)
    if found is None:
        refuse_nested(storage)
    if found is None or if_exists == "replace":
        with holding(storage):
            found = present(storage, config, if_exists, schema_of)
            if found is None or if_exists == "replace":
                return _make(storage, clock, config, wanted, replaced=found)
    stored = properties.load_options(storage)
    if options and stored.updated(options) != stored:
        with holding(storage):
            _store(storage, properties.load_options(storage).updated(options))
    return TableHandle(storage, clock, found)


def _store(storage: Storage, options: WriteOptions) -> None:
    storage.put(properties.OPTIONS, json.dumps(options.as_options(), indent=2).encode())


def _make(
    storage: Storage,
    clock: Clock,
    config: TableConfig,
    options: WriteOptions,
    *,
    replaced: TableConfig | None,
) -> TableHandle:
    if replaced:
        clear(storage, replaced)
    else:
        refuse_remains(storage)
    storage.make_folder(config.layout.folder)
    _store(storage, options)
    KeptRules(storage).keep(config)
    text = text_of(config, instant_time(clock.now_ms()))
    try:
        storage.put(property_file.PATH, text.encode(), new=True)
    except FileExistsError:
        raise InvalidTable(
            f"another program has created a table at {storage.root} at the same time: open that "
            "one, or choose another folder"
        ) from None
    storage.sync_folder("")
    return TableHandle(storage, clock, config)
