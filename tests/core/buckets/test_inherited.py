"""What a file takes over from its previous slice: the range of its keys, dictionaries of texts."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import hudi_rows, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import InvalidTable
from hoodie_nb.files.base_file import open_base_file, read_footer, read_keys
from hoodie_nb.types.schema import as_type, conform

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())])
DICTIONARY = pa.dictionary(pa.int32(), pa.string())


def rows_of(keys: list[str], ts: int, part: str | None = "x") -> pa.Table:
    """Return rows with these keys."""
    return pa.table([keys, [part] * len(keys), [ts] * len(keys)], schema=SCHEMA)


def made(folder: Path, **more: object) -> Table:
    """Return an empty table."""
    keys = {"record_key": "id", "partition_by": "part", "ordering": "ts", **more}
    return Table.create(folder / "t", schema=SCHEMA, **keys)


def newest(table: Table, part: str = "x") -> str:
    """Return the path of the newest base file of a partition."""
    return str(max(Path(table.path, part).glob("*.parquet"), key=lambda p: p.name.split("_")[-1]))


@pytest.mark.parametrize("seed", range(3))
def test_the_range_in_the_footer_is_that_of_the_keys(tmp_path: Path, seed: int) -> None:
    """After any upserts and deletes, also of the ends and with texts of two orders."""
    drawn, table, stored = random.Random(seed), made(tmp_path), dict[str, int]()
    letters = ["a", "m", "z", "é", "퟿", "\uff01", "😀"][: 4 + 3 * (seed > 0)]
    for ts in range(1, 16):
        keys = sorted({"".join(drawn.choices(letters, k=3)) for _ in range(6)})
        if ts > 3 and drawn.random() < 0.5:
            ends = [min(stored), max(stored)][: 1 + (len(stored) > 4)]
            table.delete(rows_of(ends, ts).select(["id", "part"]))
            for key in ends:
                del stored[key]
        table.upsert(rows_of(keys, ts))
        stored |= dict.fromkeys(keys, ts)
        path = newest(table)
        footer, found = read_footer(open_base_file(path)), read_keys(path).to_pylist()
        assert sorted(found) == sorted(stored)
        by_java = sorted(found, key=lambda key: key.encode("utf-16-be"))
        ends_of = (min(found), max(found))
        agree = ends_of == (by_java[0], by_java[-1])
        assert (footer.min_key, footer.max_key) == (ends_of if agree else (None, None))
    assert table.fsck() == []


@pytest.mark.parametrize("part", ["x", None, ""])
def test_partition_columns_keep_their_values(tmp_path: Path, part: str | None) -> None:
    """Also null and the empty text, in rows that a merge leaves alone, changes or adds."""
    table = made(tmp_path)
    table.upsert(rows_of(["a", "b"], 1, part))
    table.upsert(rows_of(["b", "c"], 2, part))
    wanted = {"a": 1, "b": 2, "c": 2}
    expected = pa.concat_tables(rows_of([key], ts, part) for key, ts in wanted.items())
    assert without_meta(table.to_arrow()) == without_meta(expected) == hudi_rows(table.path)


def test_an_ordering_by_the_partition_column_is_compared_as_text(tmp_path: Path) -> None:
    """The column that decides is no dictionary, whatever else it is."""
    table = made(tmp_path, ordering="part")
    table.upsert(rows_of(["a"], 1))
    table.upsert(rows_of(["a", "b"], 2))
    assert sorted(table.to_arrow()["ts"].to_pylist()) == [2, 2]


def test_sequence_numbers_have_no_statistics(tmp_path: Path) -> None:
    """No query asks for them; record keys have statistics."""
    table = made(tmp_path)
    table.upsert(rows_of(["a", "b"], 1))
    group = pq.ParquetFile(newest(table)).metadata.row_group(0)
    columns = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    assert columns["_hoodie_commit_seqno"].statistics is None
    assert columns["_hoodie_record_key"].statistics.max == "b"


@pytest.mark.parametrize(
    "given",
    [
        pa.chunked_array([[1, None, 1]], pa.int64()),
        pa.chunked_array([["1", None, "1"]], pa.large_string()),
        pa.chunked_array([["1", None, "1"]]).dictionary_encode(),
        pa.chunked_array([["1", None, "1"]], pa.large_string()).dictionary_encode(),
    ],
)
def test_columns_of_other_types_become_dictionaries(given: pa.ChunkedArray) -> None:
    """A file of another engine may have the partition column as a number, or as a long text."""
    found = as_type(given, DICTIONARY)
    assert found.type == DICTIONARY
    assert found.to_pylist() == ["1", None, "1"]


def test_a_type_that_hudi_does_not_follow_is_refused_as_a_dictionary(tmp_path: Path) -> None:
    """The error names the file and the column."""
    rows = pa.table({"part": [1.5]})
    with pytest.raises(InvalidTable, match="file f has column 'part'"):
        conform(rows, pa.schema([("part", DICTIONARY)]), "base file f")
