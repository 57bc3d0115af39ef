"""Base files whose bytes have changed on disk are refused by name, never read as other rows."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import hudi_rows, schema_of, without_meta

from hoodie_nb import Table
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.errors import InvalidTable
from hoodie_nb.files.base_file import iterate_rows, open_base_file, read_keys, stored_schema
from hoodie_nb.types.schema import RECORD_KEY

SCHEMA = schema_of()
ROWS = pa.Table.from_pylist(
    [{"id": f"key{i}", "p": "x", "ts": i, "v": i * 7919} for i in range(2000)], SCHEMA
)


@pytest.fixture(params=["snappy", "zstd", "none"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """Return a table of one base file, in each codec."""
    made = Table.create(
        tmp_path / "t",
        schema=SCHEMA,
        record_key="id",
        partition_by="p",
        ordering="ts",
        options={"hoodie.parquet.compression.codec": request.param},
    )
    made.upsert(ROWS)
    return made


def test_a_flipped_bit_in_the_pages_is_never_read_as_a_value(table: Table) -> None:
    """Of 150 flips in pages each is refused with the file's name, and by fsck and upsert too."""
    (file,) = Path(table.path, "x").glob("*.parquet")
    whole, drawn = file.read_bytes(), random.Random(5)
    group = pq.ParquetFile(file).metadata.row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    end = max(c.data_page_offset + c.total_compressed_size for c in chunks)
    refused = 0
    for number in range(150):
        content = bytearray(whole)
        content[drawn.randrange(4, end)] ^= 1 << drawn.randrange(8)
        file.write_bytes(content)
        try:
            assert without_meta(Table.open(table.path).to_arrow()) == without_meta(ROWS)
        except InvalidTable as error:
            assert file.name in str(error)
            refused += 1
            if number % 30 == 0:
                assert any(file.name in finding.what for finding in fsck(table.path))
                with pytest.raises(InvalidTable, match=file.name):
                    Table.open(table.path).upsert(ROWS.slice(0, 1))
    assert refused > 120


