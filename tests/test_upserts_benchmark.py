"""The benchmark of upserts: its workload, its arms without Spark, and its check."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import scaling  # noqa: E402  the benchmarks are no package
import upserts  # noqa: E402
import widths  # noqa: E402
from measuring import arms, hudi_rs, truth, workload  # noqa: E402

SHAPE = workload.Shape(base=2000, batch=200, batches=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the files of a small workload."""
    return workload.make_files(tmp_path_factory.mktemp("workload"), SHAPE)


def newest(files):
    """Return the expected rows, by pandas."""
    rows = pa.concat_tables(map(parquet.read_table, files)).to_pandas()
    rows = rows.sort_values("ts").drop_duplicates("key", keep="last")
    return pa.Table.from_pandas(rows, workload.SCHEMA, preserve_index=False)


def test_half_of_a_batch_are_new_keys(files):
    """A batch has distinct keys, half of them new, touches all days, and is later than the base."""
    base, batch, _ = map(parquet.read_table, files)
    assert pc.count_distinct(batch["key"]).as_py() == SHAPE.batch
    assert pc.sum(pc.is_in(batch["key"], base["key"])).as_py() == SHAPE.batch // 2
    assert sorted(pc.unique(batch["day"]).to_pylist()) == workload.DAYS
    assert pc.min(batch["ts"]).as_py() > pc.max(base["ts"]).as_py()


def test_the_day_of_a_key_never_changes(files):
    """Over the base and all batches a key has one day."""
    pairs = pa.concat_tables(parquet.read_table(file, columns=["key", "day"]) for file in files)
    days = pairs.group_by("key").aggregate([("day", "count_distinct")])
    assert pc.max(days["day_count_distinct"]).as_py() == 1


@pytest.mark.parametrize("name", arms.in_process())
def test_every_arm_stores_what_the_input_says(name, files, tmp_path):
    """Each arm that runs without Spark ends with the newest row of each key."""
    arm = arms.arms()[name].make(tmp_path)
    base, *batches = map(parquet.read_table, files)
    arm.load(base)
    truth.check(name, truth.fingerprint(arm.rows()), truth.expected(files[:1]))
    for batch in batches:
        arm.upsert(batch)
    truth.check(name, truth.fingerprint(arm.rows()), truth.expected(files))


@pytest.mark.skipif(not hudi_rs.PROGRAM.exists(), reason=f"not built: {hudi_rs.BUILD}")
@pytest.mark.parametrize("name", [name for name in arms.arms() if name.startswith(arms.HUDI_RS)])
def test_hudi_rs_stores_what_the_input_says(name, files, tmp_path):
    """Each arm of hudi-rs ends with the newest row of each key, as hudi-rs and ours read it."""
    arm = arms.arms()[name].make(tmp_path)
    for number, file in enumerate(files):
        arm.take(file)
        getattr(arm, "upsert" if number else "load")(file)
    truth.check(name, truth.fingerprint(arm.rows()), truth.expected(files))
    arm.close()


def test_hudi_rs_is_left_out_until_it_is_built(monkeypatch, tmp_path, capsys):
    """Without its program the other arms run, and a line says how to build it."""
    monkeypatch.setattr(hudi_rs, "PROGRAM", tmp_path / "none")
    assert upserts.chosen("ours,hudi-rs*") == ["ours"]
    assert f": {hudi_rs.BUILD}\n" in capsys.readouterr().err
    monkeypatch.setattr(hudi_rs, "PROGRAM", tmp_path)
    assert "hudi-rs merge-on-read" in upserts.chosen("ours,hudi-rs*")


def test_the_truth_is_the_newest_row_of_each_key(files):
    """DuckDB and pandas agree about the expected table, whatever the order of its rows."""
    rows = newest(files)
    assert rows.num_rows == SHAPE.base + SHAPE.batches * SHAPE.batch // 2
    for table in (rows, rows.sort_by("v_s20")):
        assert truth.fingerprint(table) == truth.expected(files)


