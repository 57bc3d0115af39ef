"""Spark 4.2 with its Kafka connector, and a Kafka broker: installed once, apart from .venv.

Kafka's connector exists for Spark 4.2 and not for 4.3, so the program of docs/how-to/kafka.md has a
virtual environment of its own in `${HOODIE_NB_CACHE:-~/.cache/hoodie_nb}/kafka`. The jars come from
Maven through Spark's own Ivy; the connector's stay in Ivy's cache, where the program finds them.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

from oracle.install import RESOLVE, java_home, run

PYSPARK = "pyspark==4.2.1"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
BROKER = "org.apache.kafka:kafka_2.13:4.2.2,org.apache.kafka:kafka-tools:4.2.2"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installed:
    """The program's Python and Spark's settings for it; Java, and the broker's class path."""

    python: Path
    spark_conf: Path
    java: Path
    class_path: str


def install() -> Installed:
    """Return what was installed, now or before. Raises oracle.install.Unavailable."""
    java = Path(java_home())
    root = Path(os.environ.get("HOODIE_NB_CACHE") or Path.home() / ".cache" / "hoodie_nb", "kafka")
    root.mkdir(parents=True, exist_ok=True)
    python, conf = root / "venv" / "bin" / "python", root / "conf"
    packages = [PYSPARK, *dependencies()]
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = root / "installed"
        pins = f"{packages} {CONNECTOR} {BROKER} {sys.version}"
        if not (stamp.exists() and stamp.read_text() == pins):
            venv.create(root / "venv", clear=True, with_pip=True)
            run(python, "-m", "pip", "install", "--quiet", *packages)
            for name, jars in (("connector", CONNECTOR), ("broker", BROKER)):
                with_java = os.environ | {"JAVA_HOME": str(java)}
                run(python, "-c", RESOLVE, jars, root / name, env=with_java)
            conf.mkdir(exist_ok=True)
            (conf / "spark-defaults.conf").write_text(f"spark.jars.ivy {root / 'connector'}\n")
            stamp.write_text(pins)
    (scala,) = root.glob("venv/lib/python*/site-packages/pyspark/jars/scala-library-*.jar")
    class_path = f"{root / 'broker' / 'jars'}/*:{scala}"  # Spark's Ivy leaves out what Spark has
    return Installed(python, conf, java, class_path)


def dependencies() -> list[str]:
    """Return what the library needs besides Spark."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [line for line in project["dependencies"] if not re.match(r"pyspark\b", line)]
