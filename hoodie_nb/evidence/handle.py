"""`open_table`, `create_table`; TableHandle, the open table that all writes of a process share.

Before a write, the table is checked: as a whole by `fitness`, and each partition by `touched`.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pyarrow as pa

from hoodie_nb.clock import Clock, SystemClock, instant_time
from hoodie_nb.config import WriteOptions
from hoodie_nb.definition import metadata_table, properties, property_file
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.definition.property_lines import text_of
from hoodie_nb.definition.rules import KeptRules
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.events import Emit
from hoodie_nb.evidence.creation import clear, present, refuse_nested, refuse_remains
from hoodie_nb.evidence.fitness import Fitness
from hoodie_nb.evidence.lost import note_written
from hoodie_nb.evidence.outdated import HOUR_COMMITS, Mark, Outdated
from hoodie_nb.evidence.touched import TouchedPartitions
from hoodie_nb.storage.addresses import Address, storage_at
from hoodie_nb.storage.checksums import encode_record
from hoodie_nb.storage.storage import META, Storage, permitted
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.timeline.split import refuse_split_timeline
from hoodie_nb.timeline.timeline import Listing
from hoodie_nb.view.file_groups import FileGroups
from hoodie_nb.view.read_handle import ReadHandle

_LOOK_AGAIN_MS = 600_000


class TableHandle(ReadHandle):
    """One open table, as a writer sees it; created by `open_table` and `create_table`."""

    def __init__(self, storage: Storage, clock: Clock, config: TableConfig) -> None:
        super().__init__(storage, clock, config)
        self.rules = KeptRules(storage)
        self.fitness = Fitness()
        self.drops_metadata_table = False
        self.checked_groups = FileGroups()  # what the last write touched
        self.clean_mark: Mark | None = None
        self.outdated: deque[Outdated] = deque(maxlen=HOUR_COMMITS)  # by commits of this handle
        self.archive_at = 0
        self._touched: TouchedPartitions | None = None
        self._swept: tuple[Listing | None, int] = (None, 0)  # and when it was last looked at
        self._whole: frozenset[str] | None = None

    def reload(self) -> None:
        """Read the properties again, as a reader does; if they have changed, so may the table."""
        before = self.config
        super().reload()
        if self.config != before:
            self.fitness.forget()
        if self.config.merge_on_read != before.merge_on_read:
            raise InvalidTable(
                f"{self.storage.root} was replaced by a table of the other type (merge-on-read or "
                "copy-on-write): open it again with Table.open"
            )

    def reload_to_write(self) -> None:
        """Read the properties again, which Java may have left half changed, and the options."""
        property_file.restore(self.storage)
        self.reload()
        _ = self.options  # damage to them is reported before anything else

    def refuse_split_timeline(self) -> None:
        """Raise InvalidTable if an upgrade was interrupted; looks again only if names are gone."""
        listing = self.timeline.listing
        known = self._whole
        moved = listing.commit_times != self._groups.instants  # also after a commit of ours
        if known is None or moved or not known <= listing.names:
            refuse_split_timeline(self.storage, listing.layout)
        self._whole = listing.names

    def drop_metadata_table(self) -> None:
        """Drop Hudi's metadata table if it is to be, and what a crash has left of it.

        Raises InvalidTable, and drops nothing, if the table cannot be written.
        """
        if self.drops_metadata_table:
            self.fitness.refuse_unfit(self, self.file_groups(), whole=True)
            metadata_table.drop(self.storage)
            self.reload()

    def make_writable(self, emit: Emit) -> None:
        """Raise InvalidTable if any write would damage the table; `emit` is for events of checks.

        The partitions are checked when the write touches them.
        """
        self.fitness.emit = emit
        self.fitness.refuse_unfit(self, self.file_groups(), whole=not self.config.levels)
        self.rules.complete(self.config)
        self._checks().restore()

    def mark_swept(self) -> None:
        """Record that there is no unfinished write on the current timeline."""
        self._swept = (self.timeline.listing, self._swept[1])

    def is_swept(self) -> bool:
        """Whether this was recorded and nothing was written since; checked before each write.

        Every ten minutes it is false: jobs of Spark's format stage rows without the timeline, and
        their driver may have died.
        """
        swept, looked_ms = self._swept
        now_ms = self.clock.now_ms()
        due = now_ms - looked_ms >= _LOOK_AGAIN_MS
        self._swept = (None, now_ms if due else looked_ms)
        if due:
            return False
        return swept is not None and swept.names == self.timeline.listing.names

    def groups_to_write(self, *, folds_logs: bool = False) -> FileGroups:
        """Return the latest slices; InvalidTable when a damaged partition is asked for.

        Other engines' logs are refused, too, except if the write merges all logs of what it
        touches.
        """
        checks = self._checks()
        if folds_logs:  # on their own: another write must not find these partitions checked
            checks = TouchedPartitions(self, checks.partitions, self.fitness, folds_logs=True)
        self.checked_groups = checks.view(self._groups, self._commits_seen)
        return self.checked_groups

    def _checks(self) -> TouchedPartitions:
        """Return the checks of the latest listing."""
        listed = self._listed()
        if self._touched is None or self._touched.partitions is not listed:
            self._touched = TouchedPartitions(self, listed, self.fitness)
        return self._touched

    def remember(self, instant_time: str, statuses: Sequence[WriteStatus]) -> None:
        """Cache the view after a commit of this process."""
        note_written(self.storage.root, instant_time, [status.path for status in statuses])
        self.outdated.append(Outdated.of(instant_time, statuses, self._groups))
        self._groups = self._groups.with_commit(instant_time, statuses)

    def keep_groups(self, before: tuple[str, ...]) -> None:
        """Keep the cached view after archiving, if it was that of the commits `before`."""
        if self._groups.instants == before:
            self._groups = replace(self._groups, instants=self.timeline.listing.commit_times)


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
    holding: Callable[..., AbstractContextManager[None]] = lambda _, **alone: nullcontext(),
) -> TableHandle:
    """Create an empty table; `if_exists` is "error", "open" (must agree) or "replace".

    The options of an existing table that are given are changed.

    `holding` takes the table's lock, against other processes that create or replace it, and for a
    replacement `alone`: while no job runs.
    """
    if if_exists not in ("error", "open", "replace"):
        raise InvalidConfig(f"if_exists={if_exists!r}: choose 'error', 'open' or 'replace'")
    wanted = WriteOptions().updated(options or {})
    storage = storage_at(path)
    clock = clock or SystemClock()

    def schema_of(config: TableConfig) -> pa.Schema:
        return TableHandle(storage, clock, config).schema

    found = present(storage, config, if_exists, schema_of)
    if found is None:
        refuse_nested(storage)
        with permitted(f"{storage.root}/{META}"):
            storage.make_folder(META)  # which the lock does not make
    if found is None or if_exists == "replace":
        with holding(storage, alone=if_exists == "replace"):
            found = present(storage, config, if_exists, schema_of)
            if found is None or if_exists == "replace":
                return _make(storage, clock, config, wanted, replaced=found)
    stored = properties.load_options(storage)
    if options and stored.updated(options) != stored:
        with holding(storage):
            _store(storage, properties.load_options(storage).updated(options))
    return TableHandle(storage, clock, found)


def _store(storage: Storage, options: WriteOptions) -> None:
    storage.put(properties.OPTIONS, encode_record(options.as_options()))


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
