r"""Quarantine files of committed writes: published, withdrawn, counted, read back as a table.

*On disk*: `.hoodie/.hoodie_nb/quarantine/<T>_<n>.parquet`, the refused rows of the commit that was
requested at T. The commit has their number as `_hoodie_nb_quarantined`.

| column | content |
| --- | --- |
| row | the row as it was given, as a JSON object: its types may be what was wrong with it |
| column, reason | the column that was refused first (of a composite key all), and why |
| query_id, batch_id | of a stream's micro-batch; null for batches |
| found_at | when the write began to look |

In `row`, a value that JSON does not have is its text in Python: times, decimals, bytes (also for
text that is not UTF-8), NaN. A value that Python does not have is its text in Arrow.

*Semantics*: the files are staged with the base files, and published right before the completed file
of T. That file makes both visible: bad rows are visible if and only if the good rows of their batch
are. A file is valid if T is completed, on the timeline or in the archive. Only a rollback or
restore of T deletes it: no clean, archiving or clustering does.

**Caveats**: nobody empties this folder. Its files may be deleted by hand.
"""

import re
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from hoodie_nb import failpoints
from hoodie_nb.errors import readable
from hoodie_nb.storage.checksums import StoredFile
from hoodie_nb.storage.storage import OURS, Storage
from hoodie_nb.view.read_handle import ReadHandle

FOLDER = f"{OURS}/quarantine"
COUNT_KEY = "_hoodie_nb_quarantined"
REFUSED = [pa.field(name, pa.string()) for name in ("row", "column", "reason")]
STORED = pa.schema(
    [
        *REFUSED,
        ("query_id", pa.string()),
        ("batch_id", pa.int64()),
        ("found_at", pa.timestamp("us", "UTC")),
    ]
)
_NAME = re.compile(r"(\d{14,17})_\d{5,}\.parquet")


def publish_refused(storage: Storage, instant_time: str, staged: Sequence[StoredFile]) -> None:
    """Publish the staged files of an instant's refused rows, once counted; idempotent."""
    if not staged:
        return
    storage.make_folder(FOLDER)
    storage.sync_folder(OURS)
    for number, file in enumerate(staged):
        storage.publish(file.path, f"{FOLDER}/{instant_time}_{number:05d}.parquet")
    storage.sync_folder(FOLDER)
    failpoints.hit("quarantine.publish.post")


def withdraw_refused(storage: Storage, instant_time: str) -> None:
    """Delete the refused rows of an instant that is rolled back."""
    for name in storage.file_names(FOLDER):
        if _NAME.fullmatch(name) and name.startswith(f"{instant_time}_"):
            storage.remove(f"{FOLDER}/{name}")


def count_rows(storage: Storage, files: Iterable[StoredFile]) -> int:
    """Return the number of rows in staged files; InvalidTable if one is missing or damaged."""
    rows = 0
    for file in files:
        file.verify(storage)
        rows += pq.read_metadata(storage.fetch(file.path)).num_rows
    return rows


def refused_rows(table: ReadHandle) -> pa.Table:
    """Return all refused rows, oldest first, with the time of their commit as `commit`.

    Raises InvalidTable if a file cannot be read, also if its commit was undone (see `steadily`).
    """
    storage = table.storage
    names = [name for name in storage.file_names(FOLDER) if _NAME.fullmatch(name)]
    commits = table.timeline.commits_in_table()
    parts = []
    for name in sorted(names):
        time17 = name.partition("_")[0]
        if time17 in commits:
            rows = _read(storage, f"{FOLDER}/{name}")
            parts.append(rows.append_column("commit", pa.repeat(time17, rows.num_rows)))
    empty = STORED.append(pa.field("commit", pa.string())).empty_table()
    return pa.concat_tables([empty, *parts])


def _read(storage: Storage, path: str) -> pa.Table:
    cure = "restore it from a backup, or delete it to give these refused rows up"
    with readable(f"{storage.root}/{path}", cure, pa.ArrowException, OSError):
        return pq.ParquetFile(storage.fetch(path)).read().select(STORED.names).cast(STORED)