def changed(rows, column, value):
    """Return the rows with one cell of the first row changed."""
    cells = rows[column].to_pylist()
    cells[0] = value
    position = rows.schema.get_field_index(column)
    return rows.set_column(position, rows.schema.field(column), pa.array(cells, rows[column].type))


@pytest.mark.parametrize(
    "damage",
    [
        lambda rows: rows.slice(1),
        lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]),
        lambda rows: pa.concat_tables([rows.slice(1), rows.slice(1, 1)]),
        lambda rows: changed(rows, "v_i", 1_000_001),
        lambda rows: changed(rows, "v_s40", "another"),
        lambda rows: changed(rows, "v_d", None),
        lambda rows: changed(rows, "day", "2024-01-09"),
    ],
    ids=["lost", "doubled", "exchanged", "number", "text", "null", "day"],
)
def test_a_wrong_table_is_refused(damage, files):
    """One row lost or doubled, or one cell changed, ends the benchmark."""
    found = truth.fingerprint(damage(newest(files)))
    with pytest.raises(truth.WrongResult, match="an arm: the table has"):
        truth.check("an arm", found, truth.expected(files))


def test_an_old_row_is_refused(files):
    """A table in which an update is missing has the right rows, and is refused."""
    stale = pa.concat_tables([newest(files[:1]), newest(files).slice(0, 0)])
    missing = newest(files).join(stale.select(["key"]), "key", join_type="left anti")
    found = truth.fingerprint(pa.concat_tables([stale, missing.select(stale.column_names)]))
    wanted = truth.expected(files)
    assert found.rows == wanted.rows
    with pytest.raises(truth.WrongResult):
        truth.check("an arm", found, wanted)


def test_the_program_prints_and_saves_a_table(tmp_path):
    """A run of two arms prints a row for each, and saves costs without names of this machine."""
    results = tmp_path / "results.json"
    sizes = ["--base", "2000", "--batch", "200", "--batches", "2", "--rounds", "1"]
    command = [sys.executable, str(BENCHMARKS / "upserts.py"), *sizes]
    command += ["--arms", "raw,ours", "--results", str(results)]
    for _ in range(2):  # the second run replaces the first one
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    assert "\n| raw | " in done.stdout and "\n| ours | " in done.stdout
    (run,) = json.loads(results.read_text())
    assert run["workload"] == SHAPE.as_dict()
    for (costs,) in run["costs"].values():
        assert len(costs) == 1 + SHAPE.batches
        assert all(cost["wall_s"] > 0 and cost["peak_mb"] > 0 for cost in costs)
    assert run["costs"]["raw"][0][1]["written"] > 1
    assert "<svg" in (tmp_path / "upserts.svg").read_text()


def test_a_law_compares_sizes_with_the_first(tmp_path):
    """The sizes of a law take turns, and the report shows each one's ratio to the first."""
    made = scaling.table(tmp_path / "t", np.arange(100), 2)
    sizes = {n: scaling.upserts(made, 2, lambda _, n=n: np.arange(n)) for n in (1, 50)}
    costs = scaling.in_turns(sizes, 2)
    assert len(made.history()) == 1 + 2 * 3  # the load; a round to warm up and two more
    first, second = scaling.report("batch", costs).splitlines()[2:]
    assert first.startswith("| 1 | ") and first.count("| 1.00 |") == 2
    assert second.startswith("| 50 | ")


@pytest.mark.parametrize("kind", list(widths.KINDS))
def test_every_kind_of_columns_is_measured_and_checked(kind):
    """Ours and delta-rs store the newest rows of any kind of columns; one changed cell is seen."""
    ours, delta = widths.measure(kind, 400, 1)
    assert len(ours) == len(delta) == 1 and min(ours + delta) > 0
    given = widths.batches(kind, 400, 1)
    newer = widths.rows(kind, np.arange(1), 9)
    stored = pa.concat_tables([newer, given[0].slice(1)])
    widths.check("an arm", stored, [given[0], newer])
    with pytest.raises(SystemExit, match="an arm: the table is not what the batches say"):
        widths.check("an arm", given[0], [given[0], newer])
