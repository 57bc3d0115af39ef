"""Merges by condition: each row becomes what SQL's MERGE says, in one commit, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from each_fault import each_fault
from hypothesis import given, settings
from hypothesis import strategies as st
from lives import assert_at_rest, make, opened
from tables import hudi_rows, pending_names, tree, upgrade, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig, InvalidInput

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int32())])
GIVEN = SCHEMA.append(pa.field("gone", pa.bool_()))
Row = dict[str, Any]
HOWS = ["before", "after", "torn", "error", "error_after", "interrupt"]
CASES = [*((6, how) for how in HOWS), *((9, how) for how in ("before", "torn", "error_after"))]


def row(key: str, v: int | None, **more: object) -> Row:
    """Return one row; the partition depends on the key."""
    return {"id": key, "p": "xy"[ord(key[0]) % 2], "ts": 1, "v": v, **more}


def table_of(path: Path, rows: list[Row], version: int = 6, **how: Any) -> Table:
    """Return a table with the rows."""
    defined: Row = {"record_key": "id", "partition_by": "p", "ordering": "ts", **how}
    root = path / "t"
    Table.create(root, schema=SCHEMA, **defined)
    if version != 6:
        upgrade(root, version)
    table = Table.open(root)
    table.upsert(pa.Table.from_pylist(rows, SCHEMA))
    return table


def found(table: Table) -> list[Row]:
    """Return the rows by key, after comparing them with what hudi-rs reads."""
    rows = table.to_arrow(meta=False)
    if len(table.timeline()):
        assert hudi_rows(table.path) == without_meta(rows)
    assert table.fsck() == []
    return sorted(rows.to_pylist(), key=lambda each: each["id"])


# --- random tables and clauses, compared with DuckDB ----------------------------------------------

CONDITIONS = {
    "matched": [
        None,
        "source.v > target.v",
        "source.gone",
        "target.v IS NULL OR source.v = 3",
    ],
    "not_matched": [None, "source.v > 1", "NOT source.gone"],
    "not_matched_by_source": [None, "target.v > 1", "target.v IS NULL"],
}
SETS: dict[str, list[dict[str, str] | None]] = {
    "matched": [None, {"v": "source.v + target.v"}, {"v": "target.v", "ts": "source.ts + 1"}],
    "not_matched": [None, {"ts": "source.ts", "v": "source.v * 2"}, {"ts": "7"}],
    "not_matched_by_source": [{"v": "target.v + 1"}, {"ts": "9", "v": "0"}],
}
ACTIONS = {
    "matched": ["update", "delete"],
    "not_matched": ["insert"],
    "not_matched_by_source": ["update", "delete"],
}
Clause = tuple[str, str, str | None, dict[str, str] | None]


@st.composite
def clauses(draw: st.DrawFn) -> Clause:
    """Draw a clause."""
    kind = draw(st.sampled_from(sorted(ACTIONS)))
    action = draw(st.sampled_from(ACTIONS[kind]))
    values = None if action == "delete" else draw(st.sampled_from(SETS[kind]))
    return kind, action, draw(st.sampled_from(CONDITIONS[kind])), values


def side(more: st.SearchStrategy[Row]) -> st.SearchStrategy[list[Row]]:
    """Return rows with distinct keys."""
    value = st.one_of(st.none(), st.integers(0, 5))
    rows = st.builds(lambda k, v, m: row(k, v, **m), st.sampled_from("abcdefgh"), value, more)
    return st.lists(rows, max_size=8, unique_by=lambda each: each["id"])


def reachable(parts: list[Clause]) -> list[Clause]:
    """Leave out clauses after one of their kind without a condition: DuckDB refuses them."""
    found = list[Clause]()
    for part in parts:
        if not any(kind == part[0] and not where for kind, _, where, _ in found):
            found.append(part)
    return found


def in_duckdb(target: list[Row], source: list[Row], parts: list[Clause]) -> list[Row]:
    """Return the rows that DuckDB's MERGE makes."""
    with duckdb.connect() as db:
        db.register("old", pa.Table.from_pylist(target, SCHEMA))
        db.register("source", pa.Table.from_pylist(source, GIVEN))
        db.execute("create table target as select * from old")
        text = "merge into target using source on target.id = source.id and target.p = source.p"
        for kind, action, where, values in reachable(parts):
            text += f" when {kind.replace('_', ' ')}"
            text += f" and ({where})" if where else ""
            text += " then " + _in_sql(action, values)
        db.execute(text)
        return db.sql("select * from target order by id").to_arrow_table().to_pylist()


