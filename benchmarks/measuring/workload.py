"""Workload U: a base table in eight days, and batches of which half the rows are new keys.

Columns: key `k%012d`, day (the partition), ts (later in each batch than in anything before), v_d,
v_i, and two random texts of 20 and 40 characters. The updated keys are distinct and favour recent
days: a day's weight is 1 / (age + 1) ** 1.2. The partition of a key never changes. Every batch
touches all eight days, so a copy-on-write writer rewrites the whole table.

| name | base | batches |
| --- | --- | --- |
| U | 2,000,000 | 5 x 200,000 |
| S | 2,000,000 | 20 x 20,000 |
| small | 200,000 | 5 x 20,000 |
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

DAYS = [f"2024-01-{day:02d}" for day in range(1, 9)]
KEY, PARTITION, ORDERING = "key", "day", "ts"
SCHEMA = pa.schema(
    [
        (KEY, pa.string()),
        (PARTITION, pa.string()),
        (ORDERING, pa.int64()),
        ("v_d", pa.float64()),
        ("v_i", pa.int32()),
        ("v_s20", pa.string()),
        ("v_s40", pa.string()),
    ]
)
DDL = "key string, day string, ts bigint, v_d double, v_i int, v_s20 string, v_s40 string"
_DAY_MS, _FIRST_MS = 86_400_000, 1_704_067_200_000
_BATCH_MS = 30 * _DAY_MS  # a batch is later than all rows before it
_ROW_GROUP_ROWS = 250_000
_LETTERS = np.frombuffer(
    b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ__", dtype="S1"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """How many rows the base and each batch have, and the seed of all that is random."""

    base: int = 2_000_000
    batch: int = 200_000
    batches: int = 5
    seed: int = 20260717

    def __str__(self) -> str:
        return f"{self.base:,} rows + {self.batches} batches of {self.batch:,}"

    def as_dict(self) -> dict[str, int]:
        """Return the sizes and the seed."""
        return asdict(self)


def make_files(folder: Path, shape: Shape) -> list[Path]:
    """Write the base and the batches as Parquet files; return their paths, the base first."""
    rng = np.random.default_rng(shape.seed)
    days = rng.integers(0, len(DAYS), shape.base).astype(np.int8)  # of each id
    ids = rng.permutation(shape.base)
    paths = [_write(folder / "base.parquet", _rows(rng, ids, days[ids], 0))]
    for number in range(shape.batches):
        old = _updated(rng, days, shape.batch // 2)
        added = shape.batch - len(old)
        new = np.arange(len(days), len(days) + added)
        newer = rng.choice(len(DAYS), size=added, p=_weights()).astype(np.int8)
        days = np.concatenate([days, newer])
        ids = np.concatenate([old, new])
        rng.shuffle(ids)
        rows = _rows(rng, ids, days[ids], (number + 1) * _BATCH_MS)
        paths.append(_write(folder / f"batch{number:02d}.parquet", rows))
    return paths


def _weights() -> np.ndarray:
    age = np.arange(len(DAYS))[::-1]
    weights = 1 / (age + 1) ** 1.2
    return weights / weights.sum()


def _updated(rng: np.random.Generator, days: np.ndarray, count: int) -> np.ndarray:
    """Return the ids of `count` distinct keys, by the weights of their days."""
    counts = rng.multinomial(count, _weights())
    pools = [np.flatnonzero(days == day) for day in range(len(DAYS))]
    drawn = zip(pools, counts, strict=True)
    chosen = [rng.choice(pool, min(n, len(pool)), replace=False) for pool, n in drawn]
    return np.concatenate(chosen)


def _rows(rng: np.random.Generator, ids: np.ndarray, day: np.ndarray, later_ms: int) -> pa.Table:
    moments = _FIRST_MS + day.astype(np.int64) * _DAY_MS + rng.integers(0, _DAY_MS, len(ids))
    columns = [
        pa.array(np.char.mod("k%012d", ids).astype(object), pa.string()),
        pa.array(np.array(DAYS, dtype=object)[day], pa.string()),
        pa.array(moments + later_ms),
        pa.array(rng.random(len(ids))),
        pa.array(rng.integers(0, 1_000_000, len(ids), dtype=np.int32)),
        _texts(rng, len(ids), 20),
        _texts(rng, len(ids), 40),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _texts(rng: np.random.Generator, count: int, length: int) -> pa.StringArray:
    """Return random texts of equal length."""
    letters = _LETTERS[rng.integers(0, len(_LETTERS), size=count * length, dtype=np.uint8)]
    ends = np.arange(0, (count + 1) * length, length, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(letters.tobytes()))


def _write(path: Path, rows: pa.Table) -> Path:
    parquet.write_table(rows, path, row_group_size=_ROW_GROUP_ROWS)
    return path
