"""`index_status` and `rebuild_index`: how much of a table the state index covers.

*Source:* RFC-24 "pure state mode"; Hudi's `index.bootstrap.enabled`, which is never needed here.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.index.file_keys import read_hashes
from hoodie_nb.index.manifest import (
    FOLDER,
    RUNS,
    LoadedGroup,
    Manifest,
    PartitionState,
    manifest_name,
    manifest_names,
    newest_manifest,
    read_manifest,
)
from hoodie_nb.index.run import Entries, write_run
from hoodie_nb.index.upkeep import MERGED_ENTRIES, tidy
from hoodie_nb.storage.storage import Storage
from hoodie_nb.view.file_groups import FileSlice


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """The coverage of the state index: counts of partitions, files, entries; bytes on disk.

    In pure-state mode (`pure`) every file is loaded and no bloom filter is used.
    """

    instant: str
    partitions: int
    pure_partitions: int
    files: int
    loaded_files: int
    entries: int
    bytes: int
    runs: int
    unloaded: tuple[str, ...] = field(repr=False, default=())

    @property
    def pure(self) -> bool:
        """Whether the state alone answers, in every partition."""
        return self.files == self.loaded_files

    def __str__(self) -> str:
        mode = "pure state" if self.pure else "bloom and state"
        return (
            f"{mode}: {self.loaded_files} of {self.files} files loaded, {self.pure_partitions} of "
            f"{self.partitions} partitions pure, {self.entries:,} entries in {self.runs} runs, "
            f"{self.bytes:,} bytes"
        )


def index_status(table: TableHandle) -> IndexStatus:
    """Return the coverage of the table's current files by the newest manifest."""
    manifest = read_manifest(table.storage, newest_manifest(table.storage))
    slices = table.file_groups().slices
    states = {name: manifest.partition(name) or PartitionState("") for name in slices}
    unloaded = [
        piece.base_path
        for name, pieces in slices.items()
        for piece in pieces.values()
        if states[name].loaded(piece) is None
    ]
    impure = {path.rpartition("/")[0] for path in unloaded}
    sections = [section for state in states.values() for section in state.sections]
    files = sum(map(len, slices.values()))
    return IndexStatus(
        instant=manifest.instant,
        partitions=len(slices),
        pure_partitions=len(slices) - len(impure),
        files=files,
        loaded_files=files - len(unloaded),
        entries=sum(section.count for section in sections),
        bytes=sum(section.length for section in sections),
        runs=len({section.run for section in sections}),
        unloaded=tuple(sorted(unloaded)),
    )


def rebuild_index(table: TableHandle) -> IndexStatus:
    """Read the key column of every file and rebuild the state, as a single run."""
    storage = table.storage
    groups = table.file_groups()
    if not groups.instants:
        return index_status(table)
    instant = groups.instants[-1]
    covered: list[tuple[str, dict[str, LoadedGroup]]] = []  # by section

    def entries() -> Iterator[Entries]:
        for name, slices in groups.slices.items():
            for chunk in _chunks(storage, list(slices.values())):
                loaded = {e.file_ids[0]: len(e.hashes) for e in chunk}
                known = {i: LoadedGroup(slices[i].instant_time, instant, loaded[i]) for i in loaded}
                covered.append((name, known))
                yield Entries.union(chunk, [e.file_ids for e in chunk])

    storage.make_folder(RUNS)
    path = f"{RUNS}/{instant}-{uuid.uuid4().hex[:8]}.run"
    states: dict[str, PartitionState] = {}
    for section, (name, known) in zip(
        write_run(storage, path, instant, entries()), covered, strict=True
    ):
        before = states.get(name, PartitionState(instant))
        together = {**before.groups, **known}
        pure = len(together) == len(groups.partition(name))
        states[name] = PartitionState(instant, together, (*before.sections, section), pure)
    Manifest().with_states(instant, states).save(storage)
    newest = manifest_name(instant)
    names = manifest_names(storage)
    for name in names:
        if name > newest:  # of instants that were rolled back
            storage.remove(f"{FOLDER}/{name}")
    tidy(storage, [name for name in names if name <= newest])
    return index_status(table)


def _chunks(storage: Storage, slices: list[FileSlice]) -> Iterator[list[Entries]]:
    """Yield the entries of slices in pieces of bounded size."""
    chunk: list[Entries] = []
    for piece in slices:
        chunk.append(read_hashes(storage, piece))
        if sum(len(e.hashes) for e in chunk) > MERGED_ENTRIES or piece is slices[-1]:
            yield chunk
            chunk = []
