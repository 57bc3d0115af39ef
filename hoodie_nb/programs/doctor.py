"""Report what is installed, missing or damaged, each with its fix; Spark is not started.

A finding is `ok`, `missing` or `damaged`. Optional packages are reported as missing, but do not
make `report.ok` false.

*A checkpoint* is Spark's folder of a stream: `metadata` (the query's id), `offsets/N` (what batch N
reads), `commits/N` (batch N is done), `sources/*/N` (a source's own log). After a crash of the
machine one of the newest files may be empty or torn, and the query then refuses to start ("Failed
to read log file"). Older files are not checked: Spark does not read them either.

*Source:* Spark's `HDFSMetadataLog`, `CommitLog`, `OffsetSeqLog`.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from hoodie_nb.api.java import find_java, is_submitted
from hoodie_nb.errors import HoodieError, InvalidConfig
from hoodie_nb.extras import install, install_extra

_LEAST_FREE_BYTES = 3 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked item: `state` is ok, missing or damaged; `fix` is empty if ok."""

    what: str
    state: str = "ok"
    fix: str = ""
    needed: bool = True

    def __str__(self) -> str:
        mark = self.state if self.needed or self.state == "ok" else "optional"
        return f"{mark:8}  {self.what}" + (f"\n          fix: {self.fix}" if self.fix else "")


