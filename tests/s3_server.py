"""A proxy in front of the S3 server of the laboratory: it counts requests, or lets some fail."""

from __future__ import annotations

import http.client
import os
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from hoodie_nb.lab.stores.s3_server import BUCKET as BUCKET
from hoodie_nb.lab.stores.s3_server import SECRET as SECRET
from hoodie_nb.lab.stores.s3_server import S3Server, options_of
from hoodie_nb.lab.stores.s3_server import free_port as free_port
from hoodie_nb.storage.storage import Storage, joined


def object_paths(storage: Storage) -> Iterator[str]:
    """Yield the paths of all objects of a table."""
    folders = [""]
    while folders:
        folder = folders.pop()
        for entry in storage.list_folder(folder):
            path = joined(folder, entry.name)
            if entry.is_folder:
                folders.append(path)
            else:
                yield path


Answer = tuple[int, dict[str, str], bytes]


def is_list(method: str, path: str) -> bool:
    """Whether a request lists objects."""
    return method == "GET" and "list-type" in path


class Proxy:
    """A proxy in front of a server: counts requests by kind, and lets some fail.

    `fails(number, method, path)` returns None, or how the request fails:

    | how | what happens |
    | --- | --- |
    | "503", "403" | this is the answer, and the server has not received the request |
    | "denied" | a deletion of several objects: the answer 200 denies it for each one |
    | "before" | the connection is closed, and the server has not received it |
    | "reset" | the same, with a reset |
    | "silent" | there is no answer, and the server has not received it |
    | "503 after", "after", "reset after", "silent after" | the same, and it has received it |
    | "cut" | the connection is reset in the middle of the server's answer |
    | "slow" | the answer takes 0.2 seconds |
    | "stale" | a LIST has the answer before its last change; other requests do not fail |
    """

    def __init__(self, server: S3Server) -> None:
        self.counts: Counter[str] = Counter()
        self.fails: Callable[[int, str, str], str | None] = lambda *_: None
        self.fired: list[str] = []
        self.ignored: str | None = None  # a header, in small letters, that the server does not get
        self._listed: dict[str, tuple[Answer, Answer]] = {}  # now, and before its last change
        self._lock, self._target = threading.Lock(), urlsplit(server.endpoint).netloc
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._ended = threading.Event()
        self.options = options_of(f"http://127.0.0.1:{self._server.server_port}")

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _verdict(self, method: str, path: str) -> str | None:
        with self._lock:
            number = self.counts.total()
            kind = "LIST" if is_list(method, path) else method
            self.counts[kind] += 1
            how = self.fails(number, method, path)
            how = None if how == "stale" and kind != "LIST" else how
            self.fired += [f"{how}: {method} {path}"] if how else []
            return how

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else an answer of two packets takes 40 ms

            def log_message(self, *_: object) -> None:
                """Log nothing."""

            def forward(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                how = proxy._verdict(self.command, self.path) or ""
                kind, _, after = how.partition(" ")
                found = None
                if after or kind in ("", "after", "cut", "slow", "stale"):
                    found = proxy._answer(self.command, self.path, body, dict(self.headers), how)
                if kind in ("503", "403"):
                    self.answer(int(kind), {}, b"<Error><Code>SlowDown</Code></Error>")
                elif kind == "denied":
                    keys = re.findall(b"<Key>.*?</Key>", body)
                    why = b"<Code>AccessDenied</Code><Message>Access Denied</Message>"
                    some = b"".join(b"<Error>%s%s</Error>" % (key, why) for key in keys)
                    self.answer(200, {}, b"<DeleteResult>%s</DeleteResult>" % some)
                elif kind in ("before", "after", "reset", "silent"):
                    self.end(kind)
                elif found is not None:
                    if kind == "slow":
                        proxy._ended.wait(0.2)
                    self.answer(*found, cut=kind == "cut")

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

            def end(self, kind: str) -> None:
                """End the connection without an answer."""
                self.close_connection = True
                if kind == "silent":
                    proxy._ended.wait()
                elif kind == "reset":
                    at_once = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                    os.close(self.connection.detach())

            def answer(
                self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False
            ) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(name, value)
                size = headers.get("content-length", len(body))
                self.send_header(
                    "content-length", str(size if self.command == "HEAD" else len(body))
                )
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[: len(body) // 2] if cut else body)
                if cut:
                    self.end("reset")

        return Handler

    def _answer(
        self, method: str, path: str, body: bytes, headers: dict[str, str], how: str
    ) -> Answer:
        """Return the server's answer, or with "stale" the other one that it had before."""
        found = self._forwarded(method, path, body, headers)
        if is_list(method, path):
            now, before = self._listed.get(path, (found, found))
            now, before = (found, now) if found[2] != now[2] else (now, before)
            self._listed[path] = now, before
            return before if how == "stale" else found
        return found

    def _forwarded(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self._target)
        headers = {name: value for name, value in headers.items() if name.lower() != self.ignored}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, content
        finally:
            connection.close()
