"""The 64-bit hash that identifies a record key in the state index.

MurmurHash64A with seed 0 over the key's UTF-8 bytes: the same on every machine and in every
version, since hashes are stored on disk. Words are read for many keys at once, at any byte
position.

**Caveats**: two keys may share a hash; the lookup then reads the files. Keys can be crafted to
collide, and a secret seed would not prevent it: pairs of words exist whose differences cancel under
every seed. Runs and lookups are built so that such keys cost no more than others. One effect
remains: new keys with the same hash all go to the same file group, beyond its size limit. Tests
reduce `MASK` to eight bits to provoke collisions. *Source:* Austin Appleby's MurmurHash2, 64-bit
variant A.
"""

from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hoodie_nb.table.bloom import key_bytes

Hashes: TypeAlias = NDArray[np.uint64]
MASK = 0xFFFF_FFFF_FFFF_FFFF
_M: Final = np.uint64(0xC6A4A7935BD1E995)
_BLOCK_KEYS: Final = 32_768  # a block fits into the processor's cache
_TAILS: Final = np.array([(1 << 8 * n) - 1 for n in range(8)], dtype=np.uint64)


def hash64(keys: pa.Array | pa.ChunkedArray) -> Hashes:
    """Return the hash of each key (strings, none null)."""
    data, starts, lengths = key_bytes(keys)
    if len(starts):  # keys of one partition may be a small part of a large piece
        data, starts = data[starts[0] : starts[-1] + lengths[-1]], starts - starts[0]
    hashes = np.empty(len(starts), dtype=np.uint64)
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    words = np.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,))
    for begin in range(0, len(starts), _BLOCK_KEYS):
        block = slice(begin, begin + _BLOCK_KEYS)
        hashes[block] = _hashed(words, starts[block], lengths[block])
    return hashes if MASK == 0xFFFF_FFFF_FFFF_FFFF else hashes & np.uint64(MASK)


def _hashed(words: Hashes, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Hashes:
    whole, left = lengths >> 3, lengths & 7
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
