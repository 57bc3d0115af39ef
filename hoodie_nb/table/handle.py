"""An open table: its storage (chosen here), configuration, timeline and file groups.

The view of the file groups is cached between calls. It is listed again whenever the completed
commits on the timeline have changed, so a commit of another writer is never missed.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pyarrow as pa

from hoodie_nb.clock import Clock, SystemClock, instant_time
from hoodie_nb.config import WriteOptions
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.table import foreign, metadata_table, properties, property_file
from hoodie_nb.table.addresses import Address, storage_at
from hoodie_nb.table.avro_schema import parse_avro
from hoodie_nb.table.clean_plan import Mark
from hoodie_nb.table.commits import CommitMetadata, WriteStatus
from hoodie_nb.table.creation import clear, present, refuse_remains
from hoodie_nb.table.evolved import refuse_renamed
from hoodie_nb.table.file_groups import (
    BaseFileName,
    Commits,
    FileGroups,
    base_files,
    load_file_groups,
    table_folders,
)
from hoodie_nb.table.lost import lost_files, lost_message, note_written, refuse_archived_later
from hoodie_nb.table.properties import TableConfig
from hoodie_nb.table.property_lines import text_of
from hoodie_nb.table.publish import mark_partition
from hoodie_nb.table.rules import KeptRules
from hoodie_nb.table.split import refuse_split_timeline
from hoodie_nb.table.storage import META, Storage, joined
from hoodie_nb.table.timeline import Instant, Listing, Timeline

COMMITS_KEPT = 64


class TableHandle:
    """One open table; created by `open_table` and `create_table`."""

    def __init__(self, storage: Storage, clock: Clock, config: TableConfig) -> None:
        self.storage = storage
        self.clock = clock
        self.config = config
        self.timeline, self.rules = Timeline(storage, clock, config.layout), KeptRules(storage)
        self._groups = FileGroups()
        self._listed = self._fits = False
        self._start = ""
        self._complete: FileGroups | None = None
        self.accepts_loss = self.drops_metadata_table = False
        self._commits: dict[str, CommitMetadata] = {}
        self._swept: Listing | None = None
        self._whole: frozenset[str] | None = None
        self.clean_mark: Mark | None = None
        self.archive_at = 0
        self.rollbacks: dict[str, frozenset[str]] = {}  # what each has undone, as `undone_by`

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
        self.config = config
        self.timeline.use(self.config.layout)
        if to_write:
            _ = self.options

    def file_groups(self) -> FileGroups:
        """Return the latest slices, listed from disk only if the timeline has changed."""
        listing = self.timeline.listing
        start = self.timeline.start(listing)  # it also changes with a savepoint
        same = listing.commit_times == self._groups.instants and start == self._start
        if not self._listed or not same:
            self._groups = load_file_groups(self.storage, self.timeline)
            self._listed, self._start = True, start
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
            self._refuse_unfit()
            metadata_table.drop(self.storage)
            self.reload()

    def make_writable(self, emit: Callable[..., None]) -> None:
        """Raise InvalidTable if a write would damage the table; restore lost metadata files.

        Java reads no rows in a partition without its metadata file.
        """
        groups = self._refuse_unfit()
        self.rules.complete(self.config)
        for folder in groups.unmarked:
            oldest = min(piece.instant_time for piece in groups.partition(folder).values())
            if mark_partition(self.storage, folder, oldest):
                emit("partition_metadata_restored", partition=folder)

    def _refuse_unfit(self) -> FileGroups:
        groups = self.file_groups()
        why = None if self._fits else foreign.objection(self.storage, self.config, groups)
        if why:
            raise InvalidTable(
                f"{self.storage.root} {why}: write it with the engine that created it"
            )
        if not groups.instants:
            self._refuse_uncommitted()
        self._fits = bool(groups.slices)
        return groups

    def _refuse_uncommitted(self) -> None:
        """Raise InvalidTable if files would count as archived after a first commit."""
        pending = {i.requested_time for i in self.timeline.pending()}
        later = Commits(frozenset(), frozenset(pending), "9")
        for folder in table_folders(self.storage, later):
            for entry, _ in base_files(folder.entries, later) if folder.is_partition else ():
                path = joined(folder.path, entry.name)
                raise InvalidTable(
                    f"the timeline of {self.storage.root} has no commit, but {path} exists: "
                    f"readers would show its rows after the next commit. Restore {META} from "
                    "a backup, or delete the base files if their rows are not wanted"
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
        """Return the latest slices; InvalidTable if a file that a commit wrote is lost."""
        groups = self.file_groups()
        if groups is not self._complete and not self.accepts_loss:
            lost = self.lost_files()
            if lost:
                self._listed = False  # the file may be restored
                raise InvalidTable(lost_message(self.storage.root, lost, groups))
            refuse_archived_later(self)
            self._complete = groups
        return groups

    def lost_files(self) -> list[tuple[str, BaseFileName]]:
        """Return folder and name of base files that commits wrote and that are missing."""
        commits = self.timeline.completed_commits()
        return lost_files(self.storage.root, self.file_groups(), commits, self.commit_metadata)

    def remember(self, instant_time: str, statuses: Sequence[WriteStatus]) -> None:
        """Cache the view after a commit of this process."""
        complete = self._groups is self._complete
        note_written(self.storage.root, instant_time, [status.path for status in statuses])
        self._groups = self._groups.with_commit(instant_time, statuses)
        self._start = self._start or instant_time
        self._complete = self._groups if complete else None

    def keep_groups(self, before: tuple[str, ...]) -> None:
        """Keep the cached view after archiving, if it was that of the commits `before`."""
        if self._groups.instants == before:
            complete, listing = self._groups is self._complete, self.timeline.listing
            self._groups = replace(self._groups, instants=listing.commit_times)
            self._start = self.timeline.start(listing)
            self._complete = self._groups if complete else None

    def commit_metadata(self, instant: Instant, *, keep: bool = True) -> CommitMetadata:
        """Return what a completed commit wrote; the last `COMMITS_KEPT` are decoded once."""
        found = self._commits.get(instant.requested_time)
        if found is None:
            where = f"{self.storage.root}/{self.timeline.path(instant)}"
            found = CommitMetadata.parse(self.timeline.read(instant), where)
            if keep:
                if len(self._commits) >= COMMITS_KEPT:
                    del self._commits[next(iter(self._commits))]
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
    found = present(storage, config, if_exists)
    if found is None or if_exists == "replace":
        with holding(storage):
            found = present(storage, config, if_exists)
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
