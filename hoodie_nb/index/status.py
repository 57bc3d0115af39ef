"""The status of the index for users, and its rebuild from the files.

*Source:* RFC-24 "pure state mode"; Hudi's `index.bootstrap.enabled`, which is never needed here.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from hoodie_nb.index.loading import read_hashes
from hoodie_nb.index.manifest import (
    FOLDER,
    RUNS,
    LoadedGroup,
    Manifest,
    PartitionState,
    make_folders,
    manifest_name,
    manifest_names,
    newest_manifest,
    read_manifest,
)
from hoodie_nb.index.run import Entries, Section, write_run
from hoodie_nb.index.upkeep import MERGED_ENTRIES, tidy
from hoodie_nb.table.file_groups import FileSlice
from hoodie_nb.table.handle import TableHandle


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
        piece.path
        for name, pieces in slices.items()
        for piece in pieces.values()
        if states[name].loaded(piece) is None
    ]
    impure = {path.rpartition("/")[0] for path in unloaded}
    sections = [section for state in states.values() for section in state.sections]
    return IndexStatus(
        instant=manifest.instant,
        partitions=len(slices),
        pure_partitions=len(slices) - len(impure),
        files=sum(map(len, slices.values())),
        loaded_files=sum(map(len, slices.values())) - len(unloaded),
        entries=sum(section.count for section in sections),
        bytes=sum(section.length for section in sections),
        runs=len({section.run for section in sections}),
        unloaded=tuple(sorted(unloaded)),
    )


def rebuild_index(table: TableHandle) -> IndexStatus:
    """Read the key column of every file and rebuild the state, as a single run."""
    storage, groups = table.storage, table.file_groups()
    if not groups.instants:
        return index_status(table)
    instant = groups.instants[-1]
    states: dict[str, PartitionState] = {}
    make_folders(storage)
    covered: list[tuple[str, dict[str, LoadedGroup]]] = []
    path = f"{RUNS}/{instant}-{uuid.uuid4().hex[:8]}.run"
    sections = write_run(storage, path, instant, _entries(table, instant, covered))
    for section, (name, known) in zip(sections, covered, strict=True):
        before = states.get(name, PartitionState(instant))
        together = {**before.groups, **known}
        pure = len(together) == len(groups.partition(name))
        kept: tuple[Section, ...] = (*before.sections, section)
        states[name] = PartitionState(instant, together, kept, pure)
    Manifest().with_states(instant, states).save(storage)
    names = manifest_names(storage)
    for name in names:
        if name > manifest_name(instant):  # of instants that were rolled back
            storage.remove(f"{FOLDER}/{name}")
    tidy(storage, [name for name in names if name <= manifest_name(instant)])
    return index_status(table)


def _entries(
    table: TableHandle, instant: str, covered: list[tuple[str, dict[str, LoadedGroup]]]
) -> Iterator[Entries]:
    """Yield sections of bounded size, recording in `covered` the files that each covers."""
    for name, slices in table.file_groups().slices.items():
        for chunk in _chunks(table, list(slices.values())):
            known = {
                e.file_ids[0]: LoadedGroup(
                    slices[e.file_ids[0]].instant_time, instant, len(e.hashes)
                )
                for e in chunk
            }
            covered.append((name, known))
            yield Entries.union(chunk, [set(e.file_ids) for e in chunk])


def _chunks(table: TableHandle, slices: list[FileSlice]) -> Iterator[list[Entries]]:
    chunk: list[Entries] = []
    for piece in slices:
        chunk.append(read_hashes(table.storage, piece))
        if sum(len(e.hashes) for e in chunk) > MERGED_ENTRIES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
