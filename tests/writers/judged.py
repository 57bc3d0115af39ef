"""What the long trials share: their arguments, a folder that stays if one fails, Java's verdict."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from core.tables import canonical, hudi_rows, without_meta
from oracle.client import Judge
from oracle.install import install
from oracle.tables import LAYOUTS, appending
from s3_server import object_paths
from writers.batch_loop import MARKS, SCHEMA, Row, model

from hoodie_nb import Table
from hoodie_nb.errors import HoodieError
from hoodie_nb.storage.storage import Storage, read_bytes
from hoodie_nb.types.schema import COMMIT_TIME

FIELDS = {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.precombine.field": "ts",
}


def arguments(doc: str | None) -> argparse.Namespace:
    """Return the arguments of a trial: seconds, a kind of table, a seed, if Java judges."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("seconds", type=float)
    parser.add_argument("version", type=int, nargs="?")
    parser.add_argument("table_type", nargs="?")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--java", action="store_true", help="Java judges the table at the end")
    return parser.parse_args()


@contextmanager
def folder_of_trial() -> Iterator[Path]:
    """Yield a new folder; it stays if the trial fails."""
    folder = tempfile.mkdtemp(prefix="trial-")
    try:
        yield Path(folder)
    except BaseException:
        print(f"the trial has failed, its files are in {folder}", file=sys.stderr, flush=True)
        raise
    shutil.rmtree(folder)


def wait_for_commit(process: subprocess.Popen[bytes], checkpoints: Path, until: float) -> None:
    """Wait until a stream has committed a micro-batch, or the time is over; it must not end.

    On a loaded machine a stream needs a minute for its first one, and is to be killed later.
    """
    before = {*checkpoints.glob("commits/[0-9]*")}
    while time.monotonic() < until and {*checkpoints.glob("commits/[0-9]*")} == before:
        assert process.poll() is None, f"the stream of {checkpoints} has ended"
        time.sleep(0.1)


def copied(storage: Storage, root: Path) -> None:
    """Copy a store's table to a folder."""
    for path in object_paths(storage):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(read_bytes(storage, path))


def readable(table: Table, instants: Sequence[str]) -> list[str]:
    """Return those instants of commits that cleaning has left readable, the newest first."""
    found = list[str]()
    for instant in reversed(instants):
        try:
            table.to_arrow(as_of=instant)
        except HoodieError:
            return found
        found.append(instant)
    return found


def states(table: Table) -> dict[str, list[str]]:
    """Return the batches of a table by the instants that Java, too, can read, newest first."""
    rows = table.to_arrow()
    marks = rows.filter(pc.starts_with(rows["p"], MARKS))
    named = sorted(zip(marks[COMMIT_TIME].to_pylist(), marks["id"].to_pylist(), strict=True))
    instants = sorted({instant for instant, _ in named})
    return {
        moment: [name for instant, name in named if instant <= moment]
        for moment in readable(table, instants)[:-1]  # Java refuses the last before those retained
    }


def rows_java_writes(known: dict[str, Row]) -> dict[str, Row]:
    """Return the rows of Java's batch by key: some that there are, newer, and a new one."""
    newer = {"ts": 9, "v": "java"}
    found = {k: row | newer for k, row in known.items() if not str(row["p"]).startswith(MARKS)}
    return found | {"new": {"id": "new", "p": "p0", **newer}}


def same(java: Judge, root: Path, rows: Iterable[Row], as_of: str | None = None) -> None:
    """Assert that Java, hudi-rs and this library read these rows."""
    wanted = canonical(rows)
    options = {"as.of.instant": as_of} if as_of else {}
    assert without_meta(java.read(root, **options)) == wanted, f"Java, {as_of=}"
    assert hudi_rows(root, as_of) == wanted, f"hudi-rs, {as_of=}"
    assert without_meta(Table.open(root).to_arrow(as_of=as_of)) == wanted, f"hoodie_nb, {as_of=}"


def judged(java: Judge, root: Path, version: int, table_type: str) -> str:
    """Compare what Java reads, now and before, with the model; let it write; return its verdict."""
    found = states(Table.open(root))
    moments = [*found]
    assert len(moments) >= 5, "cleaning keeps more"
    head = model(found[moments[0]])
    same(java, root, head.values())
    ago = []
    for moment in (moments[len(moments) // 2], moments[-1]):
        same(java, root, model(found[moment]).values(), moment)
        ago.append(len(found[moments[0]]) - len(found[moment]))
    written = rows_java_writes(head)
    options = appending(LAYOUTS["simple"], version) | FIELDS
    options["hoodie.datasource.write.table.type"] = table_type.upper()
    java.write(root, pa.Table.from_pylist([*written.values()], schema=SCHEMA), options)
    same(java, root, (head | written).values())
    assert Table.open(root).fsck() == []
    return f"Java agrees on {len(head)} rows, and {ago} batches ago; it wrote {len(written)} rows"


def judge(root: Path, version: int, table_type: str) -> str:
    """Start Java, and let it judge a table; return its verdict."""
    with tempfile.TemporaryDirectory() as scratch, closing(Judge(install(), Path(scratch))) as java:
        return judged(java, root, version, table_type)
