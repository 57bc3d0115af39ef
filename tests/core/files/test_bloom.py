"""The bloom filter, compared with Hadoop's class, Java's tables and a slow twin in plain Python."""

import base64
import math
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoodie_nb.errors import InvalidConfig, InvalidInput, InvalidTable
from hoodie_nb.files.bloom import DYNAMIC, SIMPLE, BloomFilter

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView
    from pyspark.sql import SparkSession

FIXTURES = Path(__file__).parents[2] / "fixtures"
TABLES = ["v6_nonpartitioned", "v6_simplekeygen_nonhivestyle_overwritetable"]
ODD_KEYS = ["a", "ab", "abc", "é", "日本語", "ключ-7", "🜁🜂", "ÿþ", "x" * 200, "id:1,part:ä"]

texts = st.text(min_size=1, max_size=40)
key_lists = st.lists(texts, max_size=60)
shapes = st.sampled_from([(50, None), (1000, None), (5, 12), (5, 20), (7, 3), (20, 1000)])


def strings(keys: list[str]) -> pa.Array:
    """Return the column of keys, typed even if it is empty."""
    return pa.array(keys, pa.string())


def bloom_of(keys: list[str], entries: int = 50, max_entries: int | None = None) -> BloomFilter:
    """Build a filter of the keys; with `max_entries` a growing one, as Java writes it."""
    bloom = BloomFilter.sized(entries, 1e-3)
    if max_entries is not None:
        return BloomFilter.parse(SlowDynamic(bloom, keys, entries, max_entries).to_text(), DYNAMIC)
    bloom.add(strings(keys))
    return bloom


# --- a slow twin: Hadoop's hash and Hudi's row choice, one key and one byte at a time ---


def int8(byte: int) -> int:
    """Read a byte as Java does."""
    return byte - 256 if byte > 127 else byte


def murmur(data: bytes, seed: int) -> int:
    """Hash as `org.apache.hadoop.util.hash.MurmurHash`, modulo 2**32."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = seed ^ len(data)
    for at in range(0, len(data) // 4 * 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    left = len(data) % 4
    for back in range(left, 0, -1):
        h ^= int8(data[-back]) << 8 * (back - 1) & mask
    if left:
        h = h * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def slow_positions(key: str, bits: int, hashes: int) -> list[int]:
    """Chain the hashes; Java's `Math.abs(h % bits)` truncates towards zero."""
    h, found = 0, []
    for _ in range(hashes):
        h = murmur(key.encode(), h)
        found.append(abs(int(math.fmod(h - 2**32 if h >= 2**31 else h, bits))))
    return found


