"""What the tests compare tables with: a dict with the same batches applied, and hudi-rs.

`Model` is written from the rules, not from the library: within a
batch the greater ordering value of a key wins and equal ones go to the newer arrival, deletes take
part; what is left meets the stored row by the same rule.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from hudi import HudiReadOptions, HudiTableBuilder

from hoodie_nb import Table
from hoodie_nb.types.avro_file import encode, load_schema
from hoodie_nb.types.schema import META_COLUMNS

Row = Mapping[str, Any]
LOCK = ".hoodie/.hoodie_nb/lock"
QUARANTINE = ".hoodie/.hoodie_nb/quarantine/"


def rank(value: Any) -> tuple[Any, ...]:
    """Return the sort key of an ordering value: null and NaN are equal and lowest."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return (0,)
    return (1, value)


class Model:
    """A table as a dict of rows by partition and key."""

    def __init__(self, key: str = "id", partition: str = "p", ordering: str | None = "ts") -> None:
        self.key, self.partition, self.ordering = key, partition, ordering
        self.rows: dict[tuple[Any, Any], Row] = {}

    def _rank(self, row: Row) -> tuple[Any, ...]:
        return (0,) if self.ordering is None else rank(row.get(self.ordering))

    def upsert(self, rows: Iterable[Row]) -> None:
        """Apply a batch; `_hoodie_is_deleted` marks deletes."""
        winners: dict[tuple[Any, Any], Row] = {}
        for row in rows:
            at = (row[self.partition], row[self.key])
            if at not in winners or self._rank(row) >= self._rank(winners[at]):
                winners[at] = row
        for at, row in winners.items():
            stored = self.rows.get(at)
            if stored is not None and self._rank(row) < self._rank(stored):
                continue
            if row.get("_hoodie_is_deleted"):
                self.rows.pop(at, None)
            else:
                self.rows[at] = {k: v for k, v in row.items() if k != "_hoodie_is_deleted"}

    def delete(self, rows: Sequence[Row]) -> None:
        """Apply a delete: by ordering value if the rows have one, else always."""
        by_order = self.ordering is not None and all(self.ordering in row for row in rows)
        if by_order:
            self.upsert([{**row, "_hoodie_is_deleted": True} for row in rows])
        else:
            for row in rows:
                self.rows.pop((row[self.partition], row[self.key]), None)

    def snapshot(self) -> list[str]:
        """Return the rows in the form of `canonical`."""
        return canonical(self.rows.values())

    def copy(self) -> Model:
        """Return an independent copy of the model."""
        other = Model(self.key, self.partition, self.ordering)
        other.rows = dict(self.rows)
        return other


def kind_of(version: int | str, **options: object) -> dict[str, Any]:
    """Return what `Table.create` takes for a version; "9 logs": slices get logs."""
    if isinstance(version, int):
        return {"table_version": version, "options": options}
    kind = {"table_version": int(version.split()[0]), "table_type": "merge_on_read"}
    return {**kind, "options": {"hoodie_nb.append.above.bytes": 0, **options}}


def canonical(rows: Iterable[Row]) -> list[str]:
    """Return rows as sorted text, so that NaN equals NaN and -0.0 differs from 0.0."""
    return sorted(repr(sorted((k, repr(v)) for k, v in row.items())) for row in rows)


def without_meta(rows: pa.Table) -> list[str]:
    """Return an Arrow table's own columns in the form of `canonical`."""
    own = rows.drop_columns([n for n in META_COLUMNS if n in rows.column_names])
    return canonical(own.to_pylist())


def hudi_table(root: str | Path, as_of: str | None = None) -> pa.Table | None:
    """Return the snapshot as hudi-rs reads it, None if it finds no rows at all."""
    table = HudiTableBuilder.from_base_uri(str(root)).build()
    options = HudiReadOptions()
    if as_of is not None:
        options = options.with_as_of_timestamp(as_of)
    batches = table.read(options)
    return pa.Table.from_batches(batches) if batches else None


def rows_by(table: Table, name: str) -> list[dict[str, Any]]:
    """Return the rows, sorted by a column; hudi-rs must read the same."""
    found = table.to_arrow(meta=False)
    theirs = hudi_table(table.path)
    assert theirs is not None
    seen = [theirs.select(found.column_names), found]
    first, second = (sorted(rows.to_pylist(), key=lambda row: row[name]) for rows in seen)
    assert first == second
    return first


def hudi_rows(root: str | Path, as_of: str | None = None) -> list[str]:
    """Return what hudi-rs reads, in the form of `canonical`."""
    found = hudi_table(root, as_of)
    return [] if found is None else without_meta(found)


def tree(root: str | Path) -> dict[str, bytes | None]:
    """Return every file below `root` with its content (folders: None), the lock file left out."""
    found: dict[str, bytes | None] = {}
    for folder, folders, files in os.walk(root):
        for name in folders:
            found[os.path.relpath(os.path.join(folder, name), root)] = None
        for name in files:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = Path(path).read_bytes()
    found.pop(LOCK, None)
    return found


