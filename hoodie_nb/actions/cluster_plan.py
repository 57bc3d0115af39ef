"""Cluster plan: which small base files of a partition are merged into one.

*Semantics*: files below the small file limit are put in order of their smallest key, and a new file
takes the next ones while their bytes fit into the maximal size. So files with neighbouring keys
come together, and no file grows above the maximum. A file that would be alone stays as it is. Logs
count as bytes of their base file, with which they are merged.

| option | meaning |
| --- | --- |
| `hoodie.parquet.small.file.limit` | files below it are small (0: below 5/6 of the maximum) |
| `hoodie.parquet.max.file.size` | the bytes of a new file, if it compresses as the old ones |

The same options decide which files an upsert fills, so a table with few small files is one whose
streams write large batches. Clustering in Hudi has options of its own.

*Source:* SparkSizeBasedClusteringPlanStrategy.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hoodie_nb.config import WriteOptions
from hoodie_nb.files.base_file import open_base_file, read_footer
from hoodie_nb.storage.storage import Storage
from hoodie_nb.view.file_groups import FileSlice

_READERS = 8
Slices = Mapping[str, Mapping[str, FileSlice]]


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """Small files of one partition that become one file, in order of their smallest keys."""

    partition_path: str
    pieces: tuple[FileSlice, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the files and their logs."""
        return sum(piece.total_bytes for piece in self.pieces)


def plan_clustering(storage: Storage, slices: Slices, options: WriteOptions) -> list[SmallFiles]:
    """Return the files to merge, by partition; the footers of small files are read.

    Raises InvalidTable for a file whose footer cannot be read.
    """
    most = options.max_file_bytes
    found = list[SmallFiles]()
    limit = min(options.small_file_bytes or 5 * most // 6, most)
    with ThreadPoolExecutor(_READERS) as pool:
        for path in sorted(slices):
            based = [s for _, s in sorted(slices[path].items()) if s.file_name]
            small = [piece for piece in based if piece.total_bytes < limit]
            if _two_fit(small, most):
                keys = pool.map(lambda piece: _smallest_key(storage, piece), small)
                ordered = sorted(zip(keys, small, strict=True), key=lambda pair: pair[0])
                packed = _packed([piece for _, piece in ordered], most)
                found += [SmallFiles(path, tuple(p)) for p in packed if len(p) > 1]
    return found


def _two_fit(pieces: Sequence[FileSlice], most: int) -> bool:
    return len(pieces) > 1 and sum(sorted(p.total_bytes for p in pieces)[:2]) <= most


def _smallest_key(storage: Storage, piece: FileSlice) -> bytes:
    footer = read_footer(open_base_file(storage.fetch(piece.base_path, piece.size_bytes)))
    return (footer.min_key or "").encode()


def _packed(pieces: Sequence[FileSlice], most: int) -> Iterator[list[FileSlice]]:
    together = list[FileSlice]()
    size = 0
    for piece in pieces:
        if size + piece.total_bytes > most:
            yield together
            together = []
            size = 0
        together.append(piece)
        size += piece.total_bytes
    yield together
