"""hudi-rs 0.6, which writes merge-on-read tables, as a program in Rust: `benchmarks/hudi_rs`.

PyPI has only 0.5, which writes nothing. The program reads a batch from its Parquet file before the
time begins, so what counts is its `append` and `upsert`. It writes no blooms; its codec is snappy
and its dictionaries are off, as in all tuned arms. `arms.py` says which indexes an arm has.
"""

import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

import hoodie_nb as hn

from . import truth
from .workload import KEY, ORDERING, PARTITION, SCHEMA

CRATE = Path(__file__).parents[1] / "hudi_rs"
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", CRATE / "target"), "release", "hudi_rs_arm")
BUILD = "cargo build --release --manifest-path benchmarks/hudi_rs/Cargo.toml"  # needs protoc
_TUNED = {
    "hoodie.parquet.compression.codec": "snappy",
    "hoodie.parquet.dictionary.enabled": "false",
}


class HudiRs:
    """A merge-on-read table that the program holds open."""

    def __init__(self, folder: Path, *, as_it_comes: bool = False, **settings: bool) -> None:
        self._path, self._snapshot = folder / "table", folder / "snapshot.parquet"
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([PROGRAM], stdin=pipe, stdout=pipe, text=True)
        self._ask(
            do="create",
            path=str(self._path),
            type="MERGE_ON_READ",
            key=KEY,
            partition=PARTITION,
            ordering=ORDERING,
            options={} if as_it_comes else _TUNED,
            **settings,
        )

    def take(self, file: Path) -> None:
        """Let the program read the rows of the next step into its memory."""
        self._ask(do="take", file=str(file))

    def load(self, file: Path) -> None:
        """Append the base."""
        self._ask(do="append")

    def upsert(self, file: Path) -> None:
        """Upsert a batch."""
        self._ask(do="upsert")

    def rows(self) -> pa.Table:
        """Return what hudi-rs reads, in a table opened again; ours must read the same."""
        self._ask(do="read", file=str(self._snapshot))
        rows = parquet.read_table(self._snapshot).select(SCHEMA.names)
        ours = hn.Table.open(str(self._path)).to_arrow(meta=False).select(SCHEMA.names)
        truth.check("ours on a table of hudi-rs", truth.fingerprint(ours), truth.fingerprint(rows))
        return rows

    def close(self) -> None:
        """End the program."""
        with self._process:
            self._process.stdin.close()

    def _ask(self, **request: object) -> None:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "it ended"}')
        if "error" in answer:
            raise RuntimeError(f"hudi-rs: {request['do']}: {answer['error']}")
