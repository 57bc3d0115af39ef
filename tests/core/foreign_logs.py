"""Log files that another engine has committed to a table of this library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from log_writer import delete_block, parquet_block
from tables import timeline_folder

from hoodie_nb.evidence.handle import open_table
from hoodie_nb.logs.log_name import LogFileName
from hoodie_nb.types.avro_file import encode, load_schema
from hoodie_nb.types.avro_schema import to_avro
from hoodie_nb.types.schema import META_COLUMNS


def log_elsewhere(
    root: str | Path,
    file_id: str,
    rows: Sequence[dict[str, Any]],
    deletes: Sequence[tuple[str, Any]] = (),
    partition: str = "a",
) -> str:
    """Commit a log with rows and deletes to a file group, as another engine; return the instant.

    A row whose key the base file lacks is a new one, which no index of base files finds.
    """
    table = open_table(root)
    begun = table.timeline.begin(table.timeline.request("deltacommit"))
    time17 = begun.requested_time
    name = LogFileName(file_id, time17, 1, "0-1-2")
    content = b""
    if rows:
        stored = []
        for number, each in enumerate(rows):
            meta = (time17, f"{time17}_0_{number}", each["id"], partition, file_id)
            stored.append({**dict(zip(META_COLUMNS, meta, strict=True)), **each})
        content += parquet_block(time17, stored, table.schema)
    if deletes:
        content += delete_block(time17, deletes, "LongWrapper")
    Path(root, partition, str(name)).write_bytes(content)
    stat = {
        "fileId": file_id,
        "path": f"{partition}/{name}",
        "prevCommit": time17,
        "partitionPath": partition,
        "fileSizeInBytes": len(content),
        "logFiles": [str(name)],
    }
    said = {
        "partitionToWriteStats": {partition: [stat]},
        "extraMetadata": {"schema": json.dumps(to_avro(table.schema, "t"))},
        "operationType": "UPSERT",
    }
    done = table.timeline.next_time()
    where = timeline_folder(root) / f"{time17}_{done}.deltacommit"
    where.write_bytes(encode(load_schema("HoodieCommitMetadata"), said))
    return time17
