"""Damages to one file of a table, of each kind: functions that plant them.

Two tables are damaged: a small one whose commits are all on the timeline, and one whose older
commits are archived, as in each table that lives for long. A file that another engine wrote has no
name of ours in its footer, and a commit of another engine no checksum.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from archives import log_elsewhere
from tables import edited_elsewhere
from test_fsck_fixes import SCHEMA, bloom_of, rows

from hoodie_nb import Table

LATER = "20990101000000000"
SMALL = {"hoodie.parquet.small.file.limit": 0}
FEW = {
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "hoodie.clean.commits.retained": 1,
}


def build(path: Path, *, archived: bool = False) -> Table:
    """Return a table of four rows in two partitions; archived, and with a fifth in another one."""
    options = SMALL | (FEW if archived else {})
    table = Table.create(
        path, schema=SCHEMA, record_key="id", partition_by="p", ordering="ts", options=options
    )
    table.upsert(rows(("a", "x", 1), ("b", "x", 1), ("c", "y", 1)))
    table.upsert(rows(("a", "x", 2)))
    table.upsert(rows(("d", "y", 3)))
    for ts in range(4, 12 * archived):
        table.upsert(rows(("z", "z", ts)))
    return table


def commits(root: Path) -> list[Path]:
    """Return the completed files, the newest last."""
    return sorted(root.glob(".hoodie/*.commit"))


def base(root: Path, partition: str = "x", number: int = -1) -> Path:
    """Return a base file of a partition, by default the newest."""
    return sorted(root.glob(f"{partition}/*.parquet"), key=lambda file: file.stem[-17:])[number]


def meta(root: Path, name: str) -> Path:
    """Return the path of a file below `.hoodie`."""
    return root / ".hoodie" / name


def cut(file: Path) -> None:
    """Keep the first half of a file."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def forget(root: Path, commit: Path) -> None:
    """Remove all files of an instant from the timeline."""
    for file in root.glob(f".hoodie/{commit.name[:17]}.*"):
        file.unlink()


def edit(root: Path, number: int, change: Callable[[dict], object]) -> None:
    """Change the content of a commit, as another engine would."""
    commit = commits(root)[number]
    content = json.loads(commit.read_bytes())
    change(content)
    edited_elsewhere(commit, content)


def stored(
    file: Path, change: Callable[[pa.Table], pa.Table], footer: Mapping[bytes, bytes] | None = None
) -> None:
    """Write a base file again as another engine does; its commit, if any, has the new size."""
    before = pq.ParquetFile(file)
    content, old = change(before.read()), before.metadata.metadata
    entries = {k: v for k, v in old.items() if b"hoodie_nb" not in k} | dict(footer or {})
    with pq.ParquetWriter(file, content.schema, store_schema=False) as writer:
        writer.write_table(content)
        writer.add_key_value_metadata(entries)
    commit = file.parents[1] / f".hoodie/{file.stem[-17:]}.commit"
    if commit.exists():
        said = json.loads(commit.read_bytes())
        for stat in said["partitionToWriteStats"].get(file.parent.name, []):
            if stat["path"].endswith(file.name):
                stat["fileSizeInBytes"] = file.stat().st_size
                edited_elsewhere(commit, said)


def column(name: str, *values: str) -> Callable[[pa.Table], pa.Table]:
    """Return a change of one text column."""

    def changed(found: pa.Table) -> pa.Table:
        given = pa.array(values[: found.num_rows], found.schema.field(name).type)
        return found.set_column(found.column_names.index(name), found.schema.field(name), given)

    return changed


def other_keys(root: Path) -> None:
    """Give rows other record keys, with an index that fits them."""
    ends = {b"hoodie_min_record_key": b"q0", b"hoodie_max_record_key": b"q1"}
    bloom = {b"org.apache.hudi.bloomfilter": bloom_of("q0", "q1").encode()}
    stored(base(root), column("_hoodie_record_key", "q0", "q1"), ends | bloom)


def copied(root: Path, name: str, *, to: str = "y") -> Path:
    """Copy the newest file of x, as another engine's, under a name (or its own) into a folder."""
    source = base(root)
    target = root / to / (name or source.name)
    target.parent.mkdir(exist_ok=True)
    shutil.copy(source, target)
    stored(target, lambda found: found)
    return target


def copied_partition(root: Path, *, marked: bool) -> None:
    """Copy a partition's folder inside of the table."""
    shutil.copytree(root / "x", root / "copy")
    if not marked:
        (root / "copy/.hoodie_partition_metadata").unlink()


def savepoint(root: Path, content: bytes | None) -> None:
    """Create a savepoint and replace its content; None: remove its completed file."""
    Table.open(root).savepoint()
    (file,) = root.glob(".hoodie/*.savepoint")
    file.unlink() if content is None else file.write_bytes(content)


def quarantine(root: Path) -> None:
    """Damage a file of refused rows."""
    bad = {"id": None, "p": "x", "ts": 1, "v": 1}
    Table.open(root).upsert(
        [bad, {"id": "a", "p": "x", "ts": 2, "v": 2}], on_bad_record="quarantine"
    )
    (file,) = root.glob(".hoodie/.hoodie_nb/quarantine/*.parquet")
    cut(file)


def record(root: Path, folder: str, name: str) -> Path:
    """Put a damaged record of a checkpoint into one of our folders."""
    path = meta(root, f".hoodie_nb/{folder}/{name}")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"{")
    return path


def properties(root: Path, old: str, new: str) -> None:
    """Replace text in hoodie.properties."""
    path = meta(root, "hoodie.properties")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def log(root: Path) -> Path:
    """Return the archive's file."""
    (path,) = root.glob(".hoodie/archived/.commits*")
    return path


def replaced_and_lost(root: Path) -> None:
    """Overwrite a partition; the commits before are archived, and the overwriting one is lost."""
    Table.open(root).insert_overwrite(rows(("n", "x", 9)))
    log_elsewhere(root, *(commit.name[:17] for commit in commits(root)))
    for commit in commits(root):
        forget(root, commit)
    Table.open(root).upsert(rows(("k", "y", 10)))
    forget(root, next(root.glob(".hoodie/*.replacecommit")))


def again(root: Path) -> None:
    """Put the newest commit on the timeline a second time, as a later one of another engine."""
    edited_elsewhere(meta(root, f"{LATER}.commit"), json.loads(commits(root)[-1].read_bytes()))


def set_back(root: Path) -> None:
    """Let the clock have gone back before the newest commit of x: it sorts before all others."""
    commit, earlier = commits(root)[1], "20000101000000000"
    content = commit.read_text().replace(commit.stem, earlier)
    edited_elsewhere(meta(root, f"{earlier}.commit"), json.loads(content))
    for state in ("commit.requested", "inflight"):
        meta(root, f"{earlier}.{state}").touch()
    file = base(root).rename(root / "x" / base(root).name.replace(commit.stem, earlier))
    forget(root, commit)
    stored(file, column("_hoodie_commit_time", earlier, earlier))


def at(time17: str) -> str:
    """Return the name of a new file group's file of an instant."""
    return f"new-0_0-0-0_{time17}.parquet"
