"""Java Hudi on Spark 3.5 with its bloom index, in the environment that the oracle's tests install.

The metadata table is off, which makes Hudi faster here, and the codec is snappy, as in all arms.
"""

import os
import sys
from pathlib import Path

import pyarrow as pa

from .workload import KEY, ORDERING, PARTITION, SCHEMA

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.oracle.client import BLOOM, OPERATION, Judge
from tests.oracle.install import install

_HEAP = "-Xmx4g"  # the tests' 2 GB are too few for two million rows
_WRITE = "hoodie.datasource.write."
_OPTIONS = BLOOM | {
    "hoodie.table.name": "table",
    f"{_WRITE}recordkey.field": KEY,
    f"{_WRITE}partitionpath.field": PARTITION,
    f"{_WRITE}precombine.field": ORDERING,
    "hoodie.parquet.compression.codec": "snappy",
}


class Hudi:
    """A Spark session with Hudi's bundle, which reads a Parquet file and writes it."""

    def __init__(self, folder: Path, *, table_type: str = "COPY_ON_WRITE") -> None:
        os.environ["_JAVA_OPTIONS"] = _HEAP  # the only setting that overrides the session's own
        self._path = folder / "table"
        self._options = _OPTIONS | {f"{_WRITE}table.type": table_type}
        self._judge = Judge(install(), folder)

    def load(self, file: Path) -> None:
        """Insert the base: one file per day, as the other arms have."""
        self._write(file, "insert", "overwrite")

    def upsert(self, file: Path) -> None:
        """Upsert a batch."""
        self._write(file, "upsert", "append")

    def rows(self) -> pa.Table:
        """Return what Hudi reads."""
        return self._judge.read(self._path).select(SCHEMA.names)

    def close(self) -> None:
        """End the session."""
        self._judge.close()

    def _write(self, file: Path, operation: str, mode: str) -> None:
        request = {"do": "write", "path": str(self._path), "rows": str(file), "mode": mode}
        self._judge._ask(request | {"options": self._options | {OPERATION: operation}})