def test_a_flipped_bit_in_a_page_header_never_hides_rows(table: Table) -> None:
    """Whichever bit of a page's header is damaged, merge and index read all rows of it or none."""
    (file,) = Path(table.path, "x").glob("*.parquet")
    whole, schema = file.read_bytes(), stored_schema(SCHEMA)
    group = pq.ParquetFile(file).metadata.row_group(0)
    keys, refused = read_keys(str(file)).to_pylist(), 0
    for column in map(group.column, range(group.num_columns)):
        begin = column.dictionary_page_offset or column.data_page_offset
        for bit in range(8 * 24):
            content = bytearray(whole)
            content[begin + bit // 8] ^= 1 << bit % 8
            file.write_bytes(content)
            try:
                pieces = list(iterate_rows(open_base_file(str(file)), schema, str(file)))
                assert without_meta(pa.concat_tables(pieces)) == without_meta(ROWS)
            except InvalidTable as error:
                assert file.name in str(error)
                refused += 1
            if column.path_in_schema == RECORD_KEY:
                with contextlib.suppress(InvalidTable):
                    assert read_keys(str(file)).to_pylist() == keys
    assert refused > 1000


def test_other_readers_take_files_with_checksums(table: Table) -> None:
    """hudi-rs and Arrow without verification read the same rows."""
    assert hudi_rows(table.path) == without_meta(ROWS)
    (file,) = Path(table.path, "x").glob("*.parquet")
    assert without_meta(pq.ParquetFile(file).read()) == without_meta(ROWS)


def test_a_flipped_bit_in_the_footer_is_refused(table: Table) -> None:
    """Every bit of the footer is verified (one in 131 is tried)."""
    (file,) = Path(table.path, "x").glob("*.parquet")
    whole = file.read_bytes()
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for bit in {
        *range(8 * begin, 8 * len(whole), 131),
        *range(8 * len(whole) - 64, 8 * len(whole)),
    }:
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
        with pytest.raises(InvalidTable, match=file.name):
            open_base_file(str(file))
    assert any(file.name in finding.what for finding in fsck(table.path))
    for use in (Table.to_arrow, lambda table: table.upsert(ROWS.slice(0, 1))):
        with pytest.raises(InvalidTable, match=file.name):
            use(Table.open(table.path))


def test_a_base_file_with_the_content_of_another_is_refused(table: Table) -> None:
    """A file that was overwritten with the previous slice would restore old values."""
    (old,) = Path(table.path, "x").glob("*.parquet")
    table.upsert(ROWS)
    (new,) = {*Path(table.path, "x").glob("*.parquet")} - {old}
    new.write_bytes(old.read_bytes())
    for use in (Table.to_arrow, lambda table: table.upsert(ROWS.slice(0, 1))):
        with pytest.raises(InvalidTable, match=f"{new.name}.*has the content of {old.name}"):
            use(Table.open(table.path))
    assert any(new.name in finding.what for finding in fsck(table.path))


def test_a_base_file_without_record_keys_is_refused(table: Table) -> None:
    """A file of another engine has no footer checksum; its keys are still found."""
    (file,) = Path(table.path, "x").glob("*.parquet")
    rows = pq.ParquetFile(file).read()
    pq.write_table(rows.rename_columns({RECORD_KEY: "_hoodie_record_kez"}), file)
    with pytest.raises(InvalidTable, match=f"{file.name}.*has no column {RECORD_KEY}"):
        Table.open(table.path).upsert(ROWS.slice(0, 1))


def test_a_base_file_with_the_content_of_an_empty_one_is_refused(table: Table) -> None:
    """A file without rows carries its name in the footer, also one that a repair has written."""
    table.delete(ROWS)
    empty = newest_file(table)
    table.upsert(ROWS)
    full = newest_file(table)
    whole, nothing = full.read_bytes(), empty.read_bytes()
    full.write_bytes(nothing)
    for use in (Table.to_arrow, lambda table: table.upsert(ROWS.slice(0, 1))):
        with pytest.raises(InvalidTable, match=f"{full.name}.*has the content of {empty.name}"):
            use(Table.open(table.path))
    assert any(full.name in finding.what for finding in fsck(table.path))
    full.write_bytes(whole)
    assert fsck(table.path) == []
    for file in Path(table.path, "x").glob("*.parquet"):
        file.unlink()
    Table.open(table.path).fsck(repair="accept_loss")
    repaired = newest_file(table)
    repaired.write_bytes(nothing)
    with pytest.raises(InvalidTable, match=f"{repaired.name}.*has the content of {empty.name}"):
        Table.open(table.path).upsert(ROWS)


def newest_file(table: Table) -> Path:
    """Return the base file of the newest instant."""
    found = Path(table.path, "x").glob("*.parquet")
    return max(found, key=lambda file: file.stem.rpartition("_")[2])


@pytest.mark.parametrize("entry", [{b"k\xff": b"v"}, {b"k": b"v\xff"}])
def test_a_footer_that_is_not_utf8_is_refused(table: Table, entry: dict[bytes, bytes]) -> None:
    """A file of another engine with a footer key or value of other bytes is named."""
    (file,) = Path(table.path, "x").glob("*.parquet")
    rows = pq.ParquetFile(file).read()
    with pq.ParquetWriter(file, rows.schema, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({"k1": "v1"})
    ((key, value),) = entry.items()
    swapped = (
        file.read_bytes().replace(b"k1", key.ljust(2, b"_")).replace(b"v1", value.ljust(2, b"_"))
    )
    file.write_bytes(swapped)
    for use in (Table.to_arrow, lambda table: table.upsert(ROWS.slice(0, 1))):
        with pytest.raises(InvalidTable, match=file.name):
            use(Table.open(table.path))
    assert any(file.name in finding.what for finding in fsck(table.path))
