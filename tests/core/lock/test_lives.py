"""The lives of jobs on an object store: asked for, lost, made again, waited for, never kept."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from core.lock.test_store_turns import Place, look_again, waiting
from s3_server import Proxy, S3Server

from hoodie_nb.errors import ConcurrentWriter
from hoodie_nb.lock.job import JobHold
from hoodie_nb.lock.lock import writing
from hoodie_nb.lock.lock_file import PATH
from hoodie_nb.storage import fences, object_storage
from hoodie_nb.storage.storage import TURNS


@pytest.fixture
def place(s3_server: S3Server, tmp_path: Path) -> Place:
    """A free address."""
    return Place(s3_server.new_root(), s3_server.options, tmp_path)


def paused(place: Place) -> JobHold:
    """Return a job that has given way to another process, which has had its turn."""
    job = place.job()
    with waiting(place) as other:
        job.give_way()
        assert other.result() == "had it"
    return job


def content(place: Place, path: str) -> dict[str, object]:
    """Return what an object says."""
    found = place.there.read_version(path)
    assert found is not None
    return dict(json.loads(found.content))


def test_a_job_asks_for_its_life_at_each_turn(place: Place) -> None:
    """Also if it has just been renewed, by a clock that stood still while its machine did."""
    job = paused(place)
    place.change(*place.lives(), released=True)  # as a restore does, when it has expired
    for _ in range(2):
        with pytest.raises(ConcurrentWriter, match="start the stream again"), job.writing():
            place.here.put("x", b"1")
    job.release()
    with writing(place.there, 0.0):
        assert place.there.file_names("") == []
    again = place.job(0.0)
    with again.writing():
        place.here.put("x", b"1")
    again.release()


@pytest.mark.parametrize("is_known", [False, True])
def test_a_life_that_was_deleted_is_made_again(place: Place, is_known: bool) -> None:
    """By hand, while the job had the table; a renewal has noticed it, or not yet."""
    job = paused(place)
    with job.writing():
        job.stale = 0.0
    place.there.mark(*place.lives(), None)
    if is_known:
        job._living._lease.renew()  # type: ignore[union-attr]
        assert job._living._lease.lost  # type: ignore[union-attr]
    with waiting(place) as other:
        job.give_way()
        assert job.stale and other.result() == "had it"
    with pytest.raises(ConcurrentWriter, match="stop that stream"):
        writing(place.there, 0.0, alone=True).__enter__()
    with job.writing():
        place.here.put("x", b"1")
    job.release()


def test_a_life_that_was_deleted_between_two_turns_ends_the_job(place: Place) -> None:
    """A restore would have found none."""
    job = paused(place)
    place.there.mark(*place.lives(), None)
    with pytest.raises(ConcurrentWriter, match="was taken for dead"), job.writing():
        pass
    job.release()


def test_a_job_that_cannot_have_a_life_says_so_once(
    s3_server: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps the table, asks seldom, and gives way when it can."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options, tmp_path)
        job = place.job()
        place.there.mark(f"{TURNS}/000000000001-waits", b"{}")
        proxy.fails = lambda _, method, path: "403" if "/job-" in path else None
        for _ in range(2):
            look_again(place.here)
            job.give_way()
            assert not job.stale
            proxy.counts.clear()
            job.give_way()
            assert proxy.counts.total() == 0
        (line,) = [each.getMessage() for each in caplog.records]
        assert "keeps the table while others wait" in line and "permissions" in line
        proxy.fails = lambda *_: None
        look_again(place.here)
        job.give_way()
        assert job.stale
        job.release()


def test_a_job_in_doubt_does_not_look(s3_server: S3Server, tmp_path: Path) -> None:
    """It could not give way."""
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options, tmp_path)
        job = place.job()
        place.there.mark(f"{TURNS}/000000000001-waits", b"{}")
        fences.doubt(place.here.root)
        look_again(place.here)
        proxy.counts.clear()
        job.give_way()
        assert not job.stale and proxy.counts.total() == 0
        job.release()


def test_a_life_is_released_also_in_doubt(place: Place) -> None:
    """It guards no change: the next run of the folder need not wait for it."""
    job = paused(place)
    with job.writing():
        fences.doubt(place.here.root)
    job.release()
    (life,) = place.lives()
    assert content(place, PATH)["kept"] and content(place, life)["released"]


@pytest.mark.parametrize(
    ("how", "is_doubt"),
    [("exists", False), ("403", False), ("503", False), ("reset", True), ("after", True)],
)
def test_what_is_answered_is_not_in_doubt(
    s3_server: S3Server, tmp_path: Path, monkeypatch, how: str, is_doubt: bool
) -> None:
    """However long the answer took."""
    monkeypatch.setattr(object_storage, "_DOUBT_S", 0.0)
    with Proxy(s3_server) as proxy:
        place = Place(s3_server.new_root(), proxy.options, tmp_path)
        if how == "exists":
            place.here.put("x", b"1")
        first = iter([how])
        proxy.fails = lambda *_: next(first, None) if how != "exists" else None
        try:
            place.here.put("x", b"2", new=True)
        except Exception as error:  # 412 and 403
            assert how in ("exists", "403"), error
        assert (fences.doubted_s(place.here.root) < 60) == is_doubt


def test_others_write_while_a_run_waits_for_the_last_one(place: Place) -> None:
    """Its life was left by a machine that died; the table is free for this process's threads."""
    job = paused(place)
    job._living._lease._ended.set()  # type: ignore[union-attr]
    (life,) = place.lives()
    place.change(life, process=["another machine", "1", "1"], lease_s=300)
    with pytest.raises(ConcurrentWriter, match="stop that stream, or give this one another folder"):
        JobHold(place.there, "again", checkpoint=str(place.checkpoint), wait_s=0.0)
    with ThreadPoolExecutor(1) as threads:
        again = threads.submit(
            JobHold, place.there, "again", checkpoint=str(place.checkpoint), wait_s=60.0
        )
        with pytest.raises(TimeoutError):
            again.result(0.5)  # it looks each second
        with writing(place.there, 5.0):
            assert not again.done()
        place.change(life, lease_s=-3)
        again.result().release()
    job.release()