class SlowDynamic:
    """Hudi's `InternalDynamicBloomFilter`, key by key."""

    def __init__(self, shape: BloomFilter, keys: list[str], entries: int, most: int) -> None:
        """Copy the bits and hashes of a filter, then add the keys."""
        self.bits, self.hashes = shape.bits, shape.hashes
        self.entries, self.max_entries = entries, most
        self.rows: list[set[int]] = [set()]
        self.in_last_row, self.reached_max, self.turn = 0, False, 0
        for key in keys:
            self.active().update(slow_positions(key, self.bits, self.hashes))
            self.in_last_row += 1

    def active(self) -> set[int]:
        """Pick the row for the next key."""
        if self.reached_max:
            self.turn += 1
            return self.rows[(self.turn - 1) % len(self.rows)]
        if self.in_last_row < self.entries:
            return self.rows[-1]
        if len(self.rows) * self.entries >= self.max_entries:
            self.reached_max = True
            return self.rows[0]
        self.rows.append(set())
        self.in_last_row = 0
        return self.rows[-1]

    def to_text(self) -> str:
        """Write header, counts and rows."""
        header = struct.pack(">iibi", -1, self.hashes, 1, self.bits)
        data = header + struct.pack(">iii", self.entries, self.in_last_row, len(self.rows))
        for row in self.rows:
            number = sum(1 << bit for bit in row)
            data += header + number.to_bytes((self.bits + 7) // 8, "little")
        return base64.b64encode(data).decode()


# --- oracles ---


def hadoop_bytes(jvm: "JVMView", bloom: BloomFilter, keys: list[str]) -> bytes:
    """Let Hadoop's own class build and write the filter."""
    package = jvm.org.apache.hadoop.util.bloom
    java = package.BloomFilter(bloom.bits, bloom.hashes, 1)
    for key in keys:
        java.add(package.Key(key.encode()))
    out = jvm.java.io.ByteArrayOutputStream()
    java.write(jvm.java.io.DataOutputStream(out))
    return bytes(out.toByteArray())


@pytest.mark.parametrize("entries", [1, 37, 1000])
def test_simple_filter_equals_hadoops_byte_for_byte(spark: "SparkSession", entries: int) -> None:
    """A SIMPLE filter has exactly the bytes that Hadoop's BloomFilter writes for the same keys."""
    keys = [*ODD_KEYS, *(f"key-{n:03d}" * (1 + n % 4) for n in range(60))]
    bloom = BloomFilter.sized(entries)
    bloom.add(strings(keys))
    expected = hadoop_bytes(spark._jvm, bloom, keys)
    assert base64.b64decode(bloom.to_text()) == expected


@pytest.mark.parametrize("table", TABLES)
def test_java_written_filters_are_rebuilt_byte_for_byte(table: str, tmp_path: Path) -> None:
    """Java's default filter, rebuilt by the slow twin, is the footer's, and its keys are found."""
    with zipfile.ZipFile(FIXTURES / f"{table}.zip") as archive:
        archive.extractall(tmp_path)
    files = [path for path in (tmp_path / table).rglob("*.parquet") if ".hoodie" not in path.parts]
    assert files
    for path in files:
        footer = pq.read_metadata(path).metadata
        text = footer[b"org.apache.hudi.bloomfilter"].decode()
        keys = pq.read_table(path, columns=["_hoodie_record_key"]).column(0)
        sized = BloomFilter.sized(60_000)
        assert SlowDynamic(sized, keys.to_pylist(), 60_000, 100_000).to_text() == text
        assert footer[b"hoodie_bloom_filter_type_code"].decode() == DYNAMIC
        assert BloomFilter.parse(text, DYNAMIC).might_contain(keys).all()
        sized.add(keys)  # the same bits in the one row
        assert base64.b64decode(sized.to_text()) == base64.b64decode(text)[25:]


def test_keys_of_every_length_up_to_200_equal_the_slow_twin() -> None:
    """Whole words, tails and their sign extension are correct for each key length in bytes."""
    letters = np.random.default_rng(24).integers(1, 0x2FF, (200, 200))
    keys = ["".join(map(chr, row[: n + 1])) for n, row in enumerate(letters)]
    assert max(len(key.encode()) for key in keys) > 300
    bloom = bloom_of(keys, 300)
    twin = SlowDynamic(bloom, keys, 300, 1)
    assert base64.b64decode(bloom.to_text()) == base64.b64decode(twin.to_text())[25:]


# --- properties ---


@given(keys=key_lists, others=key_lists, shape=shapes)
def test_no_key_that_was_added_is_denied(
    keys: list[str], others: list[str], shape: tuple[int, int | None]
) -> None:
    """Added keys are "maybe", with any other keys in the probe and after a round trip."""
    bloom = bloom_of(keys, *shape)
    again = BloomFilter.parse(bloom.to_text(), bloom.type_code)
    for each in (bloom, again):
        assert each.might_contain(strings(keys + others))[: len(keys)].all()


@given(keys=key_lists, shape=shapes)
def test_probing_equals_the_definition(keys: list[str], shape: tuple[int, int | None]) -> None:
    """A key is "maybe" exactly when one row has all its bits."""
    bloom = bloom_of(keys[::2], *shape)
    slow = SlowDynamic(bloom, keys[::2], bloom.entries or len(keys), shape[1] or 0)
    bits_of = [slow_positions(key, bloom.bits, bloom.hashes) for key in keys]
    expected = [any(row.issuperset(bits) for row in slow.rows) for bits in bits_of]
    assert bloom.might_contain(strings(keys)).tolist() == expected


@given(keys=key_lists, shape=shapes)
def test_parse_is_the_inverse_of_to_text(keys: list[str], shape: tuple[int, int | None]) -> None:
    """A parsed filter writes the text it came from and has the same shape."""
    bloom = bloom_of(keys, *shape)
    again = BloomFilter.parse(bloom.to_text(), bloom.type_code)
    assert again.to_text() == bloom.to_text()
    assert repr(again) == repr(bloom)


def test_batches_and_layouts_of_the_keys_do_not_matter() -> None:
    """Slices, chunks, dictionaries and wide or viewed strings give the same filter."""
    keys = [f"{n}-{key}" for n in range(30) for key in ODD_KEYS]
    expected = bloom_of(keys, 300).to_text()
    padded = strings(["zero", *keys, "last"])[1:-1]
    wide = pa.array(["zero", *keys, "last"], pa.large_string())[1:-1]
    chunks = pa.chunked_array([padded[:7], padded[7:7], padded[7:]])
    for layout in [padded, chunks, wide, padded.cast(pa.string_view()), padded.dictionary_encode()]:
        bloom = bloom_of([], 300)
        bloom.add(layout)
        assert bloom.to_text() == expected
        assert bloom.might_contain(layout).all()


def test_default_size_is_javas() -> None:
    """Java's defaults give the same 2 587 966 bits, 30 hashes and 431 380 characters as in Java."""
    bloom = BloomFilter.sized(60_000)
    assert (bloom.bits, bloom.hashes) == (2_587_966, 30)
    assert len(SlowDynamic(bloom, [], 60_000, 100_000).to_text()) == 431_380


def test_a_filter_is_simple() -> None:
    """A writer that knows its number of records gets the smaller type, and a small text."""
    bloom = BloomFilter.sized(1000)
    assert bloom.type_code == SIMPLE
    assert len(bloom.to_text()) < 7_240
    assert BloomFilter.sized(0).bits == BloomFilter.sized(1).bits


def test_false_positives_stay_near_the_promised_rate() -> None:
    """At 10 000 keys and p = 0.01, between half and one and a half percent of absent keys pass."""
    names = np.random.default_rng(7).permutation(60_000).astype(str)
    bloom = BloomFilter.sized(10_000, 0.01)
    bloom.add(pa.array(names[:10_000]))
    assert bloom.might_contain(pa.array(names[:10_000])).all()
    assert 0.005 < bloom.might_contain(pa.array(names[10_000:])).mean() < 0.015


IMPOSSIBLE = [(-1, 0.1), (9, 0.0), (9, 1.0), (9, math.nan), (10**9, 0.1), (9, 1e-200)]


@pytest.mark.parametrize("numbers", IMPOSSIBLE)
def test_impossible_sizes_are_refused(numbers: tuple[int, float]) -> None:
    """Sizes that give no filter readable by Hudi are refused as wrong options."""
    with pytest.raises(InvalidConfig, match="bloom filter"):
        BloomFilter.sized(*numbers)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (pa.array(["a", None, "b", None]), "null in 2 of 4 rows, first in row 1"),
        (pa.array(["a", "b", ""]), "empty in 1 of 3 rows, first in row 2"),
        (pa.array(["", ""]), "empty in 2 of 2 rows"),
        (pa.array([1, 2]), "must be strings, not int64"),
        (pa.array([], pa.binary()), "must be strings"),
    ],
)
def test_a_batch_with_an_invalid_key_is_refused_as_a_whole(keys: pa.Array, message: str) -> None:
    """One bad key makes the batch fail, names its row, and does not change the filter."""
    bloom = bloom_of(["x"], 2, 10)
    before = bloom.to_text()
    for work in (bloom.add, bloom.might_contain):
        with pytest.raises(InvalidInput, match=message):
            work(keys)
    assert bloom.to_text() == before


