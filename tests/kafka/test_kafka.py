"""The program of docs/how-to/kafka.md, with a real broker, ended by kill -9 and started again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kafka_broker import Broker
from kafka_install import CONNECTOR
from page_code import HOW_TO, ROOT, blocks

import hoodie_nb as hn

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]
(PROGRAM,) = blocks("python", (HOW_TO / "kafka.md").read_text())
LOGGED = """\
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
logging.getLogger("hoodie_nb").setLevel("DEBUG")
"""
MOMENTS = ("instant_requested", "file_written", "instant_prepared", "instant_committed")
KEYS, ROUND = 120, 200  # records of each round, in micro-batches of at most 60
Record = tuple[str, str | None]


def changed(text: str, **replaced: str) -> str:
    """Return the page's program with some of its text replaced, each once."""
    for old, new in replaced.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def program(broker: Broker, topic: str, **further: str) -> str:
    """Return the program for this broker and topic, with small micro-batches."""
    text = changed(PROGRAM, **{"localhost:9092": broker.address, "100_000": "60"})
    return changed(text, **{'"subscribe": "orders"': f'"subscribe": "{topic}"'} | further)


def started(code: str, broker: Broker, folder: Path) -> subprocess.Popen[str]:
    """Start the program in a process group of its own, in Spark's environment for Kafka."""
    installed = broker.installed
    given = {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(installed.java)}
    unset = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.Popen(
        [str(installed.python), "-c", LOGGED + code],
        cwd=folder,
        env=kept | given | {"SPARK_CONF_DIR": str(installed.spark_conf)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill_at(moment: str, code: str, broker: Broker, folder: Path) -> None:
    """Run the program, and kill it when it has committed once and then reports this event."""
    process = started(code, broker, folder)
    assert process.stdout is not None
    lines: list[str] = []
    commits = 0
    for line in process.stdout:
        lines.append(line)
        if commits and f": {moment} " in line:
            break
        commits += ": instant_committed " in line
    else:
        raise AssertionError(f"it ended before {moment}:\n{''.join(lines[-40:])}")
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()


def run_to_the_end(code: str, broker: Broker, folder: Path) -> None:
    """Run the program until it has read what is in the topic."""
    last = changed(code, **{"checkpoint=": 'trigger="available_now", checkpoint='})
    process = started(last, broker, folder)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-4000:]


def sent(random_: random.Random, tombstones: float) -> Iterator[Record]:
    """Yield the records of a round: upserts of few keys, and tombstones of some."""
    for number in range(ROUND):
        key = f"order {random_.randrange(KEYS)}"
        row = {"customer": f"Ann {random_.randrange(9)}", "amount": number + random_.random()}
        yield key, None if random_.random() < tombstones else json.dumps(row)


def killed_and_ended(
    broker: Broker, folder: Path, topic: str, tombstones: float, code: str
) -> Sequence[Record]:
    """Send a round, kill the program at a moment, and so on; return all records that were sent."""
    random_ = random.Random(topic)
    broker.create_topic(topic, partitions=3)
    records: list[Record] = []
    for moment in (*MOMENTS, None):
        records += (news := list(sent(random_, tombstones)))
        broker.send(topic, news)
        if moment:
            kill_at(moment, code, broker, folder)
    run_to_the_end(code, broker, folder)
    return records


def test_a_killed_stream_of_a_topic_ends_in_the_newest_row_of_each_key(broker, tmp_path):
    """Upserts, tombstones, four kills at four moments: the table is the dict of what was sent."""
    records = killed_and_ended(broker, tmp_path, "upserts", 0.2, program(broker, "upserts"))
    expected = {}
    for key, value in records:
        expected.pop(key, None)
        if value is not None:
            row = json.loads(value)
            expected[key] = (row["customer"], row["amount"])
    table = hn.Table.open(tmp_path / "warehouse" / "orders")
    rows = table.to_arrow(["order_id", "customer", "amount"]).to_pylist()
    assert {row["order_id"]: (row["customer"], row["amount"]) for row in rows} == expected
    assert len(rows) == len(expected) < KEYS
    assert table.fsck() == []


def test_a_killed_stream_inserts_each_record_once(broker, tmp_path):
    """With operation="insert", as the page says, no record is missing and none is there twice."""
    key = "F.concat('partition', F.lit('-'), 'offset').alias(\"order_id\")"
    inserts = {
        'F.col("key").cast("string").alias("order_id")': key,
        "checkpoint=": 'operation="insert", checkpoint=',
    }
    code = program(broker, "inserts", **inserts)
    records = killed_and_ended(broker, tmp_path, "inserts", 0.0, code)
    table = hn.Table.open(tmp_path / "warehouse" / "orders")
    rows = table.to_arrow(["order_id", "amount"]).to_pylist()
    assert sorted(row["amount"] for row in rows) == sorted(
        json.loads(v)["amount"] for _, v in records
    )
    assert len({row["order_id"] for row in rows}) == len(records)
    assert table.fsck() == []


def test_a_new_job_begins_where_the_checkpoint_folder_of_another_ended(broker, tmp_path):
    """The last line of its newest committed offsets is startingOffsets (from-hudi-spark.md)."""
    random_ = random.Random("offsets")
    broker.create_topic("offsets", partitions=3)
    broker.send("offsets", sent(random_, 0.0))
    run_to_the_end(program(broker, "offsets"), broker, tmp_path)
    folder = tmp_path / "warehouse" / "_checkpoints" / "orders"
    batches = {int(path.name) for path in (folder / "commits").glob("[0-9]*")}
    ended = (folder / "offsets" / str(max(batches))).read_text().splitlines()[-1]
    news = list(sent(random_, 0.0))
    broker.send("offsets", news)
    after = {'"earliest"': repr(ended), '"warehouse/orders"': '"warehouse/new"'}
    after['"warehouse/_checkpoints/orders"'] = '"warehouse/_checkpoints/new"'
    run_to_the_end(program(broker, "offsets", **after), broker, tmp_path)
    rows = hn.Table.open(tmp_path / "warehouse" / "new").to_arrow(["order_id"]).to_pylist()
    assert {row["order_id"] for row in rows} == {key for key, _ in news}


def test_the_page_names_the_versions_that_ran():
    """The connector of the page is the installed one."""
    assert f'"{CONNECTOR}"' in PROGRAM
