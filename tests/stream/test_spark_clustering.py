"""A Spark stream goes on across clusterings, of its own process and of others."""

import pyarrow as pa
import pytest
from core.tables import Model, hudi_rows, schema_of, without_meta
from spark_source import FolderSource

import hoodie_nb as hn
from hoodie_nb import Table

pytestmark = pytest.mark.spark
SETTINGS = {
    "executors": {},
    "driver": {"placement": "driver", "pipeline": "direct"},
    "intervals": {"commit_interval": "background"},
}


def batch_of(number: int) -> list[dict[str, object]]:
    """Return the rows of a file: new keys, and updates of keys of earlier files, some late."""
    keys = [*range(40 * number, 40 * number + 40), *range(number, 40 * number, 7)]
    return [
        {"id": f"k{key:04}", "p": "xy"[key % 2], "ts": number if key % 3 else 1, "v": number}
        for key in keys
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_stream_goes_on_across_clusterings(spark, tmp_path, name):
    """Keys are updated in the files that they were moved to; rows equal the model for hudi-rs."""
    table = Table.create(
        tmp_path / "t",
        schema=schema_of(),
        record_key="id",
        partition_by="p",
        ordering="ts",
        options={"hoodie.parquet.small.file.limit": 0},
    )
    source, model = FolderSource(tmp_path / "source", schema_of()), Model()

    def feed(numbers):
        for number in numbers:
            source.add(pa.Table.from_pylist(batch_of(number), schema_of()))
            model.upsert(batch_of(number))

    def same():
        assert hudi_rows(table.path) == without_meta(table.to_arrow()) == model.snapshot()
        assert table.fsck() == []

    merged = 0
    for life in range(2):
        stream = source.stream(spark)
        with hn.write_stream(
            stream, table, checkpoint=tmp_path / "ck", trigger="0 seconds", **SETTINGS[name]
        ) as job:
            for step in range(2):
                feed(range(4 * life + 2 * step, 4 * life + 2 * step + 2))
                merged += table.cluster().files  # while it writes
                job.process_all_available()
                same()
                merged += table.cluster().files
                same()
        merged += Table.open(table.path).cluster().files
        same()
    assert merged > 4
    assert list(table.history()["operation"]).count("cluster") > 1
