"""Archive format of table versions 8 and 9: Parquet files in levels, with a manifest.

*On disk*, in `.hoodie/timeline/history` (the folder is an option of the table):

| file | content |
| --- | --- |
| `<min>_<max>_<level>.parquet` | a row for each instant: its times, its action, the bytes of its \
completed file and of its plan; `min` and `max` are the first and the last requested time |
| `manifest_<n>` | JSON: the names and sizes of the Parquet files that count |
| `_version_` | the number of the current manifest; without it the highest one is current |

Ten files of a level are merged into one of the next level. The files of the last three manifests
stay, since somebody may be reading them.

*Fault tolerance*: a Parquet file is written before the manifest that names it, and that before
`_version_`, which is replaced in one step. What a crash has left of a Parquet file or of the next
manifest does not count, and is written again. An instant that is in the archive already is not
added again: a crash may leave it on the timeline.

**Caveats**: Java does add such an instant again, and its readers take one of the two. *Source:*
LSMTimeline, LSMTimelineWriter, HoodieLSMTimelineInstant.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from hoodie_nb import failpoints
from hoodie_nb.errors import readable
from hoodie_nb.storage.checksums import ChecksummedFile
from hoodie_nb.storage.storage import Storage, read_bytes
from hoodie_nb.timeline.instant import ENDS_AS, Contents, Instant
from hoodie_nb.types.avro_file import schema_text

_VERSION = "_version_"
_MANIFEST = re.compile(r"manifest_([1-9]\d*)")
_FILE = re.compile(r"(\d{14,17})_(\d{14,17})_(\d+)\.parquet")
# files of a level; bytes of a file; manifests
_MERGED = 10
_LARGEST = 1 << 30
_KEPT = 3
_ROWS = 100
_BATCH_BYTES = 8 << 20
_ATTEMPTS = 10
_PLANNED = ("clean", "replacecommit", *ENDS_AS)
_IDENTITY = ["instantTime", "action"]
_SCHEMA = pa.schema(
    [
        ("instantTime", pa.string()),
        ("completionTime", pa.string()),
        ("action", pa.string()),
        ("metadata", pa.binary()),
        ("plan", pa.binary()),
        pa.field("version", pa.int32(), nullable=False),
    ]
)


class Manifest(NamedTuple):
    """The Parquet files that count, with their sizes in bytes; the number is 0 if there is none."""

    number: int = 0
    files: Mapping[str, int] = {}


def read_manifest(storage: Storage, folder: str) -> Manifest:
    """Return the current manifest of an archive; ValueError if it is damaged or missing."""
    number = 0
    for _ in range(_ATTEMPTS):
        number = _current(storage, folder)
        if not number:
            return Manifest()
        with suppress(FileNotFoundError):  # another engine has deleted it meanwhile
            return Manifest(number, _files_of(storage, folder, number))
    raise ValueError(f"manifest_{number} is missing")


def _current(storage: Storage, folder: str) -> int:
    with suppress(FileNotFoundError, ValueError):
        if (number := int(read_bytes(storage, f"{folder}/{_VERSION}"))) > 0:
            return number
    return max(_numbers(storage.file_names(folder)), default=0)


def _numbers(names: Iterable[str]) -> list[int]:
    return [int(match[1]) for match in map(_MANIFEST.fullmatch, names) if match]


def _files_of(storage: Storage, folder: str, number: int) -> dict[str, int]:
    content = read_bytes(storage, f"{folder}/manifest_{number}")
    try:
        files = {str(f["fileName"]): int(f["fileLen"]) for f in json.loads(content)["files"]}
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"manifest_{number} is damaged: {error!r:.200}") from None
    if not all(map(_FILE.fullmatch, files)):
        raise ValueError(f"manifest_{number} names other files than those of an archive")
    return files


def is_manifest(name: str) -> bool:
    """Whether a file name is that of a manifest, or of the current one's number."""
    return name == _VERSION or _MANIFEST.fullmatch(name) is not None


def span(name: str) -> tuple[str, str]:
    """Return the first and the last time in a file that a manifest names."""
    first, last, _ = name.split("_")
    return first, last


