"""A Spark stream over a restore of its table: refused, then continued exactly as the error says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from s3_server import S3Server
from spark_source import FolderSource

import hoodie_nb as hn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])
MODES: dict[str, dict[str, Any]] = {
    "upsert": {},
    "insert": {"operation": "insert"},
    "write": {"operation": "insert", "commit_on": "write"},
    "three": {"commit_interval": 3},
    "background": {"commit_interval": "background"},
}
KILLS = [
    ("insert", "coord.prepare.post"),  # before Spark has recorded the batch as done
    ("insert", "coord.publish"),  # after that, before the notification has an effect
    pytest.param("three", "coord.seal.post=kill@2", marks=pytest.mark.slow),
    pytest.param("background", "coord.prepare.post", marks=pytest.mark.slow),
    pytest.param("write", "coord.prepare.post", marks=pytest.mark.slow),
]


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream from `folder/source` into a table, with a checkpoint folder beside it."""

    folder: Path
    table: hn.Table
    settings: dict[str, Any]

    def run(self, spark: SparkSession) -> None:
        """Write all files that are there, each as one batch."""
        source = FolderSource(self.folder / "source", SCHEMA).stream(spark)
        given = {"checkpoint": str(self.folder / "ck"), "trigger": "available_now"}
        hn.write_stream(source, self.table, **given, **self.settings).wait(300)

    def follow(self, error: BaseException) -> int:
        """Delete the files that a refusal names; return the number in it."""
        found = re.search(
            r"in the checkpoint folder: delete the files in `offsets` and `commits` whose number "
            r"is above (\d+), the last batch in the table",
            str(error),
        )
        assert found is not None, error
        last = int(found[1])
        for name in ("offsets", "commits"):
            for file in Path(self.folder, "ck", name).iterdir():
                if file.name.isdigit() and int(file.name) > last:
                    file.unlink()
        return last


def undone(spark: SparkSession, stream: Stream) -> FolderSource:
    """Write six batches, undo the last three, and take the stream back as its refusal says."""
    source = FolderSource(stream.folder / "source", SCHEMA)
    for first in (0, 3):
        for number in range(first, first + 3):
            send(source, number)
        stream.run(spark)
        if not first:
            to = stream.table.history()["requested_time"].iloc[-1]
    stream.table.restore(to)
    assert len(stream.table.to_arrow()) == 6
    with pytest.raises(hn.InvalidTable, match="restored or replaced") as refused:
        stream.run(spark)
    assert stream.follow(refused.value) == 2
    return source


def send(source: FolderSource, number: int) -> None:
    """Add a file with two rows."""
    source.add(pa.table({"id": [f"k{number}", f"m{number}"], "n": [number] * 2}))


def check(table: hn.Table, count: int) -> None:
    """The rows of the files are in the table, each once."""
    found = [(row["id"], row["n"]) for row in table.to_arrow(["id", "n"]).to_pylist()]
    assert sorted(found) == sorted((f"{k}{n}", n) for n in range(count) for k in "km")
    assert table.fsck() == []


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_is_taken_back_as_the_error_says_goes_on(spark, tmp_path, mode) -> None:
    """It writes each row once, in several batches, which have new offsets; no start is refused."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    stream = Stream(tmp_path, table, MODES[mode])
    source = undone(spark, stream)
    for numbers in ((6, 7, 8, 9), (10,)):
        for number in numbers:
            send(source, number)
        stream.run(spark)
    check(table, 11)


@pytest.mark.kills
@pytest.mark.parametrize(("mode", "point"), KILLS)
def test_a_kill_after_it_was_taken_back_harms_nothing(spark, tmp_path, mode, point) -> None:
    """SIGKILL once a new batch is durable: the next starts go on, and each row is there once."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    stream = Stream(tmp_path, table, MODES[mode])
    source = undone(spark, stream)
    for number in range(6, 9):
        send(source, number)
    run_killed(stream, point)
    send(source, 9)
    for _ in range(2):
        stream.run(spark)
    check(table, 10)


def run_killed(stream: Stream, point: str) -> None:
    """Run a stream in a process of its own, which SIGKILL ends at a failpoint, with its JVM."""
    program = (
        "import json, pathlib, sys, hoodie_nb as hn\n"
        "from test_restored_stream import Stream\n"
        "folder, path, settings = sys.argv[1:]\n"
        "stream = Stream(pathlib.Path(folder), hn.Table.open(path), json.loads(settings))\n"
        "stream.run(hn.spark(cores=2, memory='1g'))\n"
    )
    here = Path(__file__).parent
    armed = point if "=" in point else f"{point}=kill"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(stream.folder), stream.table.path,
         json.dumps(stream.settings)],
        env={
            **os.environ,
            "HOODIE_NB_TESTING": "1",
            "HOODIE_NB_FAILPOINTS": armed,
            "PYTHONPATH": f"{here.parents[1]}:{here.parent}:{here}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    process.wait(280)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its JVM would go on for a moment
    printed, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, printed.decode()[-2000:]


def test_a_stream_onto_a_store_goes_on(spark, s3_server: S3Server, tmp_path) -> None:
    """The records of its checkpoints are objects; the folder of the stream is on a disk."""
    options = s3_server.options
    root = s3_server.new_root()
    table = hn.Table.create(root, schema=SCHEMA, record_key="id", storage_options=options)
    stream = Stream(tmp_path, table, MODES["three"])
    source = undone(spark, stream)
    for number in range(6, 10):
        send(source, number)
    stream.run(spark)
    check(table, 10)
