"""A process that streams a folder of JSON files into a table: `stream_loop.py ROOT FILES FOLDER`.

Each file is a micro-batch; the stream ends with the last one, unless it gets another `trigger`.
`FOLDER` has its checkpoints, `FOLDER-turns` at the end how long others had the table each time.
More arguments, as `commit_interval=background`, are its options.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from writers.batch_loop import store

import hoodie_nb as hn

COLUMNS = "id string, p string, ts long, v string, _hoodie_is_deleted boolean"


def main(root: str, files: str, folder: str, *options: str) -> None:
    """Run the stream to its end, beside other processes that write the table."""
    spark = hn.spark(cores=1)
    stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(files)
    job = hn.write_stream(
        stream,
        hn.Table.open(root, storage_options=store()),
        checkpoint=folder,
        wait="100 seconds",
        **({"trigger": "available_now"} | dict(option.split("=") for option in options)),
    )
    job.wait()
    turns = job.events.records("turn_taken")
    Path(f"{folder}-turns").write_text(json.dumps([event.values["seconds"] for event in turns]))


if __name__ == "__main__":
    main(*sys.argv[1:])
