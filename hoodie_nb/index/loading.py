"""Loading a file: its key column is read once, and its hashes are shared by all tasks.

The first task that needs a file's keys reads them and saves the hashes in the instant's staging
folder, with a note that locates them; other tasks wait for a lock and then memory-map the hashes.
The coordinator adds the loaded files to the index after the instant has completed; if it does not
complete, the cleanup deletes them.

*Source:* RFC-24 "new index": every candidate file is looked up by one reader.
"""

import fcntl
import json
import uuid
from collections.abc import Iterator
from dataclasses import astuple

import pyarrow.compute as pc

from hoodie_nb.index.hashing import hash64
from hoodie_nb.index.run import Entries, Section, SectionView, write_run
from hoodie_nb.table.base_file import read_keys
from hoodie_nb.table.file_groups import FileSlice
from hoodie_nb.table.storage import Storage, create_empty, file_names, read_bytes

_FOLDER, _NOTE, _DAMAGED = "loaded", ".json", ".damaged"
_OPEN = "0" * 17  # files of an open instant may still be replaced before it completes


def read_hashes(storage: Storage, piece: FileSlice) -> Entries:
    """Return the hashes of all non-null keys of a slice, by reading its key column."""
    keys = read_keys(storage.fetch(piece.path, piece.size_bytes))
    keys = keys.filter(pc.greater(pc.binary_length(keys), 0))
    return Entries.of(piece.partition_path, piece.file_id, hash64(keys))


def load(storage: Storage, staged: str, piece: FileSlice) -> tuple[SectionView, bool]:
    """Return a slice's hashes, and whether this call has read them from the file."""
    storage.make_folder(f"{staged}/{_FOLDER}")
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"{piece.partition_path}//{piece.path}").hex
    path = f"{staged}/{_FOLDER}/{name}"
    create_empty(storage, f"{path}.lock")
    with open(storage.fetch(f"{path}.lock"), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released if the reader dies
        for view in _noted(storage, f"{path}{_NOTE}"):
            return view, False
        entries = read_hashes(storage, piece)
        run = f"{path}.{uuid.uuid4().hex}.run"
        stands_for = _OPEN if piece.staged_path else piece.instant_time
        section = write_run(storage, run, stands_for, [entries])[0]
        note = json.dumps(astuple(section)).encode()
        storage.put(f"{path}{_NOTE}", note, durable=False)
    return SectionView(storage.fetch(section.run), section), True


def _noted(storage: Storage, path: str) -> Iterator[SectionView]:
    try:
        section = Section(*json.loads(read_bytes(storage, path)))
        yield SectionView(storage.fetch(section.run), section)
    except (OSError, ValueError, TypeError):
        return


def loaded(storage: Storage, staged: str) -> tuple[list[SectionView], set[str]]:
    """Return the hashes of the files that a run's tasks loaded, and the damaged partitions."""
    paths = [f"{staged}/{_FOLDER}/{name}" for name in file_names(storage, f"{staged}/{_FOLDER}")]
    views = [v for path in paths if path.endswith(_NOTE) for v in _noted(storage, path)]
    return views, {
        json.loads(read_bytes(storage, path)) for path in paths if path.endswith(_DAMAGED)
    }


def note_damage(storage: Storage, staged: str, partition: str) -> None:
    """Record for the coordinator that runs of a partition cannot be used."""
    path = _damage_note(staged, partition)
    storage.put(path, json.dumps(partition).encode(), durable=False)


def is_damaged(storage: Storage, staged: str, partition: str) -> bool:
    """Whether damage was recorded for a partition."""
    return storage.entry(_damage_note(staged, partition)) is not None


def _damage_note(staged: str, partition: str) -> str:
    return f"{staged}/{_FOLDER}/{uuid.uuid5(uuid.NAMESPACE_URL, partition).hex}{_DAMAGED}"
