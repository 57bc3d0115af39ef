"""The matrix of tables, judged by Java: it reads our histories, writes on, and we continue.

Six tables in CI; `HOODIE_NB_MATRIX=40 make oracle ARGS="-k matrix"` checks the first forty seeds,
and `HOODIE_NB_MATRIX=11,24` these two.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from core.every_type import EVERY
from core.replay import settled
from core.tables import canonical
from matrix.history import MatrixHistory
from matrix.operations import upsert
from run_matrix import explained, step

from hoodie_nb import Table
from hoodie_nb.types.schema import META_COLUMNS

from .client import AS_STORED, BLOOM, JavaError, Judge

pytestmark = pytest.mark.oracle
SEEDS = [0, 4, 8, 9, 13, 17]  # each version twice, each style of partitions once
_WRITE = "hoodie.datasource.write."
_PAYLOAD = "org.apache.hudi.common.model."
_PAYLOADS = {
    "event_time": "DefaultHoodieRecordPayload",
    "commit_time": "OverwriteWithLatestAvroPayload",
    "partial": "PartialUpdateAvroPayload",
}
STEPS = 6
_VECTORS = "spark.sql.parquet.enableVectorizedReader"


class JavaHistory(MatrixHistory):
    """A history whose rows Java can order: Java takes null for 0, and NaN for the greatest."""

    def __init__(self, folder: Path, seed: int, judge: Judge) -> None:
        super().__init__(folder, seed)
        self.judge = judge

    def cell(self, column: pa.Field) -> Any:
        """Return a random value; an ordering value is never null or NaN."""
        found = super().cell(column)
        while column.name == "ts" and (found is None or found != found):
            found = super().cell(column)
        return found

    @property
    def fixed(self) -> list[str]:
        """Return the columns that no update sets: nor the ordering column, to null."""
        return [*super().fixed, "ts"]

    def look_by_java(self) -> None:
        """Assert that Java reads the model's rows; an empty partition value is null for it."""
        found = self._read().drop_columns(list(META_COLUMNS)).to_pylist()
        names = self.shape.partition_by
        seen, wanted = (
            [{**row, **{n: None if row[n] == "" else row[n] for n in names}} for row in rows]
            for rows in (found, self.model.rows.values())
        )
        self.same(seen, wanted, "Java")

    def _read(self) -> pa.Table:
        """Return what Java reads by its defaults, or with the settings that it asks for."""
        settings: dict[str, str] = {}
        while True:
            try:
                return self.judge.read(self.table.path, **settings)
            except JavaError as error:
                more = self._asked_for(str(error))
                assert more.items() - settings.items(), error
                settings |= more

    def _asked_for(self, error: str) -> dict[str, str]:
        if "READ_ANCIENT_DATETIME" in error:  # in a file that Java itself wrote
            assert "java" in self.operations, error
            return AS_STORED
        assert f"{_VECTORS}=false" in error  # a type inside a list, map or struct was widened
        return {_VECTORS: "false"}

    def upsert_by_java(self) -> None:
        """Let Java upsert rows, each key once: of equal ones it keeps any.

        Java stops at an ordering column of dates; then our next write rolls it back.
        """
        self.operations.append("java")
        schema = self.model.schema
        of_key = {self.model.identity(row): row for row in self.rows(schema)}
        rows = pa.Table.from_pylist(list(of_key.values()), schema=schema)
        try:
            self.judge.write(self.table.path, rows, self.words)
        except JavaError as error:
            assert self.model.ordering and schema.field("ts").type == pa.date32(), error
            assert "java.time.chrono.ChronoLocalDate" in str(error)
        else:
            self.model.upsert(rows.to_pylist())

    @property
    def words(self) -> dict[str, str]:
        """Return Java's options for this table."""
        shape = self.shape
        options = {
            f"{_WRITE}recordkey.field": ",".join(shape.record_key),
            f"{_WRITE}partitionpath.field": ",".join(shape.partition_by),
            f"{_WRITE}precombine.field": shape.ordering or "",
            f"{_WRITE}hive_style_partitioning": str("hive" in shape.style).lower(),
            f"{_WRITE}partitionpath.urlencode": str(shape.style == "encoded").lower(),
            "hoodie.write.table.version": str(shape.version),
            "hoodie.write.auto.upgrade": "false",
            "hoodie.metadata.enable": "false",
            "hoodie.index.type": "BLOOM",
        }
        if shape.version == 6 or shape.merge_mode == "partial":
            options[f"{_WRITE}payload.class"] = _PAYLOAD + _PAYLOADS[shape.merge_mode]
        return {name: word for name, word in options.items() if word}


def seeds() -> list[int]:
    """Return the seeds to check: those of CI, or as many as the environment asks for."""
    wanted = [int(number) for number in os.environ.get("HOODIE_NB_MATRIX", "").split(",") if number]
    return list(range(wanted[0])) if len(wanted) == 1 else wanted or SEEDS


@pytest.mark.parametrize("seed", seeds())
def test_java_and_we_write_a_random_table(judge: Judge, tmp_path: Path, seed: int) -> None:
    """Java reads each cell as we wrote it, upserts, and we and hudi-rs read that and write on."""
    history = JavaHistory(tmp_path, seed, judge)
    with explained(history, seed):
        for _ in range(STEPS):
            step(history)
        history.look_by_java()
        history.upsert_by_java()
        history.look()
        history.operations.append("upsert")
        upsert(history)
        history.look()
        history.look_by_java()


def test_java_and_we_return_the_values_of_every_type(judge: Judge, tmp_path: Path) -> None:
    """Edge values and nulls of each type: Java reads ours, writes them itself, we read those."""
    names = {f"v_{name.replace(' ', '_')}": of for name, of in EVERY.items()}
    schema = pa.schema([("id", pa.string()), *((n, kind) for n, (kind, _) in names.items())])
    columns = [pa.array(values, kind) for kind, values in names.values()]
    rows = pa.Table.from_arrays([pa.array(["a", "b", "c"]), *columns], schema=schema)
    table = Table.create(tmp_path / "t", schema=schema, record_key="id")
    table.upsert(rows)
    wanted = canonical(map(settled, rows.to_pylist()))
    for write, settings in ((None, {}), (judge.write, AS_STORED)):
        if write is not None:
            write(table.path, rows, BLOOM)
        read = (judge.read(table.path, **settings), table.to_arrow())
        for found in (some.drop_columns(list(META_COLUMNS)).to_pylist() for some in read):
            assert canonical(map(settled, found)) == wanted
    assert len(table.history()) == 2
