"""Events are kept in a ring and reach listeners; failpoints cannot be armed by accident."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hoodie_nb import failpoints
from hoodie_nb.clock import ManualClock, instant_ms, instant_time
from hoodie_nb.errors import InvalidConfig
from hoodie_nb.events import Event, EventLog


@pytest.fixture
def testing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow failpoints to be armed; after the test none is armed."""
    monkeypatch.setenv("HOODIE_NB_TESTING", "1")
    yield
    failpoints.arm("")


def test_failpoints_are_refused_outside_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arming without HOODIE_NB_TESTING=1 raises and arms nothing."""
    monkeypatch.delenv("HOODIE_NB_TESTING", raising=False)
    with pytest.raises(InvalidConfig, match="HOODIE_NB_TESTING=1"):
        failpoints.arm("coord.publish=raise:EIO")
    failpoints.hit("coord.publish")


def test_a_process_with_failpoints_by_mistake_does_not_start() -> None:
    """HOODIE_NB_FAILPOINTS without the switch makes the import fail, so no table is written."""
    done = subprocess.run(
        [sys.executable, "-c", "import hoodie_nb.failpoints"],
        env={**os.environ, "HOODIE_NB_TESTING": "", "HOODIE_NB_FAILPOINTS": "coord.publish=kill"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "failpoints are for tests" in done.stderr


@pytest.mark.usefixtures("testing")
@pytest.mark.parametrize(
    "text",
    ["nope=kill", "coord.publish=explode", "coord.publish", "coord.publish=kill@x", "=kill"],
)
def test_invalid_failpoints_are_refused_by_name(text: str) -> None:
    """Unknown names, actions and counts raise an InvalidConfig that contains them."""
    with pytest.raises(InvalidConfig) as caught:
        failpoints.arm(text)
    assert repr(text) in str(caught.value)


@pytest.mark.usefixtures("testing")
@pytest.mark.parametrize(
    "text", ["coord.publish=raise:ENOSUCH", "coord.publish=sleep:x", "coord.publish=torn:half"]
)
def test_a_failpoint_with_a_wrong_argument_is_refused_when_armed(text: str) -> None:
    """An argument that the action cannot use is refused when it is armed, not when it fires."""
    with pytest.raises(InvalidConfig):
        failpoints.arm(text)


@pytest.mark.usefixtures("testing")
def test_a_failpoint_acts_on_the_hit_it_names() -> None:
    """`@2` fires at the second hit only; without it every hit fires; other names do not."""
    failpoints.arm("coord.publish=raise:ENOSPC@2; coord.commit.pre=raise:Timeout")
    failpoints.hit("coord.publish")
    with pytest.raises(OSError, match="space") as caught:
        failpoints.hit("coord.publish")
    assert caught.value.errno == errno.ENOSPC
    failpoints.hit("coord.publish")
    for _ in range(2):
        with pytest.raises(TimeoutError):
            failpoints.hit("coord.commit.pre")
    failpoints.hit("coord.commit.post")


@pytest.mark.usefixtures("testing")
def test_arming_replaces_what_was_armed() -> None:
    """The second `arm` replaces the first; an empty one disarms."""
    failpoints.arm("coord.publish=raise:EIO")
    failpoints.arm("coord.commit.pre=raise:EIO")
    failpoints.hit("coord.publish")
    failpoints.arm("")
    failpoints.hit("coord.commit.pre")


def test_the_event_log_keeps_the_newest() -> None:
    """A log of three keeps the last three of five events, in order, and finds them by kind."""
    log = EventLog(3)
    for number in range(5):
        log.emit("even" if number % 2 == 0 else "odd", number=number)
    assert [str(e) for e in log.records()] == ["even number=2", "odd number=3", "even number=4"]
    assert [e.values["number"] for e in log.records("even")] == [2, 4]


def test_listeners_receive_every_event_once() -> None:
    """A listener gets all events recorded after its registration, also from other threads."""
    log, received = EventLog(), []
    log.emit("before")
    log.listen(received.append)
    others = [Event("added", 1), Event("added", 2)]
    for event in others:
        log.add(event)
    threads = [threading.Thread(target=log.emit, args=("emitted",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert received[:2] == others
    assert [e.kind for e in received[2:]] == ["emitted"] * 8
    assert len(log.records()) == 11


def test_an_exception_in_a_listener_affects_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """A listener's exception is logged once; the actor and the other listeners are not affected."""
    log, received = EventLog(), []

    def fails(event: Event) -> None:
        raise ValueError(f"cannot handle {event.kind}")

    log.listen(fails)
    log.listen(received.append)
    for _ in range(2):
        log.emit("emitted")
    assert [e.kind for e in received] == ["emitted", "emitted"] == [e.kind for e in log.records()]
    assert len(caplog.records) == 1 and "cannot handle emitted" in caplog.text
    assert not log.in_listener


def test_a_thread_knows_whether_it_is_in_a_listener() -> None:
    """`in_listener` is true only within a listener, also while a nested event is delivered."""
    log, seen = EventLog(), []

    def listen(event: Event) -> None:
        if event.kind == "outer":
            log.emit("inner")
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(lambda: log.in_listener).result()
        seen.append((event.kind, log.in_listener, other))

    log.listen(listen)
    log.emit("outer")
    assert seen == [("inner", True, False), ("outer", True, False)] and not log.in_listener


def test_instant_times_round_trip_and_sort_like_time() -> None:
    """17 digits are one millisecond in UTC, also before 1970 and after 2100, and sort as text."""
    moments = [0, 1, 999, 1000, 951_782_400_000, 1_767_225_599_999, 1_767_225_600_000, 2**42]
    texts = [instant_time(ms) for ms in moments]
    assert [instant_ms(text) for text in texts] == moments
    assert sorted(texts) == texts
    assert instant_time(951_782_400_000) == "20000229000000000"
    assert instant_ms("20000229000000") == 951_782_400_000


@pytest.mark.parametrize("text", ["", "2026", "20261301000000000", "2026010100000000x", "1" * 16])
def test_invalid_instant_times_raise_value_error(text: str) -> None:
    """Other lengths, letters and impossible dates are refused."""
    with pytest.raises(ValueError, match=r".+"):
        instant_ms(text)


def test_a_manual_clock_moves_only_when_set() -> None:
    """Sleeping moves the clock by that long and takes no time."""
    clock = ManualClock(1000)
    assert (clock.now_ms(), clock.now_ms()) == (1000, 1000)
    clock.sleep(2.5)
    assert clock.now_ms() == 3500
