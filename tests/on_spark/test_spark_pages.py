"""Damaged pages, read by Spark."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hoodie_nb as hn

SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64())])
PLAIN = {"hoodie.parquet.compression.codec": "none"}  # else the codec might notice the damage


def test_a_flipped_bit_in_a_page_is_refused_by_a_snapshot(spark, tmp_path):
    """Spark verifies the checksums of pages: it raises, naming the file, and changes no value."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", options=PLAIN)
    table.insert(pa.table({"id": [f"k{n:04}" for n in range(1000)], "v": range(1000)}, SCHEMA))
    assert table.to_spark(spark).agg({"v": "sum"}).collect()[0][0] == sum(range(1000))
    (file,) = (tmp_path / "t").glob("*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    column = group.column(group.num_columns - 1)
    content = bytearray(file.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 5] ^= 1
    file.write_bytes(content)
    with pytest.raises(Exception, match=file.name) as caught:
        table.to_spark(spark).agg({"v": "sum"}).collect()
    assert "CRC" in str(caught.value) or "checksum" in str(caught.value)
