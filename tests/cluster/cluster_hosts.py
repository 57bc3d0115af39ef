"""A Spark cluster on this machine: a master and two workers, each on a "host" of its own.

A host is a loopback address with its own folder, home, temporary folder and mounts: a process of
one host sees the folders of the others, and /tmp, as empty (if the kernel allows such mounts). To
the lock of a table the host "second" is another machine: it has its own space of process ids.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import hudi
import pyarrow as pa
import pyspark
from s3_server import free_port

from hoodie_nb.api.java import find_java, java_home

EXAMPLE = "examples/cluster_stream.py"
HOME, ROOT = Path(pyspark.__file__).parent, Path(__file__).parents[2]
NAMES = {"driver": "127.0.0.1", "second": "127.0.0.1", "east": "127.0.0.2", "west": "127.0.0.3"}
WORKERS = ("east", "west")
JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "700m",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": JVM,
    "spark.ui.enabled": "false",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both workers, from the first task on
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",  # a test searches it
    "spark.sql.shuffle.partitions": "2",
}


def documented() -> list[str]:
    """Return the words of the command in docs/cluster.md."""
    text = (ROOT / "docs" / "cluster.md").read_text()
    command = re.search(r"^spark-submit(?:.*\\\n)*.*", text, re.M)
    assert command is not None
    return shlex.split(command[0].replace("\\\n", ""))


def apart() -> bool:
    """Whether the kernel lets this user mount, so that hosts have separate folders."""
    tried = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    known = shutil.which(tried[0]) is not None
    return known and subprocess.run(tried, capture_output=True, check=False).returncode == 0


class Cluster:
    """A master, two workers with one core each, and programs that are submitted to them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hoodie_nb-cluster-", dir="/var/tmp"))
        self.apart, self._started = apart(), list[subprocess.Popen[bytes]]()

    def __enter__(self) -> Cluster:
        try:
            for name in NAMES:
                for part in ("home", "tmp", "local", "work", "events"):
                    (self.folder / name / part).mkdir(parents=True)
            port = free_port()
            self.master = f"spark://127.0.0.1:{port}"
            where = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
            self._service("driver", "master.Master", *where)
            for name in WORKERS:
                self.start_worker(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            kill_group(process)
        shutil.rmtree(self.folder)

    def start_worker(self, name: str) -> None:
        """Start a worker with one core, which registers itself with the master."""
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name / "work")]
        where = ["--host", NAMES[name], "--port", "0", "--webui-port", "0"]
        self._service(name, "worker.Worker", *where, *size, self.master)

    def _service(self, host: str, kind: str, *words: str) -> None:
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *words]
        done = "Successfully registered" if kind.startswith("worker") else "I have been elected"
        log = self.folder / host / f"{kind}.log"
        process = self.start(host, command, log)
        await_printed(process, log, done)

    def start(
        self, host: str, command: list[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process on a host, in its own session; all it prints is in `log`."""
        folder = self.folder / host
        settings = {
            **{"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "JAVA_HOME": str(_java())},
            **{"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")},
            **{"SPARK_LOCAL_DIRS": str(folder / "local"), "SPARK_LOCAL_IP": NAMES[host]},
            **{"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JVM, **(environment or {})},
        }
        with open(log, "ab") as output:
            process = subprocess.Popen(
                self._on(host, command),
                env=settings,
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _on(self, host: str, command: list[str]) -> list[str]:
        """Return a command that runs without the folders of other hosts."""
        if not self.apart:
            return command
        hidden = [self.folder / name for name in NAMES if name != host]
        if not any(place.is_relative_to("/tmp") for place in (ROOT, Path(sys.prefix))):
            hidden.append(Path("/tmp"))
        here = [place / "hoodie_nb" for place in {ROOT, Path(sys.prefix).parent}]
        hidden += [place for place in here if place.is_dir()]  # a host has the package that came
        mounts = [f"mount -t tmpfs tmpfs {shlex.quote(str(place))}" for place in hidden]
        own = ["-p", "--fork", "--mount-proc"] if host == "second" else []  # as another machine
        script = "\n".join([*mounts, f"exec {shlex.join(command)}"])
        return ["unshare", "-rm", *own, "sh", "-ec", script]

    def submit(
        self,
        host: str,
        address: str,
        batches: int,
        options: Mapping[str, str],
        *,
        program: str = EXAMPLE,
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Run the example, or a program like it, as docs/cluster.md says.

        `options` are storage options, for its environment. Returns its process and its output. The
        output and the checkpoint folder are those of the host and the table.
        """
        folder, table = self.folder / host, address.split("/")[-2]
        packed = [sys.executable, "-m", "zipfile", "-c", str(folder / "hoodie_nb.zip"), "hoodie_nb"]
        subprocess.run(packed, cwd=ROOT, check=True)
        (folder / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / program, folder / program)
        instead = {
            "spark-submit": str(HOME / "bin" / "spark-submit"),
            EXAMPLE: program,
            "spark://HOST:7077": self.master,
            "s3://bucket/warehouse/orders": address,
            "/var/lib/orders/checkpoint": str(folder / f"checkpoint-{table}"),
            "20": str(batches),
        }
        words = documented()
        assert {*instead, "hoodie_nb.zip"} <= {*words}
        command = [instead.get(word, word) for word in words]
        conf = {**SETTINGS, "spark.eventLog.dir": (folder / "events").as_uri()}
        given = [word for pair in conf.items() for word in ("--conf", "=".join(pair))]
        command[1:1] = given  # what the page says comes later
        log = folder / f"driver-{table}.log"
        environment = {name.upper(): value for name, value in options.items()}
        environment["PYSPARK_PYTHON"] = sys.executable
        return self.start(host, command, log, environment), log

    def executors(self, host: str) -> list[int]:
        """Return the ids of the executors' processes on a host of this cluster."""
        wanted, work = ("CoarseGrainedExecutorBackend", f"\0{NAMES[host]}\0"), self.folder / host
        found = [pid for pid, line in commands() if all(word in line for word in wanted)]
        return [pid for pid in found if str(work) in os.readlink(f"/proc/{pid}/cwd")]

    def files(self) -> list[Path]:
        """Return all files of all hosts: logs, events, what Spark and the library have left."""
        return [path for path in self.folder.rglob("*") if path.is_file()]


def commands() -> Iterator[tuple[int, str]]:
    """Yield the processes of this machine with their command lines."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield int(folder.name), (folder / "cmdline").read_text(errors="replace")
        except OSError:  # it has ended
            continue


def await_printed(
    process: subprocess.Popen[bytes], log: Path, pattern: str, times: int = 1
) -> None:
    """Wait until a running process has printed lines that begin with a pattern."""
    while len(re.findall(f"^.*{pattern}", log.read_text(), re.M)) < times:
        assert process.poll() is None, log.read_text()[-5000:]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)


def committed(log: Path) -> int:
    """Return how many commits a program has printed."""
    return len(re.findall("^instant_committed", log.read_text(), re.M))


def in_hudi_rs(address: str, options: dict[str, str]) -> pa.Table:
    """Return what hudi-rs reads from the store."""
    builder = hudi.HudiTableBuilder.from_base_uri(address).with_storage_options(options)
    return pa.Table.from_batches(builder.build().read(hudi.HudiReadOptions()))


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, at once."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _java() -> Path:
    return Path(java_home(find_java()))