@dataclass(frozen=True, slots=True)
class Report:
    """All findings; `ok` if nothing required is missing or damaged."""

    findings: tuple[Finding, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Return whether everything required is ok."""
        return all(f.state == "ok" for f in self.findings if f.needed)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))

    def __repr__(self) -> str:
        return str(self)


def doctor(
    checkpoint: str | os.PathLike[str] | None = None, table: str | os.PathLike[str] | None = None
) -> Report:
    """Check this environment, and a stream's checkpoint and a table if given."""
    findings = [*_environment(), *_packages()]
    if checkpoint is not None:
        findings += _checkpoint(Path(checkpoint))
    if table is not None:
        findings += _table(table)
    return Report(tuple(findings))


# --- environment ---------------------------------------------------------------------------------


def _environment() -> Iterator[Finding]:
    yield Finding(f"Python {sys.version.split()[0]} ({sys.executable})")
    yield from _java()
    yield _worker_python()
    if spark_home := os.environ.get("SPARK_HOME"):
        yield Finding(f"SPARK_HOME={spark_home}: hn.spark() uses pyspark's own Spark instead")
    if "SPARK_REMOTE" in os.environ:
        fix = "unset SPARK_REMOTE: streams are written through a classic session"
        yield Finding("SPARK_REMOTE is set (Spark Connect)", "damaged", fix, needed=False)
    yield from _memory()


def _java() -> Iterator[Finding]:
    try:
        java = find_java()
    except InvalidConfig as error:
        yield Finding("Java", "missing", str(error))
        return
    yield Finding(str(java))
    if not is_submitted(java):
        command = f"{shlex.quote(sys.executable)} -m hoodie_nb java"
        fix = f'for spark-submit: export JAVA_HOME="$({command})"'
        yield Finding("spark-submit does not find this Java", "missing", fix, needed=False)


def _worker_python() -> Finding:
    worker = os.environ.get("PYSPARK_PYTHON")
    if worker in (None, sys.executable):
        return Finding(f"PYSPARK_PYTHON={worker or 'unset'}: hn.spark() sets it to this Python")
    fix = "hn.spark() sets it to this Python; for your own session: unset PYSPARK_PYTHON"
    return Finding(f"PYSPARK_PYTHON={worker}", "damaged", fix, needed=False)


def _memory() -> Iterator[Finding]:
    free = _free_bytes()
    if free is None:
        return
    what = f"{free / (1 << 30):.1f} GiB of memory is free"
    if free >= _LEAST_FREE_BYTES:
        yield Finding(what)
    else:
        fix = 'start with hn.spark(memory="1g"), or close other programs'
        yield Finding(what, "missing", fix, needed=False)


def _free_bytes() -> int | None:
    """Return the available memory on Linux, within the control group's limit; else None."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(ln.split()[1]) << 10 for ln in lines if ln.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    try:
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        return min(free, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no control group, or "max": no limit
        return free


# --- packages ------------------------------------------------------------------------------------


def _packages() -> Iterator[Finding]:
    """Compare the installed packages with the declared ones, except test tools."""
    try:
        declared = [Requirement(text) for text in requires("hoodie-nb") or ()]
    except PackageNotFoundError:
        yield Finding("hoodie-nb", "missing", install_extra("demo"), needed=False)
        for name in ("pyspark", "pyarrow", "numpy", "pandas", "fastavro", "sqlglot", "isal"):
            if find_spec(name) is None:
                yield Finding(name, "missing", install_extra("demo"))
        return
    wanted: dict[str, tuple[Requirement, str]] = {}
    for extra in ("", "demo", "lab", "notebooks"):
        for each in declared:
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                wanted.setdefault(each.name, (each, extra))
    yield from (_package(each, extra) for each, extra in wanted.values())


def _package(wanted: Requirement, extra: str) -> Finding:
    fix = install_extra(extra) if extra else install(str(wanted))
    if wanted.name == "ipykernel":
        fix += " (before 7.4 a Stop button acts only after the cell has ended)"
    try:
        what = f"{wanted.name} {version(wanted.name)}"
    except PackageNotFoundError:
        return Finding(wanted.name, "missing", fix, needed=not extra)
    if wanted.specifier.contains(version(wanted.name), prereleases=True):
        return Finding(what)
    return Finding(what, "damaged", fix, needed=not extra)


# --- a stream's checkpoint -----------------------------------------------------------------------


def _checkpoint(folder: Path) -> list[Finding]:
    if not folder.is_dir():
        fact = f"checkpoint {folder} does not exist"
        fix = "nothing to do: a stream with this checkpoint starts at the beginning of its source"
        return [Finding(fact, "missing", fix, needed=False)]
    findings = [*_metadata(folder), *_offsets(folder), *_commits(folder)]
    return findings or [Finding(f"checkpoint {folder}: {_position(folder)}")]


def _metadata(folder: Path) -> Iterator[Finding]:
    path = folder / "metadata"
    started = bool(_batches(folder / "offsets"))
    if (path.exists() or started) and not _holds(path, _is_query):
        state = "damaged" if path.exists() else "missing"
        fix = (
            f"restore {path} from a copy, or remove the whole checkpoint folder: the stream then "
            "starts at its source's beginning, and upserts of the same rows give the same table"
        )
        yield Finding(f"checkpoint file {path}", state, fix)


def _offsets(folder: Path) -> Iterator[Finding]:
    """Check the two newest offsets, which Spark reads first, and the sources' own logs."""
    offsets = _batches(folder / "offsets")
    newest = max([*offsets, *_batches(folder / "commits")], default=-1)
    for n in range(max(newest - 1, 0), newest + 1):
        path = folder / "offsets" / str(n)
        if not _holds(path, _is_offsets):
            yield _lost(path, n, "damaged" if n in offsets else "missing")
    for source in sorted((folder / "sources").glob("*")):
        for n, path in sorted(_batches(source).items()):
            if path.stat().st_size == 0:
                yield _lost(path, n, "damaged")


def _lost(path: Path, n: int, state: str) -> Finding:
    fix = (
        f"in offsets/, commits/ and sources/*/ remove file {n}, all files with higher numbers and "
        f"their .crc files: the stream continues after batch {n - 1}, and upserts of the same rows "
        "change nothing"
    )
    return Finding(f"checkpoint file {path}", state, fix)


def _commits(folder: Path) -> Iterator[Finding]:
    """Check the newest commit, the only one that Spark reads."""
    commits = _batches(folder / "commits")
    n = max(commits, default=-1)
    if n >= 0 and not _holds(commits[n], _is_commit):
        fix = f"remove commits/{n} and commits/.{n}.crc: then the newest batch safely runs again"
        yield Finding(f"checkpoint file {commits[n]}", "damaged", fix)


def _position(folder: Path) -> str:
    begun, done = (max(_batches(folder / name), default=-1) for name in ("offsets", "commits"))
    if begun < 0:
        return "no batch started"
    return f"batch {begun} is done" if done >= begun else f"batch {begun} will run again"


def _batches(folder: Path) -> dict[int, Path]:
    """Return the files whose names are batch numbers."""
    if not folder.is_dir():
        return {}
    return {int(path.name): path for path in folder.iterdir() if path.name.isdigit()}


def _holds(path: Path, claim: Callable[[list[str]], bool]) -> bool:
    try:
        return claim(path.read_text().splitlines())
    except (OSError, ValueError, IndexError):  # ValueError: not UTF-8, or not JSON
        return False


def _is_query(lines: list[str]) -> bool:
    return "id" in json.loads(lines[0])


def _is_commit(lines: list[str]) -> bool:
    return lines[0].startswith("v") and all(isinstance(json.loads(ln), dict) for ln in lines[1:])


def _is_offsets(lines: list[str]) -> bool:
    json.loads(lines[1])  # the batch's watermark and settings; then one line per source
    return lines[0].startswith("v") and len(lines) > 2


# --- a table -------------------------------------------------------------------------------------


def _table(path: str | os.PathLike[str]) -> list[Finding]:
    from hoodie_nb.checks.fsck import fsck

    found = [Finding(f"table {path}: {f.what}", "damaged", f.fix) for f in fsck(path)]
    return [*(found or [Finding(f"table {path} is clean")]), *_writers(path)]


def _writers(path: str | os.PathLike[str]) -> Iterator[Finding]:
    from hoodie_nb.evidence.handle import open_table
    from hoodie_nb.lock.writers import writers

    with suppress(HoodieError):  # as found above
        for writer in writers(open_table(path).storage):
            yield Finding(f"table {path}: {writer}")
