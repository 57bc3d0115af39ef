"""Key hashes of base files: computed, loaded into the state, or reported by the file's writer.

*Loading*: a file's key column is read once. The first task that needs it reads it and saves the
hashes in the instant's staging folder, with a note that locates them; other tasks wait for a lock
and then memory-map the hashes. The coordinator adds the loaded files to the index after the instant
has completed; if it does not complete, the cleanup deletes them.

*Reporting*: if the previous slice is loaded, the writer of a new file reports only the new keys;
otherwise it reports all keys, and the file counts as loaded without being read. All keys are also
reported again for a file group with many deleted keys, so that their entries are dropped at the
next merge, and for one whose runs are damaged.

*The hash*: MurmurHash64A with seed 0 over the key's UTF-8 bytes: the same on every machine and in
every version, since hashes are stored on disk.

**Caveats**: two keys may share a hash; the lookup then reads the files. Keys can be crafted to
collide, and a secret seed would not prevent it: pairs of words exist whose differences cancel under
every seed. Runs and lookups are built so that such keys cost no more than others. One effect
remains: new keys with the same hash all go to the same file group, beyond its size limit. Tests
reduce `MASK` to eight bits to provoke collisions.

*Source:* RFC-24 "new index": every candidate file is looked up by one reader; Hudi's IndexWriter,
which also gets its rows from the writers; Austin Appleby's MurmurHash2, 64-bit variant A.
"""

import fcntl
import json
import uuid
from dataclasses import astuple
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.files.base_file import read_keys
from hoodie_nb.files.bloom import key_bytes
from hoodie_nb.index.manifest import manifest_of
from hoodie_nb.index.run import Entries, Hashes, Section, SectionView, write_run
from hoodie_nb.storage.storage import Storage, create_empty, read_bytes
from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.view.file_groups import FileSlice

MASK = 0xFFFF_FFFF_FFFF_FFFF
_M: Final = np.uint64(0xC6A4A7935BD1E995)
_BLOCK_KEYS: Final = 32_768  # a block fits into the processor's cache
_TAILS: Final = np.array([(1 << 8 * n) - 1 for n in range(8)], dtype=np.uint64)
_FOLDER = "loaded"
_NOTE = ".json"
_DAMAGED = ".damaged"
_OPEN = "0" * 17  # files of an open instant may still be replaced before it completes
_DEAD_SHARE = 0.25


def hash64(keys: pa.Array | pa.ChunkedArray) -> Hashes:
    """Return the hash of each key (strings, none null)."""
    data, starts, lengths = key_bytes(keys)
    if len(starts):  # keys of one partition may be a small part of a large piece
        data = data[starts[0] : starts[-1] + lengths[-1]]
        starts = starts - starts[0]
    hashes = np.empty(len(starts), dtype=np.uint64)
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    words = np.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,))
    for begin in range(0, len(starts), _BLOCK_KEYS):
        block = slice(begin, begin + _BLOCK_KEYS)
        hashes[block] = _hashed(words, starts[block], lengths[block])
    hashes &= np.uint64(MASK)
    return hashes


