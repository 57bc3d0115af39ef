"""`index="state"`: only the keys that this job has written; all other keys are new.

This is the index of Flink's writer. It is exact and fast for one job. A second job, or the same job
after it has lost its checkpoint folder, knows none of the table's keys and writes all of them again
(a frequent Hudi issue: #9174, #12523). It is included to demonstrate this.

*On disk*: one Arrow file per task and checkpoint in the checkpoint folder, `hoodie_nb_state/`, with
the columns partition path, record key and file id of each assigned key. A run is saved before its
instant completes: a key whose instant was rolled back points to a file group that does not exist
yet, and is simply written there. A key whose file group was replaced since (another engine
overwrote or dropped its partition) is new again; one whose file group was clustered is
somewhere else, so it is refused. `<task>.runs` lists the runs of a task, so that a
missing run is detected; a run is added to the list after it is saved. `instants` has the times of
the instants that were written with this index. Each file ends with 16 bytes, `HNBSTATE` and the
CRC-32 of name and content in hexadecimal. A file that does not match is refused: its keys would be
written again as new rows. So is a state that lacks an instant of its query.

*Source:* RFC-24 bottleneck 4, FlinkHoodieIndex, `index.type=FLINK_STATE`.
"""

import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.buckets.index_port import Copies, LookupCounts
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.errors import InvalidTable
from hoodie_nb.rows.columns import FILE_ID
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

FOLDER = "hoodie_nb_state"
_MAGIC = b"HNBSTATE"
_LIST = ".runs"
_INSTANTS = "instants"
_REMEDY = (
    "would be written again as new rows: restore the checkpoint folder from a backup, or start the "
    "job with index='bloom+state', which reads the table"
)
Group = tuple[str, str]
_SCHEMA = pa.schema(
    [(PARTITION_PATH, pa.string()), (RECORD_KEY, pa.string()), (FILE_ID, pa.string())]
)


