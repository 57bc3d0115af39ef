"""Events of running tasks: sent to the driver live (UDP), and again with the task's result.

*Work flow*: the driver's `Receiver` has one UDP socket per job. Each write opens a run, whose
`Sender` (address and token, plain data) is sent to the tasks in their closure. A task names each
event, keeps it for the result that it returns when it ends, and sends it. The log records each name
once, whichever way it arrives first.

*Semantics*: the result is the authoritative copy; a datagram may be lost, and events of a failed
attempt arrive only as datagrams. Datagrams of a finished run are ignored. A task sends 20 datagrams
per second, a few more at first: further events are sent with a later one or at the end.

*Fault tolerance*: sending never waits, and its failures are ignored. Without a socket (no
permission, an address of another host) events arrive when the tasks end, and so do events that do
not fit into a datagram of 8 KB. A datagram without the run's token changes nothing.

**Caveats**: the token is not encrypted. It excludes stray datagrams, not an attacker who can read
the network; events are informative, and correctness never depends on them.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from hoodie_nb.events import Event, EventLog

_LIMIT_BYTES = 8192
_PER_SECOND = 20
_AT_ONCE = 10


@dataclass(slots=True)
class Sender:
    """The address for a task's events, and the pending ones; port 0 sends nothing."""

    host: str
    port: int
    token: str
    waiting: list[str] = field(default_factory=list)
    size: int = 0
    left: float = _AT_ONCE
    since: float = 0.0

    def send(self, text: str) -> None:
        """Send an event as text, now or with the next one; drop it if there is no room."""
        if self.size + len(text) < _LIMIT_BYTES - len(self.token):
            self.waiting.append(text)
            self.size += len(text) + 1
        now = time.monotonic()
        self.left = min(_AT_ONCE, self.left + (now - self.since) * _PER_SECOND)
        self.since = now
        if self.left >= 1:
            self.left -= 1
            self.flush()

    def flush(self) -> None:
        """Send pending events, if that is possible without waiting."""
        datagram = "\n".join((self.token, *self.waiting)).encode()
        self.waiting = []
        self.size = 0
        if self.port:
            with contextlib.suppress(OSError):
                _socket(":" in self.host).sendto(datagram, (self.host, self.port))


@functools.cache
def _socket(v6: bool) -> socket.socket:
    """Return this process's non-blocking socket for sending."""
    made = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _bound(host: str) -> socket.socket | None:
    """Return a socket for receiving at a free port of `host`; None if that fails."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as failed:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        made = failed.enter_context(socket.socket(family, socket.SOCK_DGRAM))
        made.bind(address)
        failed.pop_all()
        return made
    return None


def as_text(name: str, kind: str, values: dict[str, object]) -> str:
    """Return a new event as text; `name` is unique within a run."""
    return json.dumps([name, kind, time.time_ns() // 1_000_000, values])


@dataclass(frozen=True, slots=True)
class _Run:
    token: bytes
    known: set[str] = field(default_factory=set)


class Receiver:
    """The driver's side: adds the tasks' events to `events`, live and when they end."""

    def __init__(self, events: EventLog, host: str) -> None:
        self._events = events
        self._run = _Run(b"")
        self._closed = threading.Event()
        self._host = ""
        self._port = 0
        bound = _bound(host)
        if bound is not None:
            self._host, self._port = bound.getsockname()[:2]
            receive = functools.partial(self._receive, bound)
            threading.Thread(target=receive, name="hoodie-events", daemon=True).start()

    @contextlib.contextmanager
    def run(self) -> Iterator[Sender]:
        """Receive the events of one write: those sent with the sender, and those from `add`."""
        token = secrets.token_hex(16)
        self._run = _Run(token.encode())
        try:
            yield Sender(self._host, self._port, token)
        finally:
            self._run = _Run(b"")

    def add(self, text: str) -> None:
        """Add an event from the result of a task, unless it arrived live."""
        self._add(text, self._run)

    def _add(self, text: str | bytes, run: _Run) -> None:
        name, kind, at_ms, values = json.loads(text)
        self._events.add(Event(str(kind), int(at_ms), dict(values)), (str(name), run.known))

    def _receive(self, bound: socket.socket) -> None:
        bound.settimeout(0.5)
        with bound:
            while not self._closed.is_set():
                with contextlib.suppress(Exception):  # a timeout, or an invalid datagram
                    self._take(bound.recv(_LIMIT_BYTES + 1), self._run)

    def _take(self, datagram: bytes, run: _Run) -> None:
        lines = datagram.split(b"\n")
        open_run = run.token and not self._closed.is_set() and len(datagram) <= _LIMIT_BYTES
        if open_run and hmac.compare_digest(lines[0], run.token):
            for text in lines[1:]:
                self._add(text, run)

    def close(self) -> None:
        """Stop receiving datagrams; `add` still works."""
        self._closed.set()
