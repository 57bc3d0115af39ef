"""A Kafka broker on the loopback interface (KRaft: one process, no ZooKeeper), and its tools."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from kafka_install import Installed

SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
log.dirs={folder}/data
offsets.topic.replication.factor=1
"""
_NULL = "NULL"


class Broker:
    """A broker with its data in a folder; `with` starts and ends it."""

    def __init__(self, installed: Installed, folder: Path) -> None:
        self.installed = installed
        self.folder = folder
        self.address = ""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Broker:
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        settings = self.folder / "server.properties"
        settings.write_text(
            SETTINGS.format(port=port, controller=controller, folder=self.folder.as_posix())
        )
        cluster = ["--cluster-id", "MkU3OEVBNTcwNTJENDM2Qk", "--config", str(settings)]
        self.run("kafka.tools.StorageTool", "format", *cluster)
        with open(self.folder / "broker.txt", "wb") as log:
            command = self.command("kafka.Kafka", str(settings))
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.process.kill()  # nobody needs its data any more
        self.process.wait()

    def command(self, tool: str, *arguments: str) -> list[str]:
        """Return the command of one of Kafka's programs."""
        java = self.installed.java / "bin" / "java"
        return [str(java), "-Xmx256m", "-cp", self.installed.class_path, tool, *arguments]

    def run(self, tool: str, *arguments: str, given: str = "") -> str:
        """Run one of Kafka's tools and return what it printed."""
        done = subprocess.run(
            self.command(tool, *arguments),
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic; the tool waits until the broker answers."""
        server = ("--bootstrap-server", self.address, "--create")
        tool = "org.apache.kafka.tools.TopicCommand"
        self.run(tool, *server, "--topic", name, "--partitions", str(partitions))

    def send(self, topic: str, records: Iterable[tuple[str, str | None]]) -> None:
        """Send records of a key and a value, None for a tombstone; they are stored on return."""
        options = {"parse.key": "true", "key.separator": "|", "null.marker": _NULL}
        named = [part for n, v in options.items() for part in ("--reader-property", f"{n}={v}")]
        server = ("--bootstrap-server", self.address, "--topic", topic)
        lines = (f"{key}|{_NULL if value is None else value}\n" for key, value in records)
        self.run("org.apache.kafka.tools.ConsoleProducer", *server, *named, given="".join(lines))


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody uses at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]