class StateIndex:
    """The index of one task over a job's runs in `folder`; keys it has not seen are new.

    So are keys in `replaced` file groups, given by partition path and file id. Keys in those of
    them that were `moved` are in other groups: InvalidTable.
    """

    def __init__(
        self, folder: str, replaced: Collection[Group] = (), moved: Collection[Group] = ()
    ) -> None:
        self._replaced = replaced
        self._moved = moved
        self._storage = _storage_of(folder)
        self._names = [n for n in self._files() if n.endswith(".arrow")]
        self._check_lists()
        newest_first = reversed(self._names)  # the newest wins
        contents = (_content(self._storage, name) for name in newest_first)
        self._runs = [pa.ipc.open_file(pa.BufferReader(c)).read_all() for c in contents]
        self._known: dict[str, pa.Table] = {}
        self._noted: list[pa.Table] = []
        self.counts = LookupCounts()

    def locate(self, partition: str, keys: pa.Array) -> pa.Array:
        """Return the file id of each key in that partition, null if this job never wrote it."""
        if partition not in self._known:
            parts = [r.filter(pc.equal(r.column(PARTITION_PATH), partition)) for r in self._runs]
            known = pa.concat_tables([_SCHEMA.empty_table(), *parts])
            self._refuse_moved(partition, known)
            gone = pa.array([i for p, i in self._replaced if p == partition], pa.string())
            lost = pc.is_in(known.column(FILE_ID), value_set=gone)
            self._known[partition] = known.filter(pc.invert(lost))
        known = self._known[partition]
        found = pc.index_in(keys, value_set=known.column(RECORD_KEY))
        self.counts.keys += len(keys)
        self.counts.found += len(keys) - found.null_count
        return known.column(FILE_ID).combine_chunks().take(found)

    def _refuse_moved(self, partition: str, known: pa.Table) -> None:
        moved = pa.array([i for p, i in self._moved if p == partition], pa.string())
        lost = known.filter(pc.is_in(known.column(FILE_ID), value_set=moved))
        if lost.num_rows:
            raise InvalidTable(
                f"{lost.num_rows:,} keys of partition {partition!r} in the state at "
                f"{self._storage.root} were moved to other files by a clustering of small files, "
                "or a clustering. They would be written again as new rows: start the job with "
                "index='bloom+state', which reads the table"
            )

    def copies(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> Copies:
        """Return other file groups with the keys, as (position of the key, file id)."""
        stored = self._known[partition].select([RECORD_KEY, FILE_ID])
        wanted = pc.is_in(stored.column(RECORD_KEY), value_set=keys)
        asked = {RECORD_KEY: keys, "own": file_ids, "at": np.arange(len(keys))}
        pairs = pa.table(asked).join(stored.filter(wanted), RECORD_KEY, join_type="inner")
        pairs = pairs.filter(pc.not_equal(pairs.column("own"), pairs.column(FILE_ID)))
        rows: npt.NDArray[np.int64] = pairs.column("at").to_numpy()
        return rows, pairs.column(FILE_ID).to_pylist()

    def remember(self, partition: str, keys: pa.Array, file_ids: pa.Array) -> None:
        """Record the file ids of new keys."""
        partitions = pa.repeat(partition, len(keys))
        self._noted.append(pa.Table.from_arrays([partitions, keys, file_ids], schema=_SCHEMA))

    def save(self, name: str) -> None:
        """Save the recorded keys as one new run, all or nothing."""
        if not self._noted:
            return
        sink = pa.BufferOutputStream()
        path = f"{name}.arrow"
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_table(pa.concat_tables(self._noted))
        mine = [n for n in self._names if _list_of(n) == _list_of(path)]
        if not mine:  # from now on a run without a list is an error
            _put(self._storage, _list_of(path), b"")
        _put(self._storage, path, sink.getvalue().to_pybytes())
        _put(self._storage, _list_of(path), "\n".join(sorted({*mine, path})).encode())

    def _files(self) -> list[str]:
        return [entry.name for entry in self._storage.list_folder("")]

    def _check_lists(self) -> None:
        """Raise InvalidTable if a list is missing, or a run that a list names."""
        lists = {n for n in self._files() if n.endswith(_LIST)} | set(map(_list_of, self._names))
        named = (str(_content(self._storage, name), "utf-8").splitlines() for name in sorted(lists))
        for run in (run for runs in named for run in runs if not self._storage.entry(run)):
            _content(self._storage, run)


def add_instant(plan: WritePlan, instant_time: str) -> None:
    """Record that the keys of an instant are in the state of its job, if this is the plan's index.

    It may be rolled back: then no checkpoint names it.
    """
    if plan.shape.index == "state":
        storage = _storage_of(plan.shape.state_folder)
        _put(storage, _INSTANTS, "\n".join(sorted({*_instants(storage), instant_time})).encode())


def check_instants(folder: str, written: Collection[str]) -> None:
    """Raise InvalidTable if the keys of one of these instants are not in the state of a job."""
    storage = _storage_of(folder)
    missing = sorted({*written} - _instants(storage))
    if missing:
        raise InvalidTable(
            f"{storage.root}/{_INSTANTS} lacks instant {missing[0]} of this query: it was written "
            "with another index or after another engine's commit, or the state is lost. Its keys "
            f"{_REMEDY}"
        )


def _instants(storage: LocalStorage) -> set[str]:
    if not storage.entry(_INSTANTS):
        return set()
    return {*str(_content(storage, _INSTANTS), "utf-8").split()}


def _storage_of(folder: str) -> LocalStorage:
    return LocalStorage(Path(folder, FOLDER), scratch="tmp")


def _put(storage: LocalStorage, name: str, content: bytes) -> None:
    storage.put(name, content + _seal(name, content))


def _content(storage: LocalStorage, name: str) -> pa.Buffer:
    """Return a file's content, memory-mapped; InvalidTable if it is not what was written."""
    try:
        data = pa.memory_map(storage.fetch(name)).read_buffer()
    except OSError:  # it is missing or empty
        data = pa.py_buffer(b"")
    size = max(0, data.size - len(_seal("", b"")))
    content = data.slice(0, size)
    if data.slice(size).to_pybytes() != _seal(name, memoryview(content)):
        raise InvalidTable(f"{storage.root}/{name} is damaged or missing; its keys {_REMEDY}")
    return content


def _seal(name: str, content: memoryview | bytes) -> bytes:
    return _MAGIC + f"{zlib.crc32(content, zlib.crc32(name.encode())):08x}".encode()


def _list_of(run: str) -> str:
    """Return the name of the list of the task that saved a run."""
    return run.removesuffix(".arrow").rpartition("-")[2] + _LIST