def _hashed(words: Hashes, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Hashes:
    """Hash many keys at once; their words are read at any byte position."""
    whole = lengths >> 3
    left = lengths & 7
    h = lengths.astype(np.uint64) * _M
    rows = np.arange(len(starts))
    for word in range(int(whole.max(initial=0))):
        rows = rows[whole[rows] > word]
        k = words[starts[rows] + 8 * word] * _M
        k ^= k >> 47
        h[rows] = (h[rows] ^ (k * _M)) * _M
    rows = np.flatnonzero(left)
    tail = words[starts[rows] + 8 * whole[rows]] & _TAILS[left[rows]]
    h[rows] = (h[rows] ^ tail) * _M
    h ^= h >> 47
    h *= _M
    h ^= h >> 47
    return h


# --- files that lookups load ----------------------------------------------------------------------


def read_hashes(storage: Storage, piece: FileSlice) -> Entries:
    """Return the hashes of all non-null keys of a slice, by reading its key column."""
    keys = read_keys(storage.fetch(piece.base_path, piece.size_bytes))
    keys = keys.filter(pc.greater(pc.binary_length(keys), 0))
    return Entries.of(piece.partition_path, piece.file_id, hash64(keys))


def load(storage: Storage, staged: str, piece: FileSlice) -> tuple[SectionView, bool]:
    """Return a slice's hashes, and whether this call has read them from the file."""
    storage.make_folder(f"{staged}/{_FOLDER}")
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"{piece.partition_path}//{piece.base_path}").hex
    path = f"{staged}/{_FOLDER}/{name}"
    create_empty(storage, f"{path}.lock")
    with open(storage.fetch(f"{path}.lock"), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released if the reader dies
        view = _noted(storage, f"{path}{_NOTE}")
        if view is not None:
            return view, False
        entries = read_hashes(storage, piece)
        run = f"{path}.{uuid.uuid4().hex}.run"
        stands_for = _OPEN if piece.staged_path else piece.instant_time
        section = write_run(storage, run, stands_for, [entries])[0]
        storage.put(f"{path}{_NOTE}", json.dumps(astuple(section)).encode(), durable=False)
    return SectionView(storage.fetch(section.run), section), True


def _noted(storage: Storage, path: str) -> SectionView | None:
    try:
        return _view(storage, read_bytes(storage, path))
    except OSError:
        return None


def _view(storage: Storage, note: bytes | str) -> SectionView | None:
    """Return the section that a note locates; None if note or section are damaged."""
    try:
        section = Section(*json.loads(note))
        return SectionView(storage.fetch(section.run), section)
    except (ValueError, TypeError):  # a DamagedRun is a ValueError
        return None


def loaded(storage: Storage, staged: str) -> tuple[list[SectionView], set[str]]:
    """Return the hashes of the files that a run's tasks loaded, and the damaged partitions."""
    paths = [f"{staged}/{_FOLDER}/{name}" for name in storage.file_names(f"{staged}/{_FOLDER}")]
    views = [_noted(storage, path) for path in paths if path.endswith(_NOTE)]
    damaged = (read_bytes(storage, path) for path in paths if path.endswith(_DAMAGED))
    return [view for view in views if view is not None], set(map(json.loads, damaged))


def note_damage(storage: Storage, staged: str, partition: str) -> None:
    """Record for the coordinator that runs of a partition cannot be used."""
    storage.put(_damage_note(staged, partition), json.dumps(partition).encode(), durable=False)


def _damage_note(staged: str, partition: str) -> str:
    return f"{staged}/{_FOLDER}/{uuid.uuid5(uuid.NAMESPACE_URL, partition).hex}{_DAMAGED}"


# --- files that writers write ---------------------------------------------------------------------


class KeysToIndex:
    """The keys that the writer of one base file reports."""

    def __init__(self, plan: WritePlan, partition: str, old: FileSlice | None) -> None:
        self._plan = plan
        self._partition = partition
        self._hashes: list[Hashes] = []
        self._listens = plan.shape.index == "bloom+state"
        state = manifest_of(plan).partition(partition) if self._listens and old else None
        known = state.loaded(old) if state is not None and old is not None else None
        self.complete = known is None or known.dead > _DEAD_SHARE * known.entries
        if not self.complete:
            self.complete = plan.storage.entry(_damage_note(plan.staged, partition)) is not None

    def add(self, keys: pa.ChunkedArray, new_keys: pa.Array) -> None:
        """Add the keys of a piece of the file; `new_keys` were not in the previous slice."""
        reported = keys if self.complete else new_keys
        if self._listens and len(reported):
            self._hashes.append(hash64(reported))

    def stage(self, staged: str, file_id: str) -> str | None:
        """Save the keys with the staged file; return their path, for the write status."""
        if not self._listens:
            return None
        hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        entries = Entries.of(self._partition, file_id, hashes)
        plan = self._plan
        path = f"{staged}-keys"
        try:
            section = write_run(plan.storage, path, plan.instant_time, [entries])[0]
        except OSError:  # the file counts as not loaded
            return None
        return json.dumps(astuple(section))


def reported_keys(storage: Storage, status: WriteStatus) -> Entries | None:
    """Return the keys that a file's writer reported; None if there are none or they are damaged."""
    view = None if status.keys is None else _view(storage, status.keys)
    return None if view is None else view.entries()