def _in_sql(action: str, values: dict[str, str] | None) -> str:
    if action == "delete":
        return "delete"
    if action == "update":
        values = values or {n: f"source.{n}" for n in ("ts", "v")}
        return "update set " + ", ".join(f"{n} = {v}" for n, v in values.items())
    values = {
        "id": "source.id",
        "p": "source.p",
        **(values or {"ts": "source.ts", "v": "source.v"}),
    }
    return f"insert ({', '.join(values)}) values ({', '.join(values.values())})"


def merging(table: Table, source: object, parts: list[Clause]) -> Any:
    """Return the builder with the clauses."""
    builder = table.merge(source)
    for kind, action, where, values in parts:
        more = {} if action == "delete" else {"set": values}
        builder = getattr(builder, f"when_{kind}_{action}")(where=where, **more)
    return builder


@pytest.mark.parametrize("small", [0, 104_857_600])
@settings(max_examples=30)
@given(
    side(st.just({})),
    side(st.fixed_dictionaries({"gone": st.booleans()})),
    st.lists(clauses(), min_size=1, max_size=4),
)
def test_any_merge_equals_duckdbs(
    new_folder: Callable[[], Path],
    small: int,
    target: list[Row],
    source: list[Row],
    parts: list[Clause],
) -> None:
    """Rows and counts are those of MERGE, with small files or without; no change, no instant."""
    options = {"hoodie.parquet.small.file.limit": small}
    table = table_of(new_folder(), target, options=options)
    before, instants = found(table), len(table.timeline())
    commit = merging(table, pa.Table.from_pylist(source, GIVEN), parts).execute()
    wanted = in_duckdb(target, source, parts)
    assert found(table) == wanted
    old, new = ({each["id"] for each in rows} for rows in (before, wanted))
    if commit is None:
        assert before == wanted and len(table.timeline()) == instants
    else:
        assert (commit.inserts, commit.deletes) == (len(new - old), len(old - new))
        assert commit.inserts + commit.deletes + commit.updates > 0


# --- where new rows go ----------------------------------------------------------------------------


def test_new_rows_go_to_the_small_file_that_is_rewritten(tmp_path: Path) -> None:
    """An instant writes one file per file group, with updates, deletes and new rows; so do later.

    Otherwise one of two files with the same file group and instant would be lost.
    """
    table = table_of(tmp_path, [row(k, 1) for k in "aceg"])
    for number in range(2, 5):
        source = [row(k, number, gone=k == "c") for k in ("a", "c", f"k{number}")]
        merge = table.merge(source).when_matched_delete(where="source.gone")
        commit = merge.when_matched_update().when_not_matched_insert(where="id <> 'c'").execute()
        assert commit is not None
        assert (commit.inserts, commit.updates, commit.deletes) == (1, 1, int(number == 2))
        assert {each["id"]: each["v"] for each in found(table)} == {
            **{"a": number, "e": 1, "g": 1},
            **{f"k{n}": n for n in range(2, number + 1)},
        }
        groups = table.file_groups()
        assert len(groups) == 1
        names = [path for path in tree(Path(table.path)) if path.endswith(".parquet")]
        assert len(names) == number
    table.upsert([row("k4", 40) | {"ts": 2}, row("e", 41) | {"ts": 2}])  # the index knows them
    assert [each["v"] for each in found(table)] == [4, 41, 1, 2, 3, 40]


