"""`index="bloom+state"`, lookups: state first, bloom filters for files not loaded yet.

*Work flow* of `locate` in a partition: (1) the hash of each key is looked up in the runs that the
manifest lists; (2) each file that is not loaded yet, including files of the open instant, is
checked by key range and bloom filter; (3) a file that may have a key is loaded: it is read once,
and all its keys are known from the next commit on; (4) a partition whose files are all loaded is in
pure-state mode, without step 2.

*Semantics*: exact. The runs contain at least the hashes of a loaded file's keys, and a bloom filter
never says no to a key of its file. So a key can only be in the file groups found. If there is one,
it is used (any file group is correct for a new key); if there are several, their key columns are
read. The answer depends on the plan and the key alone, not on other keys or an earlier lookup, so
all tasks give the same one.

*Fault tolerance*: the index is a cache. If a run does not match the manifest, the bloom filters
answer for its partition, and a note asks the coordinator to drop the partition. If several tasks
look up the same keys (`strict`), the damage is an error instead: they might not agree.

**Caveats**: keys that the state knows are looked up in unloaded files too; otherwise two keys with
equal hashes could be confused. *Source:* RFC-24 "new index"; HoodieBloomIndex for step 2.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.buckets.index_port import Copies, Index, LookupCounts
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.index.bloom import BloomIndex
from hoodie_nb.index.file_keys import hash64, load, note_damage
from hoodie_nb.index.manifest import PartitionState, manifest_of
from hoodie_nb.index.run import DamagedRun, Hashes, Positions, Section, SectionView
from hoodie_nb.view.file_groups import FileSlice


@lru_cache(maxsize=256)
def _view(path: str, section: Section, version: tuple[int, ...]) -> SectionView:
    return SectionView(path, section)


def _current_view(path: str, section: Section) -> SectionView:
    """Return a section that this process has verified since its file last changed."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise DamagedRun(f"{path}: {error}") from None
    return _view(path, section, (found.st_ino, found.st_size, found.st_mtime_ns))


@dataclass(frozen=True, slots=True)
class _Shared:
    """Hashes that occur in several file groups; `which` gives the hash of each key in `rows`.

    `hashes` and `groups` are the pairs; no array is longer than the keys or the state.
    """

    rows: Positions
    which: Positions
    hashes: Positions
    groups: Positions

    def by_group(self) -> Iterator[tuple[int, Positions]]:
        """Yield each file group and the rows of the keys whose hash it contains."""
        for group in np.unique(self.groups):
            has = np.zeros(int(self.hashes.max()) + 1, dtype=bool)
            has[self.hashes[self.groups == group]] = True
            yield int(group), self.rows[has[self.which]]


@dataclass(slots=True)
class _Known:
    """One task's view of a partition: file ids in order, runs, files that are not loaded.

    A view's numbers map to the position of the file id, or to -1 for an outdated entry.
    """

    file_ids: list[str]
    unloaded: dict[str, FileSlice]
    views: list[tuple[SectionView, Positions]] = field(default_factory=list)

    def add(self, view: SectionView, counts: set[str]) -> None:
        """Add a view's entries for those file groups."""
        number = {file_id: n for n, file_id in enumerate(self.file_ids)}
        positions = [number.get(i, -1) if i in counts else -1 for i in view.file_ids]
        self.views.append((view, np.array([*positions, -1], dtype=np.int64)))

    def choose(self, hashes: Hashes) -> tuple[Positions, "_Shared"]:
        """Return one file group per hash, -1 for none, and the hashes that are in several."""
        chosen: Positions = np.full(len(hashes), -1, dtype=np.int64)
        matches = np.zeros(len(hashes), dtype=np.int64)
        for view, numbers in self.views:
            rows, theirs, several = view.first(hashes)
            ours = numbers[theirs]
            chosen[rows[ours >= 0]] = ours[ours >= 0]
            matches[rows] += ours >= 0
            matches[several] += 2
        rows = np.flatnonzero(matches > 1)
        distinct, which = np.unique(hashes[rows], return_inverse=True)
        hash_numbers, groups = self._distinct_pairs(distinct)
        one: Positions = np.full(len(distinct), -1, dtype=np.int64)
        one[hash_numbers] = groups
        chosen[rows] = one[which]
        ambiguous = np.bincount(hash_numbers, minlength=len(distinct)) > 1
        shared = ambiguous[which]
        pairs = ambiguous[hash_numbers]
        return chosen, _Shared(rows[shared], which[shared], hash_numbers[pairs], groups[pairs])

    def _distinct_pairs(self, hashes: Hashes) -> tuple[Positions, Positions]:
        count = max(1, len(self.file_ids))
        rows, groups = self.find(hashes)
        rows, groups = np.divmod(np.unique(rows * count + groups), count)
        return rows, groups

    def find(self, hashes: Hashes) -> tuple[Positions, Positions]:
        """Return each match as (position among `hashes`, position among the file ids)."""
        rows = [np.empty(0, np.int64)]
        groups = [np.empty(0, np.int64)]
        for view, numbers in self.views:
            at, theirs = view.find(hashes)
            ours = numbers[theirs]
            rows.append(at[ours >= 0])
            groups.append(ours[ours >= 0])
        return np.concatenate(rows), np.concatenate(groups)


