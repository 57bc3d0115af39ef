"""Random histories on an object store against the model.

python tests/test_object_histories.py 200         # more of them, by hand
python tests/test_object_histories.py 200 logs    # of merge-on-read tables
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from core.faulty_objects import FaultyObjects
from histories import run
from history.job import History
from history.traits import Traits
from s3_server import S3Server

from hoodie_nb.storage.addresses import Address
from hoodie_nb.storage.object_storage import ObjectStorage

OTHERS = ("foreign_commit", "foreign_rollback", "archives", "new_columns", "bad_batch", "fork")
WITHOUT = ("damage", "restore_seals", "long", *OTHERS)  # they change files on a disk


def run_on(
    server: S3Server, pipeline: str, seed: int, steps: int, *, logs: bool = False
) -> list[str]:
    """Run one history on the server."""

    class ObjectHistory(History):
        """A history whose table is on the server."""

        def __init__(self, folder: Path, pipeline: str, seed: int, traits: Traits) -> None:
            self.root = server.new_root()
            super().__init__(folder, pipeline, seed, traits)

        def place(self) -> Address:
            return ObjectStorage(self.root, server.options)

        def faulty(self) -> FaultyObjects:
            return FaultyObjects(self.root, server.options)

    return run(pipeline, seed, steps, without=WITHOUT, kind=ObjectHistory, logs=logs)


@pytest.mark.parametrize("logs", [False, True], ids=["files", "logs"])
@pytest.mark.parametrize("pipeline", ["step1", "step3"])
def test_random_histories_on_a_store_end_in_the_model(
    s3_server: S3Server, pipeline: str, logs: bool
) -> None:
    """After any crash, failure or repetition no row is lost, duplicated or partly visible."""
    dies = 0
    for seed in range(5):
        dies += run_on(s3_server, pipeline, seed, 20, logs=logs).count("dies")
    assert dies > 0


def main(count: int, *, logs: bool = False) -> int:
    """Run `count` histories, of the pipelines in turn; return how many failed."""
    failed = dies = 0
    with S3Server() as server:
        for seed in range(count):
            try:
                dies += run_on(server, f"step{seed % 3 + 1}", seed, 30, logs=logs).count("dies")
            except AssertionError as error:
                failed += 1
                print(error, flush=True)
            if seed % 20 == 19:
                print(f"{seed + 1} histories, {dies} crashes, {failed} failed", flush=True)
    return failed


if __name__ == "__main__":
    os.environ["HOODIE_NB_TESTING"] = "1"
    sys.exit(min(main(int(sys.argv[1]), logs="logs" in sys.argv), 1))
