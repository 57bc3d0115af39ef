"""The raw limit: rewrite the Parquet file of every touched day, and nothing else.

No writer would do this: there is no index, no timeline, no commit and no sync; a crash loses the
table. It shows what the Parquet work of an upsert costs, in two threads, with and without Hudi's
five meta columns.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from .workload import DAYS, KEY, PARTITION, SCHEMA

_CONSTANT = ["_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_file_name"]
_DICTIONARIES = [*_CONSTANT, PARTITION]
_THREADS = 2


class Raw:
    """One file per day; an upsert replaces the rows of its keys."""

    def __init__(self, folder: Path, *, meta: bool) -> None:
        self._folder, self._meta = folder / "table", meta
        self._folder.mkdir()
        self._version = 0

    def load(self, rows: pa.Table) -> None:
        """Write the day files: sorted by key with meta columns, as the rows come without."""
        self._each_day(rows, self._first)

    def upsert(self, rows: pa.Table) -> None:
        """Rewrite the day files."""
        self._version += 1
        self._each_day(rows, self._rewrite)

    def rows(self) -> pa.Table:
        """Return what the newest files have."""
        newest = [self._newest(day) for day in DAYS]
        return pa.concat_tables(parquet.read_table(p, columns=SCHEMA.names) for p in newest if p)

    def _each_day(self, rows: pa.Table, work) -> None:
        days = rows[PARTITION]
        with ThreadPoolExecutor(_THREADS) as pool:
            jobs = [pool.submit(work, day, rows.filter(pc.equal(days, day))) for day in DAYS]
        for job in jobs:
            job.result()

    def _first(self, day: str, rows: pa.Table) -> None:
        if rows.num_rows:
            self._write(day, self._with_meta(day, rows.sort_by(KEY)) if self._meta else rows)

    def _rewrite(self, day: str, rows: pa.Table) -> None:
        old = self._newest(day)
        if not rows.num_rows:
            return
        new = self._with_meta(day, rows) if self._meta else rows
        if old is not None:
            stored = parquet.read_table(old, use_threads=False)
            replaced = pc.is_in(stored[KEY], value_set=rows[KEY])
            new = pa.concat_tables([stored.filter(pc.invert(replaced)), new])
        self._write(day, new)

    def _newest(self, day: str) -> Path | None:
        return max(self._folder.glob(f"{day}_*"), default=None)

    def _write(self, day: str, rows: pa.Table) -> None:
        path = self._folder / f"{day}_{self._version:04d}.parquet"
        dictionaries = _DICTIONARIES if self._meta else [PARTITION]
        parquet.write_table(rows, path, compression="snappy", use_dictionary=dictionaries)

    def _with_meta(self, day: str, rows: pa.Table) -> pa.Table:
        count, instant = rows.num_rows, f"{20240101000000000 + self._version}"
        constants = [instant, day, f"{day}_{self._version:04d}.parquet"]
        time, partition, name = (pa.repeat(pa.scalar(text), count) for text in constants)
        numbers = pa.array(np.arange(count)).cast(pa.string())
        seqno = pc.binary_join_element_wise(f"{instant}_0_", numbers, "")
        meta = [time, seqno, rows[KEY].combine_chunks(), partition, name]
        names = [_CONSTANT[0], "_hoodie_commit_seqno", "_hoodie_record_key", *_CONSTANT[1:]]
        return pa.table([*meta, *rows.columns], names=[*names, *rows.column_names])
