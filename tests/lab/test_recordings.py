"""Recordings: events as a file, and the recordings in the package."""

import gzip
import re
import tomllib
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

import hoodie_nb as hn
from hoodie_nb import events as events_module
from hoodie_nb.buckets.pipelines import PIPELINES
from hoodie_nb.events import Event
from hoodie_nb.lab.run import recordings

FOLDER = Path(recordings.__file__).with_name("recorded")


def known_kinds():
    """Return the kinds that the head of `events` lists."""
    rows = re.findall(r"^\| (`.+?) \|", events_module.__doc__, re.M)
    return {kind for row in rows for kind in re.findall(r"`(\w+)`", row)}


def test_saved_events_are_loaded_unchanged(tmp_path):
    """Events are read back unchanged, and equal events give equal files."""
    events = [
        Event("job_started", 5, {"query": "q"}),
        Event("buffer_level", 6, {"buckets": [["p"]]}),
    ]
    for name in ("a", "b"):
        recordings.save(events, tmp_path / name, {"pipeline": "step3"})
    assert recordings.load(tmp_path / "a") == events
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


NO_RECORDINGS = {
    "empty": b"",
    "no gzip": b"no gzip",
    "gzip of nothing": gzip.compress(b""),
    "half a head": gzip.compress(b"{"),
    "a short event": gzip.compress(b"{}\n[1]"),
    "no head": gzip.compress(b"[1]"),
    "numbers": gzip.compress(b"{}\n[1, 2, 3]"),
}


@pytest.mark.parametrize("content", NO_RECORDINGS.values(), ids=NO_RECORDINGS.keys())
def test_invalid_recordings_are_refused(tmp_path, content):
    """A truncated, empty or other file is refused with its name."""
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(hn.InvalidInput, match="other is not a recording"):
        recordings.load(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        recordings.load(tmp_path / "missing")
    with pytest.raises(hn.InvalidConfig, match="current, direct, step1, step2, step3"):
        recordings.recorded("../step3")


@pytest.mark.parametrize("name", list(PIPELINES))
def test_every_pipeline_has_a_recording(name):
    """It is small, describes the run, and has known kinds in order of time and no local paths."""
    path, events = FOLDER / f"{name}.jsonl.gz", recordings.recorded(name)
    assert path.stat().st_size <= 200_000
    assert {event.kind for event in events} <= known_kinds()
    assert [event.at_ms for event in events] == sorted(event.at_ms for event in events)
    description = recordings.description(name)
    assert description["pipeline"] == name and description["partitions"] == 31
    assert description["operators"] == [operator.name for operator in PIPELINES[name].operators]
    text = gzip.decompress(path.read_bytes()).decode()
    assert not re.search(r"/(?:home|root|tmp|work|usr|Users)/", text)
    assert re.search(r"31 days of flights", description["run"])
    levels = [event.values for event in events if event.kind == "buffer_level"]
    assert {level["limit_bytes"] is None for level in levels} == {not PIPELINES[name].mini_batches}


def test_the_recording_of_step3_spans_and_recovers():
    """One instant has two checkpoints, another is rolled back; the commits hold all flights."""
    events = recordings.recorded("step3")
    kinds = Counter(event.kind for event in events)
    assert kinds["buffer_flushed"] > 20 and kinds["job_restarted"] == 1
    commits = [event.values for event in events if event.kind == "instant_committed"]
    assert sorted(commit["checkpoints"] for commit in commits)[-2:] == [1, 2]
    undone = {e.values["instant"] for e in events if e.kind == "instant_rolled_back"}
    assert undone and not undone & {commit["instant"] for commit in commits}
    assert sum(commit["inserts"] for commit in commits) == len(hn.flights.board(days=31))


def test_recordings_are_in_the_package():
    """Nothing in pyproject.toml or .gitignore excludes them from the wheel."""
    root = FOLDER.parents[3]
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert wheel["targets"]["wheel"] == {"packages": ["hoodie_nb", "pyspark_hoodie_nb"]}
    ignored = (root / ".gitignore").read_text().split()
    assert not [p for p in ignored if fnmatch("step3.jsonl.gz", p) or fnmatch("recorded", p)]
    assert recordings.names() == sorted(PIPELINES)