def test_changes_and_older_snapshots_follow_a_merge(tmp_path: Path) -> None:
    """`changes` has the rows of a merge, and an older commit reads as before."""
    table = table_of(tmp_path, [row(k, 1) for k in "abc"])
    first = table.to_arrow(meta=True).column("_hoodie_commit_time")[0].as_py()
    commit = table.merge([row("a", 2), row("d", 3)]).when_matched_update()
    assert commit.when_not_matched_insert().execute() is not None
    changed = {r["id"]: r["_change"] for r in table.changes(since=first).to_pylist()}
    assert changed == {"a": "update", "d": "insert"}
    assert table.to_arrow(meta=False, as_of=first).num_rows == 3


# --- what a merge refuses -------------------------------------------------------------------------


def test_two_rows_of_one_key_are_refused(tmp_path: Path) -> None:
    """The error names the key; the same key in two partitions is two rows."""
    table = table_of(tmp_path, [row("a", 1)])
    twice = [row("a", 2), row("b", 1), row("a", 3)]
    with pytest.raises(InvalidInput, match=r"two rows of the source have the key 'a'"):
        table.merge(twice).when_matched_update().execute()
    other = {**row("a", 9), "p": "z"}
    commit = table.merge([row("a", 2), other]).when_matched_update().execute()
    assert commit is not None and commit.updates == 1
    assert found(table) == [row("a", 2)]


def test_one_row_changes_all_copies_of_its_key(tmp_path: Path) -> None:
    """If a key was inserted twice, both rows match."""
    table = table_of(tmp_path, [row("a", 1)])
    table.insert([row("a", 5)])
    table.merge([row("a", 1)]).when_matched_update(set={"v": "source.v + target.v"}).execute()
    assert sorted(table.to_arrow()["v"].to_pylist()) == [2, 6]


