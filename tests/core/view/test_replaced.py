"""File groups that another engine has replaced are not read, and their keys are new again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tables import edited_elsewhere, hudi_table
from test_journal import CONFIG, rows

from hoodie_nb.checks.fsck import fsck
from hoodie_nb.evidence.handle import create_table, open_table
from hoodie_nb.lab.rfc.process_thread import Source
from hoodie_nb.lab.rfc.rfc_job import LocalJob
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.view.file_groups import BaseFileName


def replaced_elsewhere(path: Path, partition: str) -> str:
    """Drop a partition as another engine does; return the instant."""
    newest = max((path / ".hoodie").glob("*.commit"))
    instant = str(int(newest.name[:17]) + 1)
    content = json.loads(newest.read_bytes())
    content["extraMetadata"].pop("_hoodie_nb_progress", None)
    content["extraMetadata"].pop("_hoodie_nb_checksum", None)
    ids = {file.name.split("_")[0] for file in (path / partition).glob("*.parquet")}
    content |= {"partitionToWriteStats": {}, "operationType": "DELETE_PARTITION"}
    content["partitionToReplaceFileIds"] = {partition: sorted(ids)}
    for state in ("requested", "inflight", ""):
        name = f"{instant}.replacecommit{'.' * bool(state)}{state}"
        (path / ".hoodie" / name).write_text("" if state else json.dumps(content))
    return instant


def our_rows(path: Path) -> dict[str, int]:
    """Return the value of each key."""
    return {r["id"]: r["v"] for r in to_arrow(open_table(path)).to_pylist()}


def rows_of_hudi_rs(path: Path) -> dict[str, int]:
    """Return the value of each key as hudi-rs reads it."""
    found = hudi_table(path)
    return {} if found is None else {r["id"]: r["v"] for r in found.to_pylist()}


@pytest.mark.parametrize("pipeline", ["step1", "step2", "step3"])
@pytest.mark.parametrize("index", ["state", "bloom", "bloom+state"])
def test_keys_of_a_replaced_group_are_written_elsewhere(
    tmp_path: Path, pipeline: str, index: str
) -> None:
    """After another engine drops a partition, its old keys are written to a new file group."""
    path, source = tmp_path / "t", Source()
    create_table(path, CONFIG)
    job = LocalJob(
        open_table(path),
        pipeline=pipeline,
        index=index,
        state_folder=str(tmp_path / "state"),
        source=source,
    )
    for number, given in enumerate((("a", "b"), ("a", "c"), ("a", "b")), 1):
        job.write(rows(*((key, number, number, False) for key in given)))
        job.checkpoint(number)
        job.complete(number)
        if number == 1:
            replaced_elsewhere(path, "p")
            assert our_rows(path) == rows_of_hudi_rs(path) == {}
    assert our_rows(path) == rows_of_hudi_rs(path) == {"a": 3, "b": 3, "c": 2}
    assert fsck(path) == []


def test_a_slice_newer_than_the_replacement_is_not_read(tmp_path: Path) -> None:
    """A file that was written into a replaced group later is read by no engine; fsck names it."""
    path = tmp_path / "t"
    create_table(path, CONFIG)
    job = LocalJob(open_table(path), index="bloom")
    job.write(rows(("a", 1, 1, False)))
    job.checkpoint(1)
    job.complete(1)
    (old,) = (path / "p").glob("*.parquet")
    parts = BaseFileName.parse(old.name)
    assert parts is not None
    instant = replaced_elsewhere(path, "p")
    later = str(int(instant) + 1)
    name = str(BaseFileName(parts.file_id, parts.write_token, later))
    shutil.copy(old, old.with_name(name))
    content = (path / f".hoodie/{parts.instant_time}.commit").read_text()
    for state in (".commit.requested", ".inflight"):
        (path / f".hoodie/{later}{state}").touch()
    edited_elsewhere(path / f".hoodie/{later}.commit", json.loads(content.replace(old.name, name)))
    assert our_rows(path) == rows_of_hudi_rs(path) == {}
    found = [str(finding) for finding in fsck(path)]
    assert len(found) == 1
    assert name in found[0]
    assert f"replacecommit {instant}" in found[0] and "then delete it" in found[0]
    job.write(rows(("a", 2, 1, False)))  # its rows, again
    job.checkpoint(2)
    job.complete(2)
    old.with_name(name).unlink()
    assert our_rows(path) == rows_of_hudi_rs(path) == {"a": 1} and fsck(path) == []
