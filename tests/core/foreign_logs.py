"""Log files that another engine has committed to a table of this library."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hoodie_nb.evidence.handle import open_table
from hoodie_nb.files.base_file import stored_schema
from hoodie_nb.logs.log_name import LogFileName
from hoodie_nb.logs.writing import LogWriter
from hoodie_nb.rows.columns import DELETE, OP
from hoodie_nb.types.avro_file import encode, load_schema
from hoodie_nb.types.avro_schema import to_avro
from hoodie_nb.types.schema import META_COLUMNS, PARTITION_PATH, RECORD_KEY


def log_elsewhere(
    root: str | Path,
    file_id: str,
    rows: Sequence[dict[str, Any]],
    deletes: Sequence[tuple[str, Any]] = (),
    partition: str = "a",
) -> str:
    """Commit a log with rows and deletes to a file group, as another engine; return the instant.

    A row whose key the base file lacks is a new one, which no index of base files finds. The table
    has the key `id` and the ordering column `ts`.
    """
    table = open_table(root)
    begun = table.timeline.begin(table.timeline.request("deltacommit"))
    time17 = begun.requested_time
    name = LogFileName(file_id, time17, 1, "0-1-2")
    content = io.BytesIO()
    writer = LogWriter(content, table.schema, table="t", instant_time=time17, codec="gzip")
    stored = []
    for number, each in enumerate(rows):
        meta = (time17, f"{time17}_0_{number}", each["id"], partition, file_id)
        stored.append({**dict(zip(META_COLUMNS, meta, strict=True)), **each})
    writer.write_rows(pa.Table.from_pylist(stored, stored_schema(table.schema)))
    if deletes:
        keyed = [
            {RECORD_KEY: k, PARTITION_PATH: partition, OP: DELETE, "ts": t} for k, t in deletes
        ]
        writer.write_deletes(pa.Table.from_pylist(keyed), "ts")
    Path(root, partition, str(name)).write_bytes(content.getvalue())
    stat = {
        "fileId": file_id,
        "path": f"{partition}/{name}",
        "prevCommit": time17,
        "partitionPath": partition,
        "fileSizeInBytes": len(content.getvalue()),
        "logFiles": [str(name)],
    }
    said = {
        "partitionToWriteStats": {partition: [stat]},
        "extraMetadata": {"schema": json.dumps(to_avro(table.schema, "t"))},
        "operationType": "UPSERT",
    }
    done = table.timeline.next_time()
    where = Path(root, table.timeline.layout.folder, f"{time17}_{done}.deltacommit")
    where.write_bytes(encode(load_schema("HoodieCommitMetadata"), said))
    return time17