@pytest.mark.parametrize(
    ("make_merge", "message"),
    [
        (lambda t: t.merge([row("a", 1)]), "there is no clause"),
        (
            lambda t: t.merge([row("a", 1)], on="v").when_matched_delete(),
            "rows of this table match by",
        ),
        (lambda t: t.merge([row("a", 1)]).when_matched_update(set={"id": "'x'"}), "cannot be set"),
        (lambda t: t.merge([row("a", 1)]).when_matched_update(set={"w": "1"}), "not in the table"),
        (lambda t: t.merge([row("a", 1)]).when_matched_update(where="v > 1"), "no column v"),
        (lambda t: t.merge([row("a", 1)]).when_not_matched_insert(where="target.v > 1"), "target"),
        (lambda t: t.merge([{"id": "a", "p": "x"}]).when_matched_update(), "no columns"),
        (lambda t: t.merge([row("a", 1, _hoodie_is_deleted=True)]).when_matched_update(), "rename"),
        (lambda t: t.merge([row("a", 1) | {"id": None}]).when_matched_delete(), "id"),
        (lambda t: t.merge([{"ID": "a", "p": "x"}]).when_matched_delete(), "'id'"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, make_merge: Callable[[Table], Any], message: str
) -> None:
    """The error says what does not fit, and nothing is written."""
    table = table_of(tmp_path, [row("a", 1)])
    before = len(table.timeline())
    with pytest.raises((InvalidConfig, InvalidInput), match=message):
        make_merge(table).execute()
    assert len(table.timeline()) == before and found(table) == [row("a", 1)]


def test_a_spark_frame_is_refused_with_a_hint(tmp_path: Path) -> None:
    """What has a Spark session is refused before anything is read."""

    class Frame:
        sparkSession = None

    with pytest.raises(InvalidConfig, match="upsert"):
        table_of(tmp_path, []).merge(Frame())


# --- sources, names and tables --------------------------------------------------------------------


@pytest.mark.parametrize("of", [list, pd.DataFrame, pa.Table.from_pylist])
def test_sources_of_any_kind(tmp_path: Path, of: Callable[[list[Row]], object]) -> None:
    """Dicts, pandas and Arrow give the same rows, with values as constants and expressions."""
    table = table_of(tmp_path, [row("a", 1), row("c", None)])
    source, target = pc.field("source.v"), pc.field("target.v")
    merge = table.merge(of([row("a", 5), row("b", 6)]), on=["id", "p"])
    merge = merge.when_matched_update(where=source > target, set={"v": source - target})
    merge = merge.when_not_matched_insert(set={"v": 3, "ts": pc.field("ts")})
    merge.when_not_matched_by_source_update(where="v IS NULL", set={"v": 8}).execute()
    assert found(table) == [row("a", 4), row("b", 3), row("c", 8)]


def test_an_empty_source_matches_nothing(tmp_path: Path) -> None:
    """Without rows, only rows that the source lacks are changed."""
    table = table_of(tmp_path, [row("a", 1)])
    assert table.merge([]).when_matched_delete(where="source.gone").execute() is None
    assert (
        table.merge(GIVEN.empty_table()).when_matched_delete(where="source.gone").execute() is None
    )
    commit = table.merge([]).when_not_matched_by_source_delete().execute()
    assert commit is not None and commit.deletes == 1 and found(table) == []


EMPTY = {
    "Arrow": SCHEMA.empty_table(),
    "pandas": SCHEMA.empty_table().to_pandas(),
    "pandas without types": pd.DataFrame(columns=SCHEMA.names),
    "a list": [],
}


@pytest.mark.parametrize("source", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize(
    ("make_merge", "message"),
    [
        (lambda m: m.when_matched_update(set={"w": "1"}), "not in the table"),
        (lambda m: m.when_matched_update(set={"id": "'x'"}), "cannot be set"),
        (lambda m: m.when_matched_update(set={"v": "target.typo"}), "typo"),
        (lambda m: m.when_matched_delete(where="source.v >"), "when_matched_delete"),
        (lambda m: m.when_matched_delete(where=pc.field("target.typo") > 1), "typo"),
        (lambda m: m.when_not_matched_insert(where="v > 'x'"), "when_not_matched_insert"),
        (lambda m: m.when_not_matched_by_source_update(set={"v": "typo"}), "typo"),
    ],
)
def test_the_clauses_of_an_empty_source_are_checked(
    tmp_path: Path, make_merge: Callable[[Any], Any], message: str, source: object
) -> None:
    """What does not fit is refused on a day without rows, too."""
    table = table_of(tmp_path, [row("a", 1)])
    with pytest.raises((InvalidConfig, InvalidInput), match=message):
        make_merge(table.merge(source)).execute()
    assert found(table) == [row("a", 1)]


@pytest.mark.parametrize("source", EMPTY.values(), ids=EMPTY)
def test_only_columns_of_an_empty_source_that_are_not_known_are_not_checked(
    tmp_path: Path, source: object
) -> None:
    """An empty list has no columns: one that the table lacks may be right on another day."""
    table = table_of(tmp_path, [row("a", 1)])
    for where in ("source.gone", pc.field("source.gone") > 1):
        merge = table.merge(source).when_matched_delete(where=where)
        if isinstance(source, list):
            assert merge.execute() is None
        else:
            with pytest.raises(InvalidConfig, match=r"when_matched_delete: .*source\.gone"):
                merge.execute()
    untyped = pd.DataFrame(columns=[*SCHEMA.names, "gone"])
    assert table.merge(untyped).when_matched_delete(where="source.gone").execute() is None


def test_columns_called_source_and_names_in_other_case(tmp_path: Path) -> None:
    """A struct called source, and mixed case, are columns like others."""
    kind = pa.struct([("x", pa.int64())])
    schema = pa.schema([("Id", pa.string()), ("source", kind), ("Target", pa.int64())])
    table = Table.create(tmp_path / "t", schema=schema, record_key="Id")
    rows = [{"Id": k, "source": {"x": n}, "Target": n} for n, k in enumerate("abc")]
    table.upsert(pa.Table.from_pylist(rows, schema))
    merge = table.merge(pa.Table.from_pylist([{**rows[1], "source": {"x": 7}}], schema), on="Id")
    merge = merge.when_matched_update(set={"Target": "source.source.x + target.source.x"})
    merge.when_not_matched_by_source_delete(where="source.x > 1").execute()
    assert table.to_arrow(meta=False).to_pylist() == [rows[0], {**rows[1], "Target": 8}]
    table.update(where="source.x = 0", set={"Target": "source.x + 5"})
    assert table.to_arrow(meta=False).column("Target").to_pylist() == [5, 8]


def test_a_global_key_matches_in_any_partition(tmp_path: Path) -> None:
    """Columns are set where the row is; a whole row of another partition is refused."""
    table = table_of(tmp_path, [row("a", 1), row("b", 1)], global_index=True)
    source = [{**row("a", 5), "p": "z"}, {**row("n", 6), "p": "z"}]
    with pytest.raises(InvalidInput, match=r"key a .*use upsert"):
        table.merge(source).when_matched_update().execute()
    merge = table.merge(source, on="id").when_matched_update(set={"v": "source.v"})
    merge.when_not_matched_insert().execute()
    assert found(table) == [row("a", 5), row("b", 1), source[1]]


@pytest.mark.parametrize("version", [6, 8, 9])
def test_tables_of_all_versions(tmp_path: Path, version: int) -> None:
    """A merge is the same in each table version, and a rollback takes all of it back."""
    table = table_of(tmp_path, [row(k, 1) for k in "abcd"], version)
    before = found(table)
    merge = table.merge([row("a", 2), row("b", 3), row("y", 4)]).when_matched_update()
    commit = merge.when_not_matched_insert().when_not_matched_by_source_delete().execute()
    assert commit is not None
    assert found(table) == [row("a", 2), row("b", 3), row("y", 4)]
    table.rollback(commit.requested_time)
    assert found(table) == before


# --- crashes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[6, 9])
def prepared(new_folder: Callable[[], Path], request: pytest.FixtureRequest) -> Path:
    """A table with four rows in two partitions."""
    root = make(new_folder() / f"v{request.param}", request.param)
    Table(opened(root)).upsert([row(k, 1) for k in "abcd"])
    return root


def change(table: Table) -> object:
    """Update, delete and insert rows, also in one file; a second run changes nothing else."""
    merge = table.merge([row("a", 2), row("b", 2), row("y", 2)])
    merge = merge.when_matched_update(where="source.v > target.v").when_not_matched_insert()
    return merge.when_not_matched_by_source_delete(where="target.id = 'c'").execute()


@pytest.mark.parametrize(("prepared", "how"), CASES, indirect=["prepared"])
def test_a_crash_at_any_operation_merges_all_rows_or_none(prepared: Path, how: str) -> None:
    """Readers see all or nothing of a merge; a second attempt completes it."""
    before = [row(k, 1) for k in "abcd"]
    after = [row("a", 2), row("b", 2), row("d", 1), row("y", 2)]
    outcomes = []
    for root, _ in each_fault(prepared, change, how):
        rows = found_in(root)
        assert rows in (before, after)
        outcomes.append(rows == after)
        change(Table(opened(root)))
        assert found_in(root) == after and pending_names(root) == []
        assert_at_rest(root)
    assert outcomes.count(False) >= 3
    if how in ("before", "after", "torn"):
        assert True in outcomes


def found_in(root: Path) -> list[Row]:
    """Return the rows that readers see; hudi-rs must agree."""
    rows = Table(opened(root)).to_arrow(meta=False)
    assert hudi_rows(root) == without_meta(rows)
    return sorted(rows.to_pylist(), key=lambda each: each["id"])


def test_the_next_writer_after_a_crash_keeps_other_rows(prepared: Path) -> None:
    """An upsert after a merge that died has its own rows and all or none of the merge's."""
    for root, _ in each_fault(prepared, change, "before"):
        Table(opened(root)).upsert([row("d", 9) | {"ts": 2}])
        keys = [each["id"] for each in found_in(root)]
        assert keys in (list("abcd"), list("abdy"))
        assert pending_names(root) == []
