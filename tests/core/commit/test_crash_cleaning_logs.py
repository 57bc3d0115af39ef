"""Any operation of a clean or an archiving of a merge-on-read table may fail in any way.

One trial: a table has slices with logs; a batch commits, cleans slices with their logs and archives
delta commits, and one of its operations on the disk fails. hudi-rs reads what this library reads; a
new process goes on, and in the end nothing is lost, doubled, pending or stray.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from archives import MAX, MIN, active, archived
from each_fault import each_fault, opened, operation_of
from tables import cleaned_files, data_files, hudi_rows, pending_names, without_meta

from hoodie_nb import Table
from hoodie_nb.evidence.handle import open_table
from hoodie_nb.reading.read import slices_as_of, to_arrow

pytestmark = pytest.mark.usefixtures("many_logs")
SCHEMA_KEYS = {"record_key": "id", "partition_by": "p", "ordering": "ts"}
FEW = {"hoodie.clean.commits.retained": 1, MIN: 2, MAX: 3}
OPTIONS = {
    "hoodie_nb.append.above.bytes": 0,
    "hoodie.compact.inline.max.delta.commits": 2,
    "hoodie.archive.automatic": "false",
    "hoodie.clean.automatic": "false",
    **FEW,
}
ON = {"hoodie.archive.automatic": "true", "hoodie.clean.automatic": "true"}
LAST = 7


def rows(number: int) -> list[dict[str, Any]]:
    """Return a batch; the fifth deletes, and all update both partitions."""
    gone = {"_hoodie_is_deleted": False}
    found = [{"id": k, "p": p, "ts": number, "v": number, **gone} for k, p in KEYS.items()]
    if number == 4:
        found[0]["_hoodie_is_deleted"] = True
    return found


KEYS = {"k1": "a", "k2": "a", "k3": "b"}


def write(table: Table, number: int) -> None:
    """Write a batch."""
    table.upsert(rows(number))


def after(number: int) -> list[tuple[str, int]]:
    """Return the keys and values after a batch."""
    return [(key, number) for key in sorted(KEYS) if number != 4 or key != "k1"]


@pytest.fixture(scope="module", params=[8, 9])
def prepared(new_folder: Callable[[], Path], request: pytest.FixtureRequest) -> Path:
    """A table with all batches but the last one, of which nothing was cleaned."""
    schema = pa.schema(
        [("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())]
    )
    root = new_folder() / "t"
    more = {"table_type": "merge_on_read", "table_version": request.param}
    table = Table.create(root, schema=schema, options=OPTIONS, **SCHEMA_KEYS, **more)
    for number in range(LAST):
        write(table, number)
    Table.create(root, schema=schema, options=ON, if_exists="open", **SCHEMA_KEYS, **more)
    assert len([path for path in data_files(root) if ".log." in path]) >= 6
    return root


def check(root: Path) -> int:
    """Both readers see the batches that have completed; returns the last one."""
    found = to_arrow(open_table(root))
    newest = max(found["v"].to_pylist())
    pairs = zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)
    assert sorted(pairs) == after(newest)
    assert without_meta(found) == hudi_rows(root)
    gone, damage = open_table(root).timeline.archive.commits()
    assert not {name.split()[0] for name in pending_names(root)} & gone and not damage
    assert len({*active(root, "deltacommit")} | gone) >= newest + 1
    previous = active(root, "deltacommit")[-2]
    assert without_meta(to_arrow(open_table(root), as_of=previous)) == hudi_rows(root, previous)
    return int(newest)


def check_end(root: Path) -> None:
    """Three more batches: all is cleaned and archived that may be, and nothing is lost or stray."""
    table = Table(opened(root))
    for number in (LAST + 1, LAST + 2, LAST + 3):
        write(table, number)
    assert check(root) == LAST + 3
    assert pending_names(root) == [] and [str(f) for f in table.fsck()] == []
    times = active(root, "deltacommit")
    assert not {*archived(root, "deltacommit")} & {*times}
    assert len(times) <= 6
    read = [slices_as_of(open_table(root), time17) for time17 in times[-2:]]
    kept = {path for groups in read for piece in groups for path in piece.paths}
    assert kept <= data_files(root)
    assert len(data_files(root)) <= len(kept) + 4
    assert not cleaned_files(root) & data_files(root)


def act(table: Table) -> None:
    """Write the last batch, which cleans and archives."""
    write(table, LAST)


def test_the_batch_cleans_logs_and_archives(prepared: Path) -> None:
    """Else there would be nothing to fail."""
    root = shutil.copytree(prepared, prepared.with_name("whole"))
    act(Table(opened(root)))
    assert any(".log." in path for path in cleaned_files(root))
    assert len(archived(root, "deltacommit")) >= 2
    assert check(root) == LAST
    check_end(root)


@pytest.mark.parametrize("how", ["before", "after", "torn", "error", "error_after", "interrupt"])
def test_a_failure_anywhere_loses_nothing(prepared: Path, how: str) -> None:
    """After a failure at any operation readers see whole commits, and later writers go on."""
    first = operation_of(prepared, act, "clean.plan.post") or 1
    for root, _ in each_fault(prepared, act, how, first=first, at_least=15, raises=OSError):
        assert check(root) == LAST
        check_end(root)


def test_a_second_failure_loses_nothing(prepared: Path) -> None:
    """The next writer dies, too, while it completes the clean and archives."""
    first = operation_of(prepared, act, "clean.plan.post") or 1
    doubled = 0
    for crashed, _ in each_fault(prepared, act, "before", first=first, every=4):
        for root, _ in each_fault(
            crashed, lambda t: write(t, LAST + 1), "before", every=5, at_least=0
        ):
            assert check(root) in (LAST, LAST + 1)
            write(Table(opened(root)), LAST + 1)
            assert check(root) == LAST + 1
            doubled += 1
    assert doubled > 5
