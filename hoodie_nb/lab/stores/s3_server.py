"""`S3Server`: starts and ends a local S3 server (`ministack`); its port, bucket, options.

It checks `If-None-Match` and `If-Match` of PUTs, uploads in parts and copies as S3 does. Only
programs on this machine reach it, and its rows are gone when it ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
import uuid
from importlib.util import find_spec

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.extras import install_extra

BUCKET = "tables"
SECRET = "a-secret-that-is-nowhere"


def options_of(endpoint: str) -> dict[str, str]:
    """Return the storage options for an endpoint, with names that hudi-rs knows, too."""
    return {
        "aws_endpoint": endpoint,
        "aws_access_key_id": "tester",
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class S3Server:
    """A server with one bucket, as a context manager; `endpoint` is its address.

    Raises InvalidConfig if `ministack` is not installed, or does not start.
    """

    def __enter__(self) -> S3Server:
        if find_spec("ministack") is None:
            raise InvalidConfig(f"ministack is not installed: {install_extra('notebooks')}")
        port = free_port()
        self._folder = tempfile.TemporaryDirectory()
        self.endpoint = f"http://127.0.0.1:{port}"
        settings = {"SERVICES": "s3", "GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1"}
        settings |= {"TMPDIR": self._folder.name, "S3_DATA_DIR": self._folder.name}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ministack"],
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        lines = iter(self._process.stdout.readline, b"")
        if not any(b"Running on" in line for line in lines):
            self._stop()
            raise InvalidConfig("the S3 server has not started: run `python -m ministack`")
        threading.Thread(target=lambda: [*lines], daemon=True).start()
        request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request).close()
        self.options = options_of(self.endpoint)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._folder.cleanup()

    def new_root(self) -> str:
        """Return the address of a folder that nothing is in."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}/table"
