"""State index after a commit: adds new keys, merges runs, deletes old ones, limits its size.

*Work flow* of `learn`, after an instant has completed: it writes one run with a section per
partition. The run has the keys reported by the writers, those of the files that lookups loaded, and
those of a few more files in the touched partitions. Sections of similar size are merged at the same
time. The instant's manifest lists all sections, and files that no manifest lists are deleted.

*Semantics*: sections grow by the factor `FANOUT`, so each entry is rewritten only a few times and
the cost of a commit depends on the size of its batch. A merge drops outdated entries: of file
groups that are gone, reported again or changed by others. Above `max_bytes` the least recently used
partitions are dropped: they fall back to bloom filters.

*Fault tolerance*: a crash before the manifest is written leaves the previous one, which is still
correct; keys that it does not cover are looked up in the files. *Source:* RFC-24 "new index";
log-structured merges.
"""

import contextlib
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from hoodie_nb import failpoints
from hoodie_nb.events import Emit
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.index.file_keys import loaded, read_hashes, reported_keys
from hoodie_nb.index.manifest import (
    FOLDER,
    RUNS,
    LoadedGroup,
    Manifest,
    PartitionState,
    manifest_name,
    manifest_names,
    read_manifest,
)
from hoodie_nb.index.run import DamagedRun, Entries, Section, SectionView, write_run
from hoodie_nb.storage.storage import STAGED, Storage
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.view.file_groups import FileSlice

FANOUT = 8
MERGED_ENTRIES = 4_000_000  # a larger section is not merged again: bounds a commit's work


@dataclass(slots=True)
class _Partition:
    """One partition after an instant: its slices, known keys, and entries to write."""

    storage: Storage
    instant: str
    old: PartitionState
    slices: Mapping[str, FileSlice]
    groups: dict[str, LoadedGroup] = field(default_factory=dict)
    new: list[Entries] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)

    def __post_init__(self) -> None:
        for file_id, known in self.old.groups.items():
            piece = self.slices.get(file_id)
            if piece is not None and self.old.loaded(piece) is not None:
                self.groups[file_id] = known

    def add_written(self, status: WriteStatus) -> None:
        """Add the keys of a file that the instant wrote."""
        entries = reported_keys(self.storage, status)
        file_id = status.file_id
        piece = self.slices.get(file_id)
        known = self.old.groups.get(file_id)
        if entries is None or piece is None or piece.instant_time != self.instant:
            return
        count = len(entries.hashes)
        if status.keys_complete:
            self.groups[file_id] = LoadedGroup(self.instant, self.instant, count)
        elif known is not None and known.instant == status.previous_commit:
            total = known.entries + count
            dead = known.dead + status.deletes
            self.groups[file_id] = LoadedGroup(self.instant, known.since, total, dead)
        else:
            return
        self.new.append(entries)

    def add_loaded(self, entries: Entries, slice_instant: str) -> None:
        """Add the keys of a file that was read."""
        piece = self.slices.get(entries.file_ids[0])
        if piece is not None and piece.instant_time == slice_instant:
            known = LoadedGroup(slice_instant, self.instant, len(entries.hashes))
            if self.groups.setdefault(piece.file_id, known) is known:
                self.new.append(entries)

    @property
    def unloaded(self) -> list[FileSlice]:
        """Return the files whose keys are not known, by file id."""
        return [piece for i, piece in sorted(self.slices.items()) if i not in self.groups]

    def merged(self) -> Entries | None:
        """Return the entries to write: the new ones, merged with old sections of similar size."""
        state = PartitionState("", self.groups)
        kept = [s for s in self.old.sections if self._counts(state, s)]
        count = sum(len(e.hashes) for e in self.new)
        parts = list(self.new)
        counts: list[set[str]] = [set(e.file_ids) for e in self.new]
        while count:
            alike = [s for s in kept if _size_class(s.count) == _size_class(count)]
            count += sum(s.count for s in alike)
            if len(alike) + 1 < FANOUT or count > MERGED_ENTRIES:
                break
            kept = [s for s in kept if s not in alike]
            parts += [self._read(s) for s in alike]
            counts += [self._counts(state, s) for s in alike]
        self.sections = kept
        return Entries.union(parts, counts) if parts else None

    def _counts(self, state: PartitionState, section: Section) -> set[str]:
        return {file_id for file_id in self.groups if state.valid(file_id, section)}

    def _read(self, section: Section) -> Entries:
        return SectionView(self.storage.fetch(section.run), section).entries()

    def state(self) -> PartitionState:
        """Return the partition's state for the manifest."""
        return PartitionState(self.instant, self.groups, tuple(self.sections), not self.unloaded)


def _size_class(count: int) -> int:
    size = 0
    while count >= FANOUT ** (size + 1):
        size += 1
    return size


