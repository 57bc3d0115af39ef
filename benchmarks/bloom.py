"""Measure the bloom filter on 60 000 uuid keys, one core: `python benchmarks/bloom.py`."""

import time
import uuid
from collections.abc import Callable

import pyarrow as pa

from hoodie_nb.files.bloom import BloomFilter

KEYS = 60_000
REPEATS = 7


def uuids() -> pa.Array:
    """Return as many random keys as Hudi's default filter is sized for."""
    return pa.array([str(uuid.uuid4()) for _ in range(KEYS)])


def best_seconds(work: Callable[[], object]) -> float:
    """Return the best of some runs: noise only increases the time."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def filter_of(keys: pa.Array) -> BloomFilter:
    """Build a filter sized for the keys."""
    bloom = BloomFilter.sized(len(keys))
    bloom.add(keys)
    return bloom


def main() -> None:
    """Print one row per measurement."""
    keys, others = uuids(), uuids()
    mixed = pa.array([text[: 1 + n % 36] * (1 + n % 5) for n, text in enumerate(keys.to_pylist())])
    bloom = filter_of(keys)
    text = bloom.to_text()
    measures: list[tuple[str, Callable[[], object]]] = [
        ("build", lambda: filter_of(keys)),
        ("build, 1 to 180 bytes", lambda: filter_of(mixed)),
        ("probe, all hit", lambda: bloom.might_contain(keys)),
        ("probe, all miss", lambda: bloom.might_contain(others)),
    ]
    for name, work in measures:
        print(f"{name:<22} {KEYS / best_seconds(work) / 1e6:5.2f} Mkeys/s")
    parse_seconds = best_seconds(lambda: BloomFilter.parse(text, bloom.type_code))
    print(f"{'parse':<22} {parse_seconds * 1e3:5.2f} ms ({len(text)} characters)")
    print(f"{'write':<22} {best_seconds(bloom.to_text) * 1e3:5.2f} ms")


if __name__ == "__main__":
    main()
