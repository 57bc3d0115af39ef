"""Measure what a large table costs a write into one partition: `python benchmarks/large.py`.

Two tables with equal partitions, one of `PARTITIONS` and one of a single one: `GROUPS` file groups
in each, `ARCHIVED` archived commits. Prints Markdown: CPU milliseconds (median of `TIMES`), the
ratio, and what is listed and read in folders of the data and in the table's own. Each time the
table is renamed first, so that nothing that the process remembers of it is used.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pyarrow as pa

import hoodie_nb as hn
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.storage import META, Entry
from hoodie_nb.timeline.archive_log import append, record_of
from hoodie_nb.timeline.timeline import Instant, State

PARTITIONS, GROUPS, ARCHIVED, ROWS, TIMES = 1000, 10, 10_000, 4, 7
KEYS = {"record_key": "id", "partition_by": "part", "ordering": "ts"}
SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())])
UPSERTS = 40  # in one partition, so that the loads are archived


class Counted(LocalStorage):
    """A local storage that counts listings, files read and their bytes, by kind of folder."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.counts: Counter[str] = Counter()

    def _count(self, what: str, path: str, number: int = 1) -> None:
        self.counts[f"{'own' if path.startswith(META) else 'data'} {what}"] += number

    def list_folder(self, folder: str) -> list[Entry]:
        """Count, then list."""
        self._count("listings", folder)
        return super().list_folder(folder)

    def file_names(self, folder: str) -> list[str]:
        """Count, then list."""
        self._count("listings", folder)
        return super().file_names(folder)

    def entry(self, path: str) -> Entry | None:
        """Return the entry, which is no read."""
        before = Counter(self.counts)
        found = super().entry(path)
        self.counts = before
        return found

    def fetch(self, path: str, size_bytes: int = 0) -> str:
        """Count the file as read."""
        local = super().fetch(path, size_bytes)
        if os.path.isfile(local):
            self._count("reads", path)
            self._count("bytes", path, os.path.getsize(local))
        return local


def rows(partitions: int, first: int, count: int, moment: int) -> pa.Table:
    """Return rows of `count` keys in each partition."""
    keys = [f"k{first + n:04d}" for n in range(count)]
    names = [f"p{n:04d}" for n in range(partitions)]
    columns = [keys * partitions, [p for p in names for _ in keys], [moment] * count * partitions]
    return pa.table(columns, schema=SCHEMA)


def make(folder: Path, partitions: int) -> None:
    """Create a table: one load per file group of a partition, then upserts into one of them."""
    table = hn.Table.create(folder, schema=SCHEMA, **KEYS)
    for group in range(GROUPS):
        table.bulk_insert(rows(partitions, group * ROWS, ROWS, 0))
    for moment in range(1, UPSERTS):
        table.upsert(rows(1, 0, 2, moment))
    handle = table._handle
    times = (
        f"2020{1 + n // 2000:02d}{1 + n // 100 % 20:02d}{n % 100 // 4:02d}{n % 4:02d}00000"
        for n in range(ARCHIVED)
    )
    done = (Instant(time17, "commit", State.COMPLETED) for time17 in times)
    content = handle.timeline.read(handle.timeline.completed_commits()[-1])
    records = [record_of(instant, content, "") for instant in done]
    for at in range(0, ARCHIVED, 500):
        append(handle.storage, handle.timeline.layout.archive, records[at : at + 500], 10)


def steps(storage: Counted, moment: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what is measured, by name, in this order."""
    table = hn.Table.open(storage)
    yield "open + first upsert", lambda: hn.Table.open(storage).upsert(rows(1, 0, 2, moment))
    table.upsert(rows(1, 0, 2, moment + 1))
    for later in range(2, 5):
        yield "later upsert", lambda later=later: table.upsert(rows(1, 0, 2, moment + later))
    yield "open + one partition", lambda: hn.Table.open(storage).to_arrow(partitions=["p0000"])
    yield (
        "filter on the partition",
        lambda: hn.Table.open(storage).to_arrow(filters=[("part", "==", "p0000")]),
    )
    yield "clean by hand", lambda: hn.Table.open(storage).clean()


def measured(folder: Path) -> dict[str, tuple[list[float], Counter[str]]]:
    """Return the CPU milliseconds and the counts of each step."""
    found: dict[str, tuple[list[float], Counter[str]]] = {}
    for number in range(TIMES):
        folder = folder.rename(folder.with_suffix(f".{number}-{os.getpid()}"))
        storage = Counted(folder)
        for name, step in steps(storage, int(time.time() * 1000)):
            storage.counts.clear()
            archived = storage.file_names(META)
            began = time.process_time()
            step()
            taken = 1000 * (time.process_time() - began)
            if len(storage.file_names(META)) < len(archived):
                name = "upsert that archives"
            spent, _ = found.setdefault(name, ([], Counter()))
            spent.append(taken)
            found[name] = spent, Counter(storage.counts)
    return found


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="made tables are kept there, and used again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root, found = args.folder or Path(scratch), []
        for name, partitions in (("one", 1), ("large", PARTITIONS)):
            known = sorted(root.glob(f"{name}*"))
            if not known:
                make(root / name, partitions)
            found.append(measured(known[0] if known else root / name))
    kinds = [
        f"{where} {what}" for where in ("data", "own") for what in ("listings", "reads", "bytes")
    ]
    print("| step | one, ms | large, ms | ratio |", " | ".join(kinds), "|")
    print("| --- | --- | --- | --- |" + " --- |" * len(kinds))
    for name in (n for n in found[0] if n in found[1]):
        (few, small), (many, big) = (table[name] for table in found)
        counts = " | ".join(f"{small[kind]:,} / {big[kind]:,}" for kind in kinds)
        ratio = median(many) / median(few)
        print(f"| {name} | {median(few):.0f} | {median(many):.0f} | {ratio:.2f} | {counts} |")


if __name__ == "__main__":
    main()