def learn(
    table: TableHandle,
    instant: str,
    statuses: Sequence[WriteStatus],
    staged: Iterable[str],
    emit: Emit,
) -> None:
    """Add the written and loaded keys of a completed instant; `staged` are its folders.

    A failure is logged and leaves the instant out.
    """
    failpoints.hit("coord.index.pre")
    began = time.perf_counter()
    try:
        saved = _learned(table, instant, statuses, staged)
    except Exception as error:  # the commit is valid even if its cache fails
        emit("index_postponed", instant=instant, why=str(error))
        return
    failpoints.hit("coord.index.post")
    if saved is not None:
        manifest, unloaded = saved
        totals = manifest.totals
        partitions = len(manifest.current)
        emit(
            "index_saved",
            instant=instant,
            partitions=partitions,
            files=totals.loaded_files + unloaded,
            pure=totals.pure_partitions == partitions and not unloaded,
            seconds=round(time.perf_counter() - began, 6),
            **asdict(totals),
        )


def _learned(
    table: TableHandle, instant: str, statuses: Sequence[WriteStatus], staged: Iterable[str]
) -> tuple[Manifest, int] | None:
    """Return the new manifest, and how many files of the touched partitions it does not cover."""
    storage = table.storage
    groups = table.file_groups()
    names = manifest_names(storage)
    manifest = read_manifest(storage, names[-1]) if names else Manifest()
    if manifest.instant >= instant or not any(status.keys for status in statuses):
        return None
    ours = [f for f in staged if f.startswith(f"{STAGED}/{instant}-")]
    found = [loaded(storage, folder) for folder in ours]
    views = [view for some, _ in found for view in some]
    broken = {partition for _, some in found for partition in some}
    touched = broken | {s.partition_path for s in statuses} | {v.partition for v in views}
    parts = {}
    for name in sorted(touched):
        known = (None if name in broken else manifest.partition(name)) or PartitionState("")
        parts[name] = _Partition(storage, instant, known, groups.partition(name))
    for status in statuses:
        parts[status.partition_path].add_written(status)
    for view in views:
        parts[view.partition].add_loaded(view.entries(), view.instant)
    unloaded = [piece for part in parts.values() for piece in part.unloaded]
    for piece in unloaded[: table.options.index_load_budget]:
        with contextlib.suppress(Exception):  # after any error the file stays unloaded
            parts[piece.partition_path].add_loaded(read_hashes(storage, piece), piece.instant_time)
    saved = _save(storage, manifest, parts, table.options.index_max_bytes)
    tidy(storage, list(dict.fromkeys([*names, manifest_name(instant)])))
    return saved, sum(len(part.unloaded) for part in parts.values())


def _save(
    storage: Storage, manifest: Manifest, parts: Mapping[str, _Partition], max_bytes: int
) -> Manifest:
    """Write the run and the manifest."""
    instant = next(iter(parts.values())).instant
    entries = {}
    for name, part in parts.items():
        try:
            merged = part.merged()
        except DamagedRun:  # detected late: the partition starts from empty at its next use
            part.groups = {}
            part.sections = []
            merged = None
        if merged is not None and len(merged.hashes):
            entries[name] = merged
    storage.make_folder(RUNS)
    path = f"{RUNS}/{instant}-{uuid.uuid4().hex[:8]}.run"
    if entries:
        sections = write_run(storage, path, instant, entries.values())
        for name, section in zip(entries, sections, strict=True):
            parts[name].sections.append(section)
    states = {name: part.state() for name, part in parts.items()}
    saved = _bounded(manifest.with_states(instant, states), max_bytes)
    saved.save(storage)
    return saved


def _bounded(manifest: Manifest, max_bytes: int) -> Manifest:
    """Drop the least recently used partitions until the index is small enough."""
    if manifest.totals.bytes <= max_bytes:
        return manifest
    states = {name: manifest.partition(name) for name in manifest}
    by_use = sorted((s.used, name, s.totals.bytes) for name, s in states.items() if s is not None)
    size = sum(its for _, _, its in by_use)  # the totals still include damaged lines
    forgotten = []
    for _, name, its in by_use:
        if size > max_bytes:
            size -= its
            forgotten.append(name)
    return manifest.with_states(manifest.instant, dict.fromkeys(forgotten))


def tidy(storage: Storage, names: Sequence[str]) -> None:
    """Delete the manifests in `names` and the runs that the last two manifests do not need."""
    kept = [read_manifest(storage, name) for name in names[-2:]]  # tasks may read the previous one
    files = {*names[-2:]}.union(*(manifest.files for manifest in kept))
    runs = set[str]().union(*(manifest.runs for manifest in kept))
    for name in names:
        if name not in files:
            storage.remove(f"{FOLDER}/{name}")
    for entry in storage.list_folder(RUNS):
        if f"{RUNS}/{entry.name}" not in runs and not entry.is_folder:
            storage.remove(f"{RUNS}/{entry.name}")
