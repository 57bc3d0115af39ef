"""How the columns change the cost of an upsert: `python benchmarks/widths.py [--kinds wide]`.

| kind | columns beside key, day and ts |
| --- | --- |
| narrow | a double, an integer, a text of 40 characters |
| wide | 200: doubles, integers and short texts in turn |
| long texts | one of 2,000 characters |
| nested | a struct, a list of doubles and a list of structs |
| decimals | four, of 9 to 38 digits |
| maps | one of texts to doubles |

Ours and delta-rs (tuned, as in `upserts.py`) take turns with each batch: half of its rows are
updates, and it touches all eight days. The first batch warms up. Measured is the CPU time of this
process with all its threads; DuckDB computes both tables from the batches. Prints Markdown.
`--profile KIND` prints where ours spends its time.
"""

import argparse
import cProfile
import os
import pstats
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
from measuring.in_process import TUNED, delta_rows, merge, our_rows
from measuring.workload import DAYS, KEY, ORDERING, PARTITION

import hoodie_nb as hn

Columns = Mapping[str, pa.Array]
ROUNDS = 5
_PLAIN = "narrow"


# --- the kinds of columns: each makes the columns of so many rows ---------------------------------


def doubles(rng: np.random.Generator, count: int) -> pa.Array:
    """Return random doubles."""
    return pa.array(rng.random(count))


def integers(rng: np.random.Generator, count: int) -> pa.Array:
    """Return random integers below a million."""
    return pa.array(rng.integers(0, 1_000_000, count, dtype=np.int32))


def texts(rng: np.random.Generator, count: int, length: int) -> pa.Array:
    """Return random texts of equal length."""
    letters = rng.integers(97, 123, size=count * length, dtype=np.uint8)
    ends = np.arange(0, (count + 1) * length, length, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(letters))


def lists(rng: np.random.Generator, count: int, inside: Callable[[int], pa.Array]) -> pa.Array:
    """Return lists of zero to five values."""
    ends = np.append(0, np.cumsum(rng.integers(0, 6, count))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), inside(int(ends[-1])))


def narrow(rng: np.random.Generator, count: int) -> Columns:
    """Return three columns."""
    return {"a": doubles(rng, count), "b": integers(rng, count), "c": texts(rng, count, 40)}


def wide(rng: np.random.Generator, count: int) -> Columns:
    """Return 200 columns."""
    kinds = (doubles, integers, lambda rng, count: texts(rng, count, 8))
    return {f"c{n:03d}": kinds[n % 3](rng, count) for n in range(200)}


def long_texts(rng: np.random.Generator, count: int) -> Columns:
    """Return a column of 2 kB each."""
    return {"a": texts(rng, count, 2000)}


def structs(rng: np.random.Generator, count: int) -> pa.Array:
    """Return structs of a number and a text."""
    fields = [integers(rng, count), texts(rng, count, 10)]
    return pa.StructArray.from_arrays(fields, names=["x", "y"])


def nested(rng: np.random.Generator, count: int) -> Columns:
    """Return a struct, a list and a list of structs."""
    return {
        "a": structs(rng, count),
        "b": lists(rng, count, lambda size: doubles(rng, size)),
        "c": lists(rng, count, lambda size: structs(rng, size)),
    }


def decimals(rng: np.random.Generator, count: int) -> Columns:
    """Return decimals of 9, 18, 28 and 38 digits."""
    cents = pa.array(rng.integers(0, 10**7, count)).cast(pa.decimal128(38, 2))
    return {f"d{digits}": cents.cast(pa.decimal128(digits, 2)) for digits in (9, 18, 28, 38)}


def maps(rng: np.random.Generator, count: int) -> Columns:
    """Return maps of zero to five texts to doubles."""
    ends = np.append(0, np.cumsum(rng.integers(0, 6, count))).astype(np.int32)
    keys = pc.binary_join_element_wise("k", pa.array(np.arange(ends[-1])).cast(pa.string()), "")
    return {"a": pa.MapArray.from_arrays(pa.array(ends), keys, doubles(rng, int(ends[-1])))}


KINDS: Mapping[str, tuple[Callable[[np.random.Generator, int], Columns], int]] = {
    _PLAIN: (narrow, 100_000),
    "wide": (wide, 20_000),
    "long texts": (long_texts, 20_000),
    "nested": (nested, 100_000),
    "decimals": (decimals, 100_000),
    "maps": (maps, 100_000),
}


# --- measuring -----------------------------------------------------------------------------------