class LsmArchive:
    """The archive of a table of layout 2, for its writer, who holds the table's lock."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder

    def add(self, instants: Sequence[Instant], read: Callable[[Instant], Contents]) -> None:
        """Add instants, oldest first, durably; `read` returns their files."""
        with self._readable():
            manifest = read_manifest(self._storage, self._folder)
            known = self._known(manifest, instants[0], instants[-1])
            new = [i for i in instants if (i.requested_time, i.action) not in known]
            if new:
                rows = (_row(read(instant)) for instant in new)
                name = f"{new[0].requested_time}_{new[-1].requested_time}_0.parquet"
                self._write(manifest, name, _batches(rows), [])

    def tidy(self) -> None:
        """Merge files of levels that are full, and delete the files of older manifests."""
        with self._readable():
            manifest = read_manifest(self._storage, self._folder)
            level = 0
            while names := _to_merge(manifest.files, level):
                starts, ends = zip(*map(span, names), strict=True)
                level += 1
                if not all(map(self._is_ours, names)):
                    break  # a newer Hudi wrote other columns: it merges them
                merged = f"{min(starts)}_{max(ends)}_{level}.parquet"
                manifest = self._write(manifest, merged, self._batches(names), names)
            self._clean(manifest.number - _KEPT - level)

    def _readable(self) -> AbstractContextManager[None]:
        where = f"the archive {self._storage.root}/{self._folder}"
        return readable(where, "restore its files from a backup", pa.ArrowException)

    @contextmanager
    def _opened(self, name: str) -> Iterator[pq.ParquetFile]:
        """Open a file of the archive; if it cannot be read, the error names it."""
        try:
            with pq.ParquetFile(self._storage.fetch(f"{self._folder}/{name}")) as file:
                yield file
        except (pa.ArrowException, OSError, LookupError, ValueError) as error:
            raise ValueError(f"{name}: {error!s:.200}") from None

    def _known(self, manifest: Manifest, first: Instant, last: Instant) -> set[tuple[str, str]]:
        """Return the archived times and actions, at least those between two instants."""
        known = set[tuple[str, str]]()
        for name in manifest.files:
            start, end = span(name)
            if start <= last.requested_time and end >= first.requested_time:
                with self._opened(name) as file:
                    found = file.read(_IDENTITY).select(_IDENTITY)
                known.update(zip(*(column.to_pylist() for column in found.columns), strict=True))
        return known

    def _write(
        self,
        manifest: Manifest,
        name: str,
        batches: Iterable[pa.RecordBatch],
        merged: Sequence[str],
    ) -> Manifest:
        """Write a Parquet file, then the manifest that has it instead of those `merged` into it."""
        path = f"{self._folder}/{name}"
        if name in manifest.files:
            raise ValueError(f"{name} exists already, with other instants")
        self._storage.make_folder(self._folder)
        self._storage.remove(path)  # what a crash has left
        with ChecksummedFile(self._storage.open_new(path)) as file:
            with pq.ParquetWriter(file, _SCHEMA, compression="gzip", store_schema=False) as writer:
                writer.add_key_value_metadata(
                    {"parquet.avro.schema": schema_text("HoodieLSMTimelineInstant")}
                )
                for batch in batches:
                    writer.write_batch(batch)
            file.sync()
        self._storage.sync_folder(self._folder)
        failpoints.hit("archive.lsm.file")
        files = {n: size for n, size in manifest.files.items() if n not in merged}
        files[name] = file.size_bytes
        listed = [{"fileName": n, "fileLen": size} for n, size in files.items()]
        number = manifest.number + 1
        content = json.dumps({"files": listed}, indent=2)
        self._storage.remove(f"{self._folder}/manifest_{number}")  # what a crash has left
        self._storage.put(f"{self._folder}/manifest_{number}", content.encode(), new=True)
        failpoints.hit("archive.lsm.manifest")
        self._storage.put(f"{self._folder}/{_VERSION}", str(number).encode())
        failpoints.hit("archive.lsm.version")
        return Manifest(number, files)

    def _is_ours(self, name: str) -> bool:
        with self._opened(name) as file:
            ours = file.schema_arrow.names == _SCHEMA.names
        return bool(ours)

    def _batches(self, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
        for name in names:
            with self._opened(name) as file:
                found = file.metadata
                groups = (found.row_group(n) for n in range(found.num_row_groups))
                size = sum(group.total_byte_size for group in groups)
                rows = max(1, min(_ROWS, _BATCH_BYTES * found.num_rows // max(1, size)))
                for batch in file.iter_batches(rows):
                    yield batch.cast(_SCHEMA)

    def _clean(self, until: int) -> None:
        """Delete the manifests up to a number, and then all files that no other manifest names."""
        names = self._storage.file_names(self._folder)
        numbers = _numbers(names)
        if min(numbers, default=until + 1) > until:
            return
        kept = [n for n in numbers if n > until]
        listed = {f for n in kept for f in _files_of(self._storage, self._folder, n)}
        gone = [f"manifest_{n}" for n in numbers if n <= until]
        for name in (*gone, *(n for n in names if _FILE.fullmatch(n) and n not in listed)):
            self._storage.remove(f"{self._folder}/{name}")
            failpoints.hit("archive.lsm.removed")


def _to_merge(files: Mapping[str, int], level: int) -> list[str]:
    """Return the oldest files of a level that are to be merged; none if it is not full."""
    names = sorted(name for name in files if name.endswith(f"_{level}.parquet"))
    if len(names) < _MERGED:
        return []
    found = list[str]()
    size = 0
    for name in names:
        found = [*found, name]
        size = size + files[name]
        if len(found) == _MERGED or (size > _LARGEST and len(found) > 1):
            return found
        if size > _LARGEST:
            found = []
            size = 0
    return found if len(found) > 1 else []


def _row(files: Contents) -> dict[str, object]:
    done, content = files[-1]
    planned = {done.action, *(i.action for i, _ in files)}.intersection(_PLANNED)
    plans = [plan for _, plan in files[:-1] if plan and planned]
    return {
        "instantTime": done.requested_time,
        "completionTime": done.completion_time,
        "action": done.action,
        "metadata": content or None,
        "plan": plans[-1] if plans else None,
        "version": 1,
    }


def _batches(rows: Iterable[dict[str, object]]) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of a few megabytes."""
    found = list[dict[str, object]]()
    size = 0
    for row in rows:
        found.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, bytes))
        if size > _BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(found, _SCHEMA)
            found = []
            size = 0
    if found:
        yield pa.RecordBatch.from_pylist(found, _SCHEMA)