def test_no_keys_change_nothing() -> None:
    """An empty column is not an error and changes nothing."""
    for empty in (strings([]), pa.chunked_array([], pa.string())):
        bloom = bloom_of(["x"])
        bloom.add(empty)
        assert bloom.to_text() == bloom_of(["x"]).to_text()
        assert bloom.might_contain(empty).shape == (0,)


def simple(version: int = -1, hashes: int = 3, kind: int = 1, bits: int = 16) -> bytes:
    """Return a SIMPLE filter with two bytes of bits, by default a valid one."""
    return struct.pack(">iibi", version, hashes, kind, bits) + b"\x01\x80"


def dynamic(entries: int = 5, in_last_row: int = 1, rows: int = 1, row: bytes = b"") -> bytes:
    """Return a DYNAMIC_V0 filter with one row, by default a valid one."""
    return simple()[:13] + struct.pack(">iii", entries, in_last_row, rows) + (row or simple())


@pytest.mark.parametrize(
    ("data", "type_code", "message"),
    [
        (simple()[:12], SIMPLE, "cut short at 12 bytes"),
        (simple() + b"\0", SIMPLE, "16 bytes, but 1 rows take 15"),
        (simple(version=-2), SIMPLE, "version -2"),
        (simple(kind=0), SIMPLE, "hash type 0"),
        (simple(hashes=0), SIMPLE, "0 hashes"),
        (simple(hashes=2**31 - 1), SIMPLE, "2147483647 hashes"),
        (simple(bits=-8), SIMPLE, "-8 bits"),
        (simple(bits=2**31 - 1), SIMPLE, "268435469"),
        (simple(), DYNAMIC, "cut short at 15 bytes"),
        (dynamic(rows=0), DYNAMIC, "0 rows"),
        (dynamic(rows=2**31 - 1), DYNAMIC, "2147483647 rows take"),
        (dynamic(entries=0), DYNAMIC, "0 keys each"),
        (dynamic(in_last_row=-1), DYNAMIC, "-1 in the last"),
        (dynamic(row=simple(hashes=4)), DYNAMIC, "differ from the header"),
        (simple(), "RIBBON", "unknown type 'RIBBON'"),
    ],
)
def test_damage_is_named(data: bytes, type_code: str, message: str) -> None:
    """Each kind of damage to a filter has its own message."""
    with pytest.raises(InvalidTable, match=message):
        BloomFilter.parse(base64.b64encode(data).decode(), type_code)