class BloomStateIndex(Index):
    """The index of one task: the table's state, and the bloom filters of unloaded files.

    With `strict` a damaged run raises DamagedRun.
    """

    def __init__(self, plan: WritePlan, *, strict: bool = False) -> None:
        self._plan = plan
        self._bloom = BloomIndex(plan)
        self._strict = strict
        self._views: dict[str, SectionView] = {}
        self._manifest = manifest_of(plan)
        self._known: dict[str, _Known] = {}
        self.counts: LookupCounts = self._bloom.counts

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """Return the file id of each key in that partition, null for a new key."""
        slices = self._plan.groups.partition(partition)
        if partition not in self._known:
            self._known[partition] = self._open(partition, slices)
        known = self._known[partition]
        hashes = hash64(keys)
        groups, shared = known.choose(hashes)
        self.counts.keys += len(keys)
        self.counts.state_hits += int((groups >= 0).sum())
        groups[shared.rows] = -1
        for group, rows in shared.by_group():  # the first that has the key, as in the bloom index
            rows = rows[groups[rows] < 0]
            piece = slices[known.file_ids[group]]
            groups[rows[self._bloom.contains(piece, keys.take(pa.array(rows)))]] = group
        for number, file_id in enumerate(known.file_ids):
            if file_id in known.unloaded:
                self._ask(known, number, groups, keys, hashes)
        self.counts.found += int((groups >= 0).sum())
        return pa.array(known.file_ids, pa.string()).take(pa.array(groups, mask=groups < 0))

    def copies(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> Copies:
        """Return other file groups with the keys, as (position of the key, file id)."""
        known = self._known[partition]
        slices = self._plan.groups.partition(partition)
        found = [known.find(hash64(keys))]
        for number, file_id in enumerate(known.file_ids):
            if file_id in known.unloaded:
                maybe = self._bloom.candidates(slices[file_id], keys)
                found.append((maybe, np.full(len(maybe), number)))
        at, groups = (np.concatenate(parts) for parts in zip(*found, strict=True))
        own = pc.index_in(file_ids, value_set=pa.array(known.file_ids, pa.string()))
        others = groups != own.fill_null(-1).to_numpy()[at]
        rows = [np.empty(0, np.int64)]
        ids = list[str]()
        for group in np.unique(groups[others]).tolist():
            maybe = np.unique(at[others & (groups == group)])
            file_id = known.file_ids[group]
            inside = self._bloom.contains(slices[file_id], keys.take(pa.array(maybe)))
            rows.append(maybe[inside])
            ids += [file_id] * len(rows[-1])
        return np.concatenate(rows), ids

    def _open(self, partition: str, slices: Mapping[str, FileSlice]) -> _Known:
        state = self._manifest.partition(partition) or PartitionState("")
        loaded = {i: s for i, s in slices.items() if state.loaded(s) is not None}
        known = _Known(sorted(slices), {i: s for i, s in slices.items() if i not in loaded})
        try:
            for section in state.sections:
                counts = {i for i in loaded if state.valid(i, section)}
                known.add(_current_view(self._plan.storage.fetch(section.run), section), counts)
        except DamagedRun:
            note_damage(self._plan.storage, self._plan.staged, partition)
            if self._strict:
                raise
            self.counts.damaged_runs += 1
            known = _Known(sorted(slices), dict(slices))
        self.counts.partitions += 1
        self.counts.pure_partitions += not known.unloaded
        return known

    def _ask(
        self, known: _Known, number: int, groups: Positions, keys: pa.Array, hashes: Hashes
    ) -> None:
        """Set the file group `number`, which is not loaded, for the keys that it may have.

        A candidate whose hash is in the file is placed there. If it has another place already, the
        files decide: the first of the two that has the key.
        """
        piece = known.unloaded[known.file_ids[number]]
        maybe = self._bloom.candidates(piece, keys)
        if len(maybe) == 0:
            return
        hits = maybe[self._loaded(piece).first(hashes[maybe])[0]]
        self.counts.false_positives += len(maybe) - len(hits)
        placed = hits[groups[hits] >= 0]
        groups[hits[groups[hits] < 0]] = number
        inside = placed[self._has(piece, keys, placed)]
        for group in np.unique(groups[inside]).tolist():
            rows = inside[groups[inside] == group]
            earlier = self._plan.groups.partition(piece.partition_path)[known.file_ids[group]]
            stays = self._has(earlier, keys, rows) if group < number else np.zeros(len(rows), bool)
            groups[rows[~stays]] = number

    def _has(self, piece: FileSlice, keys: pa.Array, rows: Positions) -> npt.NDArray[np.bool_]:
        """Return for each of the rows whether its key is in the file."""
        if len(rows) == 0:
            return np.zeros(0, dtype=bool)
        return self._bloom.contains(piece, keys.take(pa.array(rows)))

    def _loaded(self, piece: FileSlice) -> SectionView:
        """Return the hashes of a file, which the first task that needs them reads."""
        view = self._views.get(piece.base_path)
        if view is None:
            view, read = load(self._plan.storage, self._plan.staged, piece)
            self.counts.files_looked_up += read
            self.counts.keys_loaded += len(view.hashes) * read
            self._views[piece.base_path] = view
        return view
