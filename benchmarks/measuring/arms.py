"""The arms by name, and the process that one arm runs in.

An arm has `load` and `upsert`, `rows` for the check, and perhaps `close`. What it takes is an Arrow
table in memory if it runs in-process, and a Parquet file on disk if Spark or another program reads
it. One that has `take` reads the file there, before the time begins.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyarrow import parquet

from . import process_tree, truth

OURS, STREAM = "ours", "ours stream "
RAW, HUDI, DELTA, DELTA_STREAM = "raw", "hudi", "delta-rs tuned", "delta-rs tuned stream"
HUDI_RS = "hudi-rs"
AS_IT_COMES = {"delta-rs", "delta-rs stream"}
KEEPS = "MIMALLOC_PURGE_DELAY"  # set by `import hoodie_nb`: the others keep freed memory, too
USER = STREAM + "as a user gets it"
LOGS = "merge-on-read"
_STREAMS: Mapping[str, Mapping[str, Any]] = {  # the first has no options at all
    USER: {"cores": None},
    STREAM + LOGS: {"cores": None, "table_type": "merge_on_read"},
    STREAM + "direct on driver": {"pipeline": "direct", "placement": "driver"},
    STREAM + "direct": {"pipeline": "direct", "placement": "executors"},
    STREAM + "step3": {"pipeline": "step3", "placement": "executors"},
}
_HUDI_RS: Mapping[str, Mapping[str, bool]] = {
    "": {"metadata": False},
    " with index": {"metadata": True, "index": True, "stats": False},
    " as it comes": {"as_it_comes": True},
}


@dataclass(frozen=True, slots=True)
class Arm:
    """How to make an arm, what it takes, and the arm that does the same with delta-rs."""

    make: Callable[[Path], Any]
    takes_file: bool
    peer: str


def arms() -> dict[str, Arm]:
    """Return all arms that can run here, without importing what they need.

    Those that are compared with one another are neighbours: they take turns in one group.
    """
    found = {RAW: _raw(True), "raw without meta columns": _raw(False), OURS: _local("Ours")}
    found |= {"delta-rs": _local("Delta", tuned=False), DELTA: _local("Delta", tuned=True)}
    found[f"{OURS} {LOGS}"] = _local("Ours", table_type="merge_on_read")
    found |= {f"{HUDI_RS} {LOGS}{what}": _hudi_rs(**on) for what, on in _HUDI_RS.items()}
    found["delta-rs stream"] = _stream("DeltaStream", tuned=False)
    found[DELTA_STREAM] = _stream("DeltaStream", tuned=True)
    found |= {name: _stream("OurStream", **options) for name, options in _STREAMS.items()}
    found[HUDI] = _hudi("COPY_ON_WRITE")
    found[f"{HUDI} {LOGS}"] = _hudi("MERGE_ON_READ")
    return found


def peer_of(name: str) -> str:
    """Return the arm that does the same with delta-rs, also for an arm that results still name."""
    known = arms().get(name)
    return known.peer if known else DELTA_STREAM if name.startswith(STREAM) else DELTA


def in_process() -> list[str]:
    """Return the names of the arms that need neither Spark nor another program."""
    return [name for name, arm in arms().items() if not arm.takes_file]


def _raw(meta: bool) -> Arm:
    from .raw import Raw

    return Arm(lambda folder: Raw(folder, meta=meta), False, DELTA)


def _local(kind: str, **options: Any) -> Arm:
    def make(folder: Path) -> Any:
        from . import in_process

        return getattr(in_process, kind)(folder, **options)

    return Arm(make, False, DELTA)


def _stream(kind: str, **options: Any) -> Arm:
    def make(folder: Path) -> Any:
        from . import streams

        return getattr(streams, kind)(folder, **options)

    return Arm(make, True, DELTA_STREAM)


def _hudi(table_type: str) -> Arm:
    def make(folder: Path) -> Any:
        from .hudi import Hudi

        return Hudi(folder, table_type=table_type)

    return Arm(make, True, DELTA_STREAM)


def _hudi_rs(**settings: bool) -> Arm:
    def make(folder: Path) -> Any:
        from .hudi_rs import HudiRs

        return HudiRs(folder, **settings)

    return Arm(make, True, DELTA)


# --- the arm's process ---------------------------------------------------------------------------


def serve(name: str, folder: Path) -> None:
    """Obey lines of JSON on standard input until it ends; all other output goes to the log."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if name in AS_IT_COMES:
        os.environ.pop(KEEPS, None)  # if our import has set it: delta-rs reads it when it is loaded
    arm = arms()[name]
    made = arm.make(folder)
    given: Any = None
    print(json.dumps({}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.perf_counter()
        if asked["do"] == "take":
            given = Path(asked["file"])
            given = given if arm.takes_file else parquet.read_table(given)
            getattr(made, "take", bool)(given)
        elif asked["do"] == "check":
            print(json.dumps(asdict(truth.fingerprint(made.rows()))), file=answers)
            continue
        else:
            getattr(made, asked["do"])(given)
        print(json.dumps({"seconds": time.perf_counter() - began}), file=answers)
    getattr(made, "close", bool)()


class Worker:
    """An arm in a process of its own; one request at a time."""

    def __init__(self, name: str, folder: Path, program: Path) -> None:
        folder.mkdir()
        self.folder, self._log = folder, folder / "log.txt"
        command = [sys.executable, str(program), "--serve", name, "--folder", str(folder)]
        env = {key: value for key, value in os.environ.items() if key != KEEPS}
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=env if name in AS_IT_COMES else None,
            )
        self._name, self.pid = name, self._process.pid
        self._answer()
        process_tree.suspend(self.pid)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let the arm end by itself, or end it if something failed."""
        with self._process as process:
            if kind is not None:
                return process_tree.kill(self.pid)
            process_tree.resume(self.pid)
            process.stdin.close()
            process.wait(120)

    @contextmanager
    def awake(self) -> Iterator["Worker"]:
        """Let the arm's processes run in here only."""
        process_tree.resume(self.pid)
        yield self
        process_tree.suspend(self.pid)

    def take(self, file: Path) -> None:
        """Give the arm the rows of its next step."""
        self._ask(do="take", file=str(file))

    def run(self, step: str) -> float:
        """Run `load` or `upsert`; return its seconds."""
        return float(self._ask(do=step)["seconds"])

    def check(self, wanted: truth.Fingerprint) -> None:
        """Raise WrongResult if the arm's table is not as expected."""
        truth.check(self._name, truth.Fingerprint(**self._ask(do="check")), wanted)

    def _ask(self, **request: str) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended; its log: {self._log.read_text()[-3000:]}")
        return json.loads(line)
