"""Ctrl-C at any line leaves no lease that is renewed, and no mutex locked, on an object store."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from core.faulty_objects import end_holder
from core.lock.test_lock import Interrupt, is_unlocked
from core.lock.test_store_turns import Place, look_again
from s3_server import S3Server

from hoodie_nb.lock import forks, lock
from hoodie_nb.lock.lease import Lease
from hoodie_nb.lock.lock import writing
from hoodie_nb.lock.store_turns import Life
from hoodie_nb.storage.storage import TURNS


def batch(place: Place) -> None:
    """Hold the table for a moment."""
    with writing(place.here, 0.0):
        pass


def job(place: Place) -> None:
    """Run a job that gives way, to a batch of its process, and has the table again."""
    hold = None
    try:
        hold = place.job(0.0)
        place.here.mark(f"{TURNS}/000000000001-waits", b"{}")
        with hold.writing():
            look_again(place.here)
        assert hold.stale
        place.here.mark(f"{TURNS}/000000000001-waits", None)
        batch(place)
        with hold.writing():
            pass
    finally:
        place.here.mark(f"{TURNS}/000000000001-waits", None)
        if hold is not None:
            hold.release()


def restore(place: Place) -> None:
    """End the life of a job that has died."""
    place.here.mark(".hoodie/.hoodie_nb/job-x", b'{"lease_s": -3}')
    with writing(place.here, 0.0, alone=True):
        pass


def renewed(place: Place) -> list[Lease]:
    """Return the leases of a place that threads of this process renew."""
    threads = [each for each in threading.enumerate() if each.name == "table-lease"]
    leases = [each._target.__self__ for each in threads if hasattr(each, "_target")]  # type: ignore[attr-defined]
    return [each for each in leases if each._storage is place.here and not each.closed]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("act", [batch, job, restore])
def test_an_interrupt_leaves_no_lease_that_is_renewed(
    s3_server: S3Server, tmp_path: Path, act: Callable[[Place], None]
) -> None:
    """A lease that was taken meanwhile expires; threads of this process go on at once."""
    place, known, leaks = (
        Place(s3_server.new_root(), s3_server.options, tmp_path),
        sys.gettrace(),
        [],
    )
    for at in itertools.count(1):
        tracer, raised = Interrupt(at, skips=("release", "wait_until_unused", "<lambda>")), None
        sys.settrace(tracer)  # type: ignore[arg-type]
        try:
            act(place)
        except KeyboardInterrupt as error:
            raised = error  # kept, as a notebook would keep it
        finally:
            sys.settrace(known)
        if raised is None:
            break
        if renewed(place):
            leaks.append(("lease", tracer.line))
        if not is_unlocked(place.here):
            leaks.append(("mutex", tracer.line))
        for each in renewed(place):
            each.close()
        end_holder(place.here)
        for path in place.lives():
            place.here.mark(path, None)
        raised = None
        forks._guard = threading.RLock()  # one line in hundreds leaves it locked
        lock.hold_of(place.here).thread = None  # as above
    assert leaks == []
    assert at > 20


def test_an_interrupt_while_the_renewal_starts_leaves_no_lease(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread runs already when Ctrl-C comes: the lease is released."""
    place, start = Place(s3_server.new_root(), s3_server.options, tmp_path), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "table-lease":
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Lease(place.here, "a write")
    monkeypatch.undo()
    assert renewed(place) == []
    Lease(place.there, "another").close()


def test_an_interrupt_while_a_life_is_released_leaves_the_table_free(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the store is asked: nothing is renewed."""
    place = Place(s3_server.new_root(), s3_server.options, tmp_path)
    hold = place.job(60.0)
    place.here.mark(f"{TURNS}/000000000001-waits", b"{}")
    look_again(place.here)
    hold.give_way()
    assert hold.stale
    place.here.mark(f"{TURNS}/000000000001-waits", None)
    with hold.writing():
        pass

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Life, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hold.release()
    assert renewed(place) == []
    with writing(place.there, 0.0, alone=True):
        pass