def rows(kind: str, ids: np.ndarray, ts: int) -> pa.Table:
    """Return a row per id; the day of a key never changes."""
    keys = pa.array(np.char.mod("k%012d", ids).astype(object), pa.string())
    days = pa.array(np.array(DAYS, dtype=object)[ids % len(DAYS)], pa.string())
    fixed = {KEY: keys, PARTITION: days, ORDERING: pa.repeat(pa.scalar(ts), len(ids))}
    return pa.table(fixed | KINDS[kind][0](np.random.default_rng((ts, len(ids))), len(ids)))


def batches(kind: str, size: int, rounds: int) -> list[pa.Table]:
    """Return a base of `size` rows and the batches, a tenth of it each, half new keys."""
    rng, half = np.random.default_rng(1), size // 20
    found = [rows(kind, np.arange(size), 0)]
    for number in range(1, rounds + 2):
        start = size + number * half
        old = rng.choice(size, half, replace=False)
        found.append(rows(kind, np.append(old, np.arange(start, start + half)), number))
    return found


def newest(given: Sequence[pa.Table]) -> tuple[int, int]:
    """Return the number of newest rows, and the sum of their hashes, by DuckDB."""
    every = pa.concat_tables(given)
    columns = ", ".join(sorted(every.column_names))
    with duckdb.connect() as connection:
        connection.register("every", every)
        last = f"(SELECT *, max({ORDERING}) OVER (PARTITION BY {KEY}) AS last FROM every)"
        count = f"SELECT count(*), sum(hash({columns})::HUGEINT) FROM {last}"
        return connection.execute(f"{count} WHERE {ORDERING} = last").fetchone()


def check(arm: str, stored: pa.Table, given: Sequence[pa.Table]) -> None:
    """End the benchmark if a table has not the newest row of each key."""
    typed, wanted = stored.select(given[0].column_names).cast(given[0].schema), newest(given)
    if newest([typed]) != wanted or typed.num_rows != wanted[0]:
        raise SystemExit(f"{arm}: the table is not what the batches say")


def cpu_ms(work: Callable[[], object]) -> float:
    """Return the CPU milliseconds of this process for some work."""
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)


def new_table(folder: Path, base: pa.Table) -> hn.Table:
    """Return our table with the base."""
    keys = {"record_key": KEY, "partition_by": PARTITION, "ordering": ORDERING}
    table = hn.Table.create(folder / "ours", schema=base.schema, **keys)
    table.insert(base)
    return table


def measure(kind: str, size: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the CPU milliseconds of each batch, ours and of delta-rs."""
    base, *later = batches(kind, size, rounds)
    with tempfile.TemporaryDirectory(prefix="widths-") as name:
        table, delta = new_table(Path(name), base), Path(name, "delta")
        write_deltalake(delta, base, partition_by=[PARTITION], writer_properties=TUNED)
        costs: dict[str, list[float]] = {"ours": [], "delta": []}
        steps = {"ours": table.upsert, "delta": lambda batch: merge(delta, batch, TUNED)}
        for number, batch in enumerate(later):
            for arm in ("ours", "delta") if number % 2 else ("delta", "ours"):
                costs[arm].append(cpu_ms(lambda arm=arm, batch=batch: steps[arm](batch)))
        check("ours", our_rows(table.path), [base, *later])
        check("delta-rs", delta_rows(delta), [base, *later])
    return costs["ours"][1:], costs["delta"][1:]


def profile(kind: str, lines: int = 20) -> None:
    """Print the profile of three upserts into our table."""
    base, warm_up, *later = batches(kind, KINDS[kind][1], 3)
    with tempfile.TemporaryDirectory(prefix="widths-") as name:
        table = new_table(Path(name), base)
        table.upsert(warm_up)
        with cProfile.Profile() as profiler:
            for batch in later:
                table.upsert(batch)
    for order in ("tottime", "cumtime"):
        pstats.Stats(profiler).sort_stats(order).print_stats(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--profile", choices=list(KINDS))
    asked = parser.parse_args()
    if asked.profile:
        return profile(asked.profile)
    head = ("columns", "rows + batch", "ours, CPU ms", "delta-rs tuned, CPU ms", "ratio", "spread")
    print(f"Load {os.getloadavg()[0]:.1f} before.\n\n| {' | '.join(head)} |\n{'|---' * 6}|")
    for kind in asked.kinds.split(","):
        size = KINDS[kind][1]
        ours, delta = measure(kind, size, asked.rounds)
        ratios = [a / b for a, b in zip(ours, delta, strict=True)]
        shown = f"{median(ours):,.0f} | {median(delta):,.0f} | {median(ratios):.2f}"
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        print(f"| {kind} | {size:,} + {size // 10:,} | {shown} | {spread} |", flush=True)
    print(f"\nLoad {os.getloadavg()[0]:.1f} after.")


if __name__ == "__main__":
    main()