def data_files(root: str | Path) -> set[str]:
    """Return the paths of all Parquet and log files of a table, those of refused rows aside."""
    found = (path for path in tree(root) if path.endswith(".parquet") or _is_log(path))
    return {path for path in found if not path.startswith(QUARANTINE)}


def _is_log(path: str) -> bool:
    return ".log." in path and not path.startswith(".hoodie")


def timeline_folder(root: str | Path) -> Path:
    """Return the folder of the instants' files: of layout 2 if the table has one, else of 1."""
    second = Path(root, ".hoodie", "timeline")
    return second if second.is_dir() else second.parent


def commit_content(file: Path) -> dict[str, Any]:
    """Return the content of a completed file, in JSON or Avro, read without the library."""
    content = file.read_bytes()
    if content.startswith(b"Obj"):
        (record,) = fastavro.reader(io.BytesIO(content))
        assert isinstance(record, dict)
        return record
    found: dict[str, Any] = json.loads(content)
    return found


MODES = {
    "event_time": "hoodie.record.merge.mode=EVENT_TIME_ORDERING\n",
    "commit_time": "hoodie.record.merge.mode=COMMIT_TIME_ORDERING\n",
    "partial": (  # of version 8: in 9 it is another rule
        "hoodie.record.merge.mode=CUSTOM\n"
        "hoodie.record.merge.strategy.id=00000000-0000-0000-0000-000000000000\n"
    ),
}


def upgrade(root: str | Path, version: int = 9, merge_mode: str = "event_time") -> None:
    """Upgrade a table to version 8 or 9, as Java does: files moved, commits converted to Avro."""
    meta = Path(root, ".hoodie")
    (meta / "timeline" / "history").mkdir(parents=True)
    for file in meta.glob("2*"):
        later = str(int(file.name[:17]) + 1)
        name = file.name.replace(".commit", f"_{later}.commit", file.suffix == ".commit")
        if file.suffix == ".commit":
            schema = load_schema("HoodieCommitMetadata")
            file.write_bytes(encode(schema, json.loads(file.read_bytes())))
        os.rename(file, meta / "timeline" / name)
    properties = meta / "hoodie.properties"
    text = properties.read_text().replace("table.version=6", f"table.version={version}")
    text = text.replace("layout.version=1", "layout.version=2")
    payload, legacy = "hoodie.compaction.payload.class=", "hoodie.table.legacy.payload.class="
    text = text.replace(payload, payload if merge_mode == "partial" else legacy)
    text = text.replace("hoodie.table.precombine.field=", "hoodie.table.ordering.fields=")
    properties.write_text(text + MODES[merge_mode])


def committed_files(root: str | Path) -> set[str]:
    """Return the paths that the completed commits name, read without the library."""
    found: set[str] = set()
    folder = timeline_folder(root)
    actions = ("commit", "replacecommit", "deltacommit")
    for file in itertools.chain.from_iterable(folder.glob(f"*.{action}") for action in actions):
        content = commit_content(file)
        for stats in content["partitionToWriteStats"].values():
            found |= {stat["path"] for stat in stats}
    return found


def cleaned_files(root: str | Path) -> set[str]:
    """Return the paths that the completed cleans have deleted, read without the library."""
    found: set[str] = set()
    for file in timeline_folder(root).glob("*.clean"):
        for folder, done in commit_content(file)["partitionMetadata"].items():
            found |= {f"{folder}/{name}" for name in done["successDeleteFiles"]}
    return found


def edited_elsewhere(commit: Path, content: dict[str, Any]) -> None:
    """Write other content into a commit, as another engine would: without our checksum."""
    extra = {k: v for k, v in content["extraMetadata"].items() if k != "_hoodie_nb_checksum"}
    commit.write_text(json.dumps({**content, "extraMetadata": extra}))


def timeline_names(root: str | Path) -> list[str]:
    """Return the names of the instants' files, in order."""
    names = [e.name for e in os.scandir(timeline_folder(root)) if e.is_file()]
    return sorted(n for n in names if n[:1].isdigit())


def pending_names(root: str | Path) -> list[str]:
    """Return the instants (time and action) that have not completed, read from the names alone."""
    done, begun = set(), set()
    for name in timeline_names(root):
        times, _, rest = name.partition(".")
        time = times.partition("_")[0]
        action, _, state = rest.partition(".")
        if rest == "inflight":
            action, state = "commit", "inflight"
        if action == "clustering":  # so it is called until it has completed, in layout 2
            action = "replacecommit"
        if action == "compaction":
            action = "commit"
        (begun if state else done).add(f"{time} {action}")
    return sorted(begun - done)


def schema_of(ordering: pa.DataType | None = None) -> pa.Schema:
    """Return the small table's schema: key, partition, ordering column, value."""
    return pa.schema(
        [
            ("id", pa.string()),
            ("p", pa.string()),
            ("ts", ordering or pa.int64()),
            ("v", pa.int64()),
        ]
    )
