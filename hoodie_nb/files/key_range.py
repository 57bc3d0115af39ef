"""The smallest and greatest key of a base file, in UTF-8 and in Java's UTF-16 order.

Java compares strings by UTF-16 code units, Arrow (and Hudi's row writer) by the bytes of UTF-8. The
orders differ in one case only: characters beyond U+FFFF, which are surrogates in UTF-16, sort
before U+E000 to U+FFFF in UTF-16 and after them in UTF-8.

A range in a footer does not name its order. So a key counts as inside if it is inside in either
order, and a range is written only if its ends are the same in both: then no reader excludes a key
of the file. Hudi's bloom index checks a file without a range for every key.

*Source:* HoodieBloomFilterWriteSupport, BloomIndexFileInfo.isKeyInRange, String.compareTo.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]
_DIFFER = 0xEE  # the first byte, in UTF-8, of U+E000 and of everything after it
# as bytes, U+E000 to U+FFFF (0xEE, 0xEF) move after those beyond U+FFFF (0xF0 to 0xF4)
_SWAPPED = np.arange(256, dtype=np.uint8)
_SWAPPED[0xEE:0xF0] = (0xFE, 0xFF)
_BACK = bytes([*range(0xFE), 0xEE, 0xEF])


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The ends of a set of keys in UTF-8 order (`low`, `high`) and in UTF-16 order."""

    low: str
    high: str
    java_low: str
    java_high: str

    @classmethod
    def of(cls, keys: pa.Array | pa.ChunkedArray) -> "KeyRange | None":
        """Return the range of the non-null `keys`; None if there are none."""
        ends = pc.min_max(keys).as_py()
        if ends["min"] is None:
            return None
        java = (ends["min"], ends["max"])
        if isinstance(keys, pa.ChunkedArray):
            keys = pa.concat_arrays(keys.chunks)
        if _bytes(keys).max(initial=0) >= _DIFFER:
            swapped = pc.min_max(java_order(keys)).as_py()
            java = (_text(swapped["min"]), _text(swapped["max"]))
        return cls(ends["min"], ends["max"], *java)

    def __or__(self, other: "KeyRange") -> "KeyRange":
        ends = [self.low, self.high, self.java_low, self.java_high]
        ends += [other.low, other.high, other.java_low, other.java_high]
        union = KeyRange.of(pa.array(ends))
        assert union is not None
        return union

    @property
    def in_both_orders(self) -> tuple[str, str] | None:
        """Return the smallest and greatest key if both orders agree on them."""
        agree = (self.low, self.high) == (self.java_low, self.java_high)
        return (self.low, self.high) if agree else None

    def within(self, low: str, high: str) -> bool:
        """Whether all keys are between `low` and `high` in one of the orders."""
        plain = low.encode() <= self.low.encode() and self.high.encode() <= high.encode()
        ends = java_order(pa.array([low, self.java_low, self.java_high, high])).to_pylist()
        return plain or bool(ends[0] <= ends[1] and ends[2] <= ends[3])


def inside(keys: pa.Array, low: str, high: str) -> Mask:
    """Return which keys are between `low` and `high`, in UTF-8 order or in UTF-16 order."""
    ends = pa.array([low, high])
    found = _between(keys, ends)
    if not same_in_both_orders(low, high):
        found |= _between(java_order(keys), java_order(ends))
    return found


def same_in_both_orders(low: str, high: str) -> bool:
    """Whether the same keys are between `low` and `high` in both orders."""
    return max((low + high).encode(), default=0) < _DIFFER


def _between(keys: pa.Array, ends: pa.Array) -> Mask:
    found = pc.and_(pc.greater_equal(keys, ends[0]), pc.less_equal(keys, ends[1]))
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), dtype=bool)


def java_order(keys: pa.Array) -> pa.Array:
    """Return a binary array whose order, byte by byte, is the UTF-16 order of `keys`."""
    validity, offsets, data = keys.buffers()
    buffers = [validity, offsets, pa.py_buffer(_SWAPPED[_values(data)])]
    return pa.Array.from_buffers(pa.binary(), len(keys), buffers, offset=keys.offset)


def _text(swapped: bytes) -> str:
    return swapped.translate(_BACK).decode()


def _bytes(keys: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of all the keys."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1]
    return _values(keys.buffers()[2])[offsets[0] : offsets[-1]]


def _values(data: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"" if data is None else data, np.uint8)
