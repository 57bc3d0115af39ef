"""The bloom filter's bits: hashing as in Java, growth (DYNAMIC_V0), its text in the footer.

Hudi's BLOOM index checks a file's key range, then this filter (which never says no to a key that
was added), and last the key column, which rules out the few false positives.

*On disk*: footer key `org.apache.hudi.bloomfilter` is standard base64 (no line breaks) of the
bytes below, big endian; `hoodie_bloom_filter_type_code` names the layout.

    header      int32 version = -1 | int32 hashes | int8 hash type = 1 (murmur) | int32 bits
    row         header | ceil(bits / 8) bytes; bit i is byte i >> 3, mask 1 << (i & 7)
    SIMPLE      one row
    DYNAMIC_V0  header | int32 keys per row | int32 keys in the last row | int32 rows | rows

*Size*: n keys at false-positive rate p take ceil(n * -ln p / ln² 2) bits and ceil(ln 2 * bits / n)
hashes: 43 bits and 30 hashes per key at Hudi's 1e-9. Java's defaults (60 000 keys, DYNAMIC_V0) put
431 380 characters into every file, however small. A writer that knows its number of records needs
no growth, so this library writes SIMPLE and reads both, as Hudi
does.

*Semantics*: a key sets the bits |h| mod bits, for each h in a chain of hashes: h = murmur2 of the
key's UTF-8 with the previous h as its seed, initially 0; |h| as an int32. Hadoop's murmur2 differs
from the textbook: bytes after the last whole word count from the end and are sign-extended. A key
is "maybe" if one row has all its bits. Words are mixed without the seed, so only the chain is
repeated; keys are sorted by descending word count, so word j belongs to a prefix of them.

**Caveats**: a filter with more keys than it was sized for stays correct but says "maybe" too often;
create a new one. Keys added to a DYNAMIC_V0 filter go into its first row. A key of one megabyte
takes about 15 seconds. Jenkins hashing and Hadoop's unversioned header are refused: Hudi never
writes them.

*Source:* Hudi `BloomFilterFactory`, `InternalDynamicBloomFilter`; Hadoop `util.hash.MurmurHash`.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hoodie_nb.errors import InvalidConfig, InvalidInput, InvalidTable

SIMPLE = "SIMPLE"
DYNAMIC = "DYNAMIC_V0"
_HEADER: Final = struct.Struct(">iibi")
_COUNTS: Final = struct.Struct(">iibiiii")  # the header again, then DYNAMIC_V0's three numbers
_VERSION = -1
_MURMUR = 1
_INT32_MAX: Final = 2**31 - 1
_MAX_HASHES: Final = 256  # p = 1e-77; bounds the work an untrusted header can ask for
_FIRST_ROUNDS: Final = 3  # an eighth of the absent keys pass these rounds in a full filter
_BLOCK_KEYS: Final = 32_768  # a block fits into the processor's cache
_BLOCK_CELLS: Final = 1 << 20  # rows x keys of one probe: many tiny rows must not cost memory
_ROUND_CELLS: Final = 1 << 14  # as many rounds are probed at once: few keys cost few calls
_M: Final = np.uint32(0x5BD1E995)
_SEED: Final = np.zeros(1, dtype=np.uint32)

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint32]
Bytes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Chain:
    """Keys as mixed words, by descending word count: column j is word j of the first keys."""

    columns: list[Words]
    tail: Words
    tail_factor: Words
    length: Words

    @classmethod
    def cut(cls, data: Bytes, starts: Ints, lengths: Ints) -> _Chain:
        """Build the words of the keys `data[start : start + length]`."""
        whole = lengths >> 2
        counts = np.searchsorted(-whole, -np.arange(whole[0]))
        columns = [_mixed_words(data, starts[:n] + 4 * j) for j, n in enumerate(counts)]
        tail: Words = np.zeros(len(starts), dtype=np.uint32)
        for back in (1, 2, 3):
            rows = np.flatnonzero(lengths & 3 >= back)
            byte = data[starts[rows] + lengths[rows] - back].view(np.int8).astype(np.int32)
            tail[rows] ^= (byte << 8 * (back - 1)).view(np.uint32)
        factor = np.where(lengths & 3, _M, np.uint32(1))
        return cls(columns, tail, factor, lengths.astype(np.uint32))

    def next(self, seed: Words) -> Words:
        """Hash every key with the seed (one for all, or one per key)."""
        h = self.length ^ seed
        for column in self.columns:
            part = h[: len(column)]
            part *= _M
            part ^= column
        h ^= self.tail
        h *= self.tail_factor
        h ^= h >> 13
        h *= _M
        h ^= h >> 15
        return h


@dataclass(slots=True, eq=False, repr=False)
class BloomFilter:
    """A growing set of record keys: "certainly not" or "maybe". Made by `sized` or `parse`."""

    bits: int
    hashes: int
    entries: int  # keys per row; 0 in SIMPLE, which does not store it
    _rows: Bytes
    _in_last_row: int = 0

    @classmethod
    def sized(cls, entries: int, fpp: float = 1e-9) -> BloomFilter:
        """Return an empty SIMPLE filter for so many keys. Raises: InvalidConfig."""
        if entries < 0 or not 0 < fpp < 1:
            given = f"bloom filter with entries={entries}, fpp={fpp}"
            raise InvalidConfig(f"{given}: give entries >= 0 and 0 < fpp < 1")
        entries = max(entries, 1)  # a file emptied by deletes still has a filter
        bits = math.ceil(entries * (-math.log(fpp) / (math.log(2) * math.log(2))))
        hashes = math.ceil(math.log(2) * bits / entries)
        if bits > _INT32_MAX or hashes > _MAX_HASHES:
            takes = f"{bits} bits and {hashes} hashes (at most {_INT32_MAX} and {_MAX_HASHES})"
            raise InvalidConfig(f"a bloom filter would take {takes}; lower entries or raise fpp")
        return cls(bits, hashes, 0, np.zeros((1, -(-bits // 8)), dtype=np.uint8))

    @classmethod
    def parse(cls, text: str, type_code: str) -> BloomFilter:
        """Read the footer's text, the inverse of `to_text`. Raises: InvalidTable."""
        code = type_code.upper()  # Java's reader ignores case here
        _require(code in (SIMPLE, DYNAMIC), f"of unknown type {type_code!r}")
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise InvalidTable(f"the bloom filter is not base64: {error}") from error
        layout = _HEADER if code == SIMPLE else _COUNTS
        _require(len(data) >= layout.size, f"cut short at {len(data)} bytes")
        version, hashes, hash_type, bits = _HEADER.unpack_from(data)
        known = (version, hash_type) == (_VERSION, _MURMUR)
        _require(known, f"of version {version} and hash type {hash_type}, not -1 and 1")
        _require(1 <= hashes <= _MAX_HASHES and bits > 0, f"of {hashes} hashes, {bits} bits")
        if code == SIMPLE:
            return cls(bits, hashes, 0, _parsed_rows(data, 0, 1, bits))
        entries, in_last_row, count = _COUNTS.unpack_from(data)[-3:]
        sane = entries > 0 and count > 0 and in_last_row >= 0
        _require(sane, f"of {count} rows for {entries} keys each, {in_last_row} in the last")
        rows = _parsed_rows(data, _COUNTS.size, count, bits)
        return cls(bits, hashes, entries, rows, in_last_row)

    @property
    def type_code(self) -> str:
        """Return the value for the footer's `hoodie_bloom_filter_type_code`."""
        return DYNAMIC if self.entries else SIMPLE

    def add(self, keys: pa.Array | pa.ChunkedArray) -> None:
        """Add record keys (strings). Raises: InvalidInput on null or empty keys, adding none."""
        data, starts, lengths = key_bytes(keys)
        flat: Bools = np.unpackbits(self._rows[0], bitorder="little").view(np.bool_)
        for _, chain in _blocks(data, starts, lengths, _BLOCK_KEYS):
            h = _SEED
            for _ in range(self.hashes):
                h = chain.next(h)
                flat[_positions(h, self.bits)] = True
        self._rows[0] = np.packbits(flat, bitorder="little")

    def might_contain(self, keys: pa.Array | pa.ChunkedArray) -> Bools:
        """Return for each key whether it may have been added (no is certain). Raises: as `add`."""
        data, starts, lengths = key_bytes(keys)
        size = max(1, min(_BLOCK_KEYS, _BLOCK_CELLS // len(self._rows)))
        alive = np.arange(len(starts))
        for rounds in (min(_FIRST_ROUNDS, self.hashes), self.hashes):
            hit = np.zeros(len(alive), dtype=np.bool_)
            for block, chain in _blocks(data, starts[alive], lengths[alive], size):
                hit[block[self._hits(chain, rounds)]] = True
            alive = alive[hit]
        return np.bincount(alive, minlength=len(starts)) > 0

    def to_text(self) -> str:
        """Return the filter as text for the footer; the inverse of `parse`."""
        header = (_VERSION, self.hashes, _MURMUR, self.bits)
        parts = [_HEADER.pack(*header) + row.tobytes() for row in self._rows]
        if self.entries:
            counts = self.entries, self._in_last_row, len(self._rows)
            parts.insert(0, _COUNTS.pack(*header, *counts))
        return base64.b64encode(b"".join(parts)).decode("ascii")

    def __repr__(self) -> str:
        """Show the shape."""
        shape = f"BloomFilter({self.type_code}, bits={self.bits}, hashes={self.hashes}"
        return shape + (f", rows={len(self._rows)})" if self.entries else ")")

    def _hits(self, chain: _Chain, rounds: int) -> Ints:
        """Find the keys for which some row has the bits of the first `rounds` hashes."""
        hit = np.ones((len(self._rows), len(chain.length)), dtype=np.bool_)
        step = max(1, _ROUND_CELLS // max(1, hit.size))
        h = _SEED
        for done in range(0, rounds, step):
            several = [h := chain.next(h) for _ in range(min(step, rounds - done))]
            at = _positions(np.stack(several), self.bits)
            found = self._rows.take(at >> 3, axis=1) & (1 << (at & 7)).astype(np.uint8)
            hit &= found.all(axis=1)
        return np.flatnonzero(hit.any(axis=0))


def _positions(h: Words, bits: int) -> Ints:
    """|h as int32| mod bits; numpy divides by a scalar faster than it takes the remainder."""
    size = np.abs(h.view(np.int32)).view(np.uint32)  # |-2**31| wraps to itself: 2**31 unsigned
    divisor = np.uint32(bits)
    return (size - size // divisor * divisor).astype(np.int64)


def _mixed_words(data: Bytes, at: Ints) -> Words:
    """Read little-endian words at any byte positions, aligned or not, and mix them."""
    view: Words = np.ndarray((len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))
    k = view[at].astype(np.uint32)
    k *= _M
    k ^= k >> 24
    k *= _M
    return k


def _blocks(data: Bytes, starts: Ints, lengths: Ints, size: int) -> Iterator[tuple[Ints, _Chain]]:
    """Split the keys, by descending word count, into blocks of (row numbers, chain)."""
    most = (lengths >> 2).max(initial=0)
    fewer = (most - (lengths >> 2)).astype(np.min_scalar_type(most))  # small ints sort by radix
    order = np.argsort(fewer, kind="stable")
    for begin in range(0, len(order), size):
        block = order[begin : begin + size]
        yield block, _Chain.cut(data, starts[block], lengths[block])


def key_bytes(keys: pa.Array | pa.ChunkedArray) -> tuple[Bytes, Ints, Ints]:
    """Return the keys' bytes, and the start and length of each key."""
    kind = keys.type.value_type if pa.types.is_dictionary(keys.type) else keys.type
    if kind not in (pa.string(), pa.large_string(), pa.string_view()):
        raise InvalidInput(f"record keys must be strings, not {keys.type}; cast them first")
    array = keys.cast(pa.large_string())
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    _refuse("null", np.asarray(array.is_null()))
    _, offsets, data = array.buffers()
    if not len(array):  # an empty array may have no buffers
        return np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)
    edges = np.frombuffer(offsets, dtype=np.int64)[array.offset :][: len(array) + 1]
    _refuse("empty", edges[1:] == edges[:-1])
    return np.frombuffer(data or b"", dtype=np.uint8), edges[:-1], np.diff(edges)


def _refuse(what: str, bad: Bools) -> None:
    if bad.any():
        where = f"{bad.sum()} of {len(bad)} rows, first in row {bad.argmax()}"
        raise InvalidInput(f"record key is {what} in {where}; give every row a key")


def _require(met: bool, otherwise: str) -> None:
    if not met:
        raise InvalidTable(f"the bloom filter is {otherwise}; the file is damaged or not Hudi's")


def _parsed_rows(data: bytes, start: int, count: int, bits: int) -> Bytes:
    """Read `count` rows from byte `start` on, each after a copy of the header."""
    width = _HEADER.size + -(-bits // 8)
    rest = len(data) - start
    _require(rest == count * width, f"of {rest} bytes, but {count} rows take {count * width}")
    table = np.frombuffer(data, dtype=np.uint8, offset=start).reshape(count, width)
    same = table[:, : _HEADER.size] == np.frombuffer(data, np.uint8, _HEADER.size)
    _require(bool(same.all()), "of rows whose bits or hashes differ from the header's")
    return table[:, _HEADER.size :].copy()
