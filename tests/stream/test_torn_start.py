"""A query that ended while Spark wrote its first offsets can be started again."""

from __future__ import annotations

import pyarrow as pa
import pytest
from spark_source import FolderSource

import hoodie_nb as hn

pytestmark = pytest.mark.spark


def test_a_half_written_first_offset_does_not_stop_the_next_start(spark, tmp_path):
    """With a hidden file in `offsets` and no batch Spark cannot start; the job removes the file."""
    schema = pa.schema([("id", pa.string()), ("v", pa.int64())])
    table = hn.Table.create(tmp_path / "t", schema=schema, record_key="id")
    source = FolderSource(tmp_path / "source", schema)
    source.add(pa.table({"id": ["a"], "v": [1]}, schema=schema))
    offsets = tmp_path / "ck" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.a-half.tmp").write_bytes(b"v1\n{")
    checkpoint = str(tmp_path / "ck")
    for count in (1, 2):
        hn.write_stream(
            source.stream(spark), table, checkpoint=checkpoint, trigger="available_now"
        ).wait(60)
        assert table.to_arrow().num_rows == count
        (offsets / ".9.a-half.tmp").write_bytes(b"v1\n{")  # with complete ones it is Spark's
        source.add(pa.table({"id": ["b"], "v": [2]}, schema=schema))
    assert (offsets / ".9.a-half.tmp").exists()