@pytest.mark.parametrize("text", ["é", "====", "AAA", "AA\nAA", "_-_-"])
def test_text_that_is_not_base64_is_refused(text: str) -> None:
    """Only standard base64 without line breaks is accepted as a filter's text."""
    with pytest.raises(InvalidTable, match="not base64"):
        BloomFilter.parse(text, SIMPLE)


def test_right_headers_parse() -> None:
    """The bytes used by the damage tests are valid, and the type's case does not matter."""
    for data, code in ((simple(), "simple"), (dynamic(), "dynamic_v0")):
        text = base64.b64encode(data).decode()
        assert BloomFilter.parse(text, code).to_text() == text


@given(shape=shapes, at=st.integers(0, 60), value=st.binary(max_size=8), whole=st.booleans())
def test_damaged_bytes_never_hang_or_crash(
    shape: tuple[int, int | None], at: int, value: bytes, whole: bool
) -> None:
    """Damage gives either InvalidTable or a usable filter of the text's own size."""
    data = base64.b64decode(bloom_of(ODD_KEYS, *shape).to_text())
    damaged = data[:at] + value + (data[at + len(value) :] if whole else b"")
    text = base64.b64encode(damaged).decode()
    for type_code in (SIMPLE, DYNAMIC):
        try:
            found = BloomFilter.parse(text, type_code)
        except InvalidTable:
            continue
        assert found.to_text() == text
        assert len(found.might_contain(strings(ODD_KEYS))) == len(ODD_KEYS)
        found.add(strings(["new"]))
        assert found.might_contain(strings(["new"])).all()
