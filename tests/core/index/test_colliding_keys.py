"""Keys that were crafted to have colliding hashes cost no more than others."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import hoodie_nb as hn
from hoodie_nb.index import file_keys
from hoodie_nb.index.run import Entries, SectionView, write_run
from hoodie_nb.storage.local_storage import LocalStorage

M, INVERSE = 0xC6A4A7935BD1E995, pow(0xC6A4A7935BD1E995, -1, 1 << 64)
SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64())])
Words = NDArray[np.uint64]


def mixed(words: Words) -> Words:
    """Return a word as MurmurHash64A mixes it before combining it with the hash."""
    words = words * np.uint64(M)
    return (words ^ words >> np.uint64(47)) * np.uint64(M)


def unmixed(words: Words) -> Words:
    """Return the inverse of `mixed`: each of its steps has one."""
    words = words * np.uint64(INVERSE)
    return (words ^ words >> np.uint64(47)) * np.uint64(INVERSE)


def colliding(count: int) -> list[str]:
    """Return printable keys of 16 bytes that all have the same MurmurHash64A.

    The first word is any text; the second one is the word that leads from there to a chosen state.
    """
    found: list[str] = []
    number = 0
    while len(found) < count:
        text = b"".join(b"%08d" % n for n in range(number, number + 1_000_000))
        first = np.frombuffer(text, dtype="<u8")
        state = (np.uint64(16 * M % (1 << 64)) ^ mixed(first)) * np.uint64(M)
        second = unmixed(state ^ np.uint64(42))
        letters = second.view(np.uint8).reshape(-1, 8)
        good = np.flatnonzero(((letters > 0x20) & (letters < 0x7F)).all(axis=1))
        pairs = np.stack([first[good], second[good]], axis=1).tobytes().decode()
        found += [pairs[at : at + 16] for at in range(0, len(pairs), 16)]
        number += 1_000_000
    return found[:count]


KEYS = colliding(3000)


def murmur(key: bytes) -> int:
    """Return the published MurmurHash64A of a key of whole words, with seed 0."""
    h = len(key) * M % (1 << 64)
    for at in range(0, len(key), 8):
        word = np.frombuffer(key[at : at + 8], dtype="<u8")
        h = (h ^ int(mixed(word)[0])) * M % (1 << 64)
    h = (h ^ h >> 47) * M % (1 << 64)
    return h ^ h >> 47


def make(path: Path, **options: object) -> hn.Table:
    """Create a table of one partition."""
    return hn.Table.create(
        path, schema=SCHEMA, record_key="id", ordering="ts", options=options or None
    )


def upserted(table: hn.Table, keys: list[str], ts: int) -> tuple[dict[str, int], int]:
    """Upsert keys; return the counts of the lookup, and the most bytes it took in Python."""
    tracemalloc.start()
    try:
        table.upsert(pa.table([keys, [ts] * len(keys)], schema=SCHEMA))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return table.events.records("index_looked_up")[-1].values, peak


def test_the_keys_collide():
    """The generated keys differ and have one hash: the other tests depend on it."""
    assert len(set(KEYS)) == len(KEYS) and len({murmur(k.encode()) for k in KEYS[:50]}) == 1


@pytest.mark.parametrize("bits", [0, 64])
def test_colliding_keys_of_one_file_cost_what_others_do(tmp_path, monkeypatch, bits):
    """They are found, updated and deleted, and the memory of a lookup is not quadratic."""
    monkeypatch.setattr(file_keys, "MASK", (1 << bits) - 1)
    table = make(tmp_path / "t")
    for ts in (1, 2):
        counts, peak = upserted(table, KEYS, ts)
        assert peak < 40_000_000
    assert (counts["found"], counts["state_hits"]) == (3000, 3000)
    table.delete(pa.table({"id": KEYS[:100]}))
    upserted(table, KEYS[50:], 3)
    assert sorted(table.to_arrow().column("id").to_pylist()) == sorted(KEYS[50:])
    assert table.fsck() == []
    assert bits == 64 or table.index_status().entries <= 4


def test_colliding_keys_of_many_files_cost_one_reading_of_each(tmp_path, monkeypatch):
    """If every file has the hash of every key, each file is read once, for the remaining keys."""
    monkeypatch.setattr(file_keys, "MASK", 0)
    size = {"hoodie.parquet.max.file.size": 100_000, "hoodie.parquet.small.file.limit": 0}
    table = make(tmp_path / "t", **size, **{"hoodie.copyonwrite.record.size.estimate": 1024})
    upserted(table, KEYS, 1)
    files = table.index_status().files
    counts, peak = upserted(table, KEYS, 2)
    assert (counts["found"], counts["files_looked_up"]) == (3000, files) and files > 20
    assert peak < 40_000_000 and table.index_status().entries <= 2 * files


def test_hashes_of_one_prefix_are_found_by_bisection(tmp_path):
    """Hashes that differ in their last bits are adjacent, and each is found."""
    storage = LocalStorage(tmp_path)
    hashes = np.arange(1, 40_000, 2, dtype=np.uint64)
    section = write_run(storage, "r.run", "2" * 17, [Entries.of("p", "g", hashes)])[0]
    view = SectionView(storage.fetch("r.run"), section)
    asked = np.arange(0, 40_001, dtype=np.uint64)
    rows, groups = view.find(asked)
    assert sorted(rows.tolist()) == list(range(1, 40_000, 2)) and set(groups.tolist()) == {0}


def test_a_pair_of_hash_and_group_is_kept_once():
    """This holds however often it was reported: in one file, in several runs, with other groups."""
    parts = [
        Entries.of("p", "a", np.array([5, 5, 7], dtype=np.uint64)),
        Entries.of("p", "b", np.array([5, 5, 9], dtype=np.uint64)),
        Entries.of("p", "a", np.array([5, 9], dtype=np.uint64)),
    ]
    assert parts[0].hashes.tolist() == [5, 7]
    union = Entries.union(parts, [{"a", "b"}] * 3)
    pairs = zip(union.hashes.tolist(), union.groups.tolist(), strict=True)
    assert list(pairs) == [(5, 0), (5, 1), (7, 0), (9, 0), (9, 1)]
