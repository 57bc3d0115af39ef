"""The race: the pipelines and their differences."""

import pytest

import hoodie_nb as hn
from hoodie_nb.buckets.pipelines import PIPELINES
from hoodie_nb.lab.experiments.race import Generated, race
from hoodie_nb.lab.stores.slow_storage import Link

SMALL = Generated(rows=4000, batches=2, partitions=3, record_bytes=40)


@pytest.mark.spark
def test_the_pipelines_end_with_the_same_rows(spark):
    """Every pipeline stores the same rows once; only `current` has a serial stage."""
    result = race(input=SMALL, spark=spark, repeats=1)
    frame = result.frame.set_index("pipeline")
    assert list(frame.index) == ["current", "step1", "step2", "step3"]
    assert frame["rows"].nunique() == 1 and (frame["duplicates"] == 0).all()
    assert frame["serial_s"].gt(0).to_dict() == {name: name == "current" for name in frame.index}
    view = hn.Compare(result.events["current"], result.events["step3"])
    assert repr(view) == "<Compare current: 4,000 rows, stopped | step3: 4,000 rows, stopped>"
    figure = result.figure()
    assert "fastest here (local storage" in figure.get_suptitle()
    assert len(figure.axes) == 4


@pytest.mark.spark
def test_job_state_duplicates_the_rows_of_another_job(spark):
    """On a table that another job wrote `current` ends with duplicates and `step3` with none."""
    full = {"hoodie.parquet.small.file.limit": 0}
    names = ("current", "step3")
    result = race(names, SMALL, spark=spark, repeats=1, existing=True, options=full)
    duplicates = result.frame.set_index("pipeline")["duplicates"]
    assert duplicates["current"] > 0 and duplicates["step3"] == 0


@pytest.mark.spark
def test_a_buffer_stays_at_its_limit_in_step3_only(spark):
    """On a slow link `step3` stays within the task's limit while `step2` buffers the batch."""
    limits = {"write.batch.size": "16 KB", "write.task.max.size": "64 KB"}
    one = Generated(rows=20_000, batches=1, partitions=1, record_bytes=100)
    link = Link(latency_s=0.001, bytes_per_s=20_000_000)
    result = race(("step2", "step3"), one, link, 1, spark=spark, options=limits, write_tasks=1)
    frame = result.frame.set_index("pipeline")
    assert result.storage == "simulated"
    assert frame["peak_buffer_mb"]["step2"] > 1.5
    assert frame["peak_buffer_mb"]["step3"] < 64 / 1024 * 1.5
    assert frame["amplification"]["step3"] <= 2


@pytest.mark.spark
def test_the_types_of_tables_race_on_the_same_stream(spark):
    """Both end with the same rows; merge-on-read has logs, and has written less."""
    many = Generated(rows=16_000, batches=8, partitions=2, update_share=1.0, record_bytes=40)
    types = ("copy_on_write", "merge_on_read")
    always = {"hoodie_nb.append.above.bytes": 0}
    result = race(
        ("step3",), many, spark=spark, repeats=1, warm_up=False, options=always, table_types=types
    )
    frame = result.frame.set_index("pipeline")
    assert list(frame.index) == ["step3 copy_on_write", "step3 merge_on_read"]
    copied, logged = (frame.loc[name] for name in frame.index)
    assert copied["rows"] == logged["rows"] > 0 and logged["duplicates"] == 0
    assert copied["logs"] == 0 < logged["logs"]
    assert list(result.medians().index) == list(frame.index) and (frame["read_s"] > 0).all()
    logs = [e for e in result.events["step3 merge_on_read"] if e.values.get("log")]
    assert len(logs) >= logged["logs"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"table_types": ["mor"]}, "choose 'copy_on_write' and 'merge_on_read'"),
        ({"table_types": ["merge_on_read"]}, "choose input=Generated"),
        ({"table_types": ["merge_on_read"], "input": SMALL}, "name others, as 'step3'"),
    ],
)
def test_a_race_that_cannot_be_run_is_refused(wrong, words):
    """Before anything starts, with what to give instead."""
    with pytest.raises(hn.InvalidConfig, match=words):
        race(**wrong)


@pytest.mark.parametrize("name", list(PIPELINES))
def test_a_pipeline_prints_and_draws_itself(name):
    """Text and diagram name the operators, how many there are, and what flows between them."""
    pipeline = PIPELINES[name]
    drawn = pipeline.diagram().splitlines()
    assert drawn[0] == "flowchart LR"
    assert sum("-->" in line for line in drawn) == len(pipeline.operators) - 1
    assert all(operator.name in str(pipeline) for operator in pipeline.operators)
    assert ("1 InstantGenerator" in str(pipeline)) == (name == "current")


def test_an_unknown_storage_is_refused():
    """An unknown storage is refused before anything starts."""
    with pytest.raises(hn.InvalidConfig, match="choose 'local', 'simulated'"):
        race(storage="s3")
