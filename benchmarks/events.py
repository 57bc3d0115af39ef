"""The cost of events: run with `python benchmarks/events.py` (a minute; no Spark).

A FileIdAssigner and a BucketWriter write a month of flights in this process, alternately with the
events of tasks (text, datagram, a driver that listens in another process) and without. `cpu` is the
CPU time of the whole write; the last column is the part spent inside the event calls.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path

import hoodie_nb as hn
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import TaskAttempt
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.in_process import keyed_in_order
from hoodie_nb.local.operators import assign, write
from hoodie_nb.on_spark.task_events import Receiver, Sender, as_text

ROUNDS, PIECE_ROWS = 20, 10_000
SIZES = {"32 MB": 32 << 20, "64 KB": 64 << 10}


class Emitter:
    """Sends events like a Spark task, and measures the cost."""

    def __init__(self, sender=None):
        self.sender, self.rows, self.seconds = sender, [], 0.0

    def __call__(self, kind, **values):
        """Record an event and send it; do nothing without a sender."""
        if self.sender is None:
            return
        began = time.thread_time()
        text = as_text(f"1.{len(self.rows)}", kind, values)
        self.rows.append(text)
        self.sender.send(text)
        self.seconds += time.thread_time() - began


def measured(table, keyed, intake, batch_bytes, emit) -> float:
    """Write the rows into an instant that is rolled back; return the CPU seconds of the writers."""
    coordinator = WriteCoordinator(table, EventLog())
    instant = coordinator.begin()
    plan = coordinator.plan(instant, intake, Shape())
    options = replace(plan.options, batch_bytes=batch_bytes, task_max_bytes=8 * batch_bytes)
    plan = replace(plan, options=options)
    pieces = (keyed.slice(start, PIECE_ROWS) for start in range(0, keyed.num_rows, PIECE_ROWS))
    began = time.process_time()
    list(write(plan, assign(plan, pieces, 0, emit), TaskAttempt(), emit))
    seconds = time.process_time() - began
    coordinator.roll_back(instant)
    return seconds


def listen(pipe: Connection) -> None:
    """Act as the driver: receive one run until the pipe signals its end."""
    with Receiver(EventLog(), "127.0.0.1").run() as sender:
        pipe.send(sender)
        pipe.recv()


def rounds(run: Callable[[Emitter], float], sender: Sender) -> None:
    """Print the medians of both kinds of write, run alternately."""
    silent, emitting, inside, number = [], [], [], 0
    run(Emitter())
    for turn in range(ROUNDS):
        emitter = Emitter(Sender(sender.host, sender.port, sender.token))
        if turn % 2:
            silent.append(run(Emitter()))
        emitting.append(run(emitter))
        if not turn % 2:
            silent.append(run(Emitter()))
        inside.append(emitter.seconds / emitting[-1])
        number = len(emitter.rows)
    quiet, loud = statistics.median(silent), statistics.median(emitting)
    pairs = statistics.median(b / a for a, b in zip(silent, emitting, strict=True))
    print(f"| {number} | {quiet:.3f} | {loud:.3f} | {pairs - 1:+.2%} |", end="")
    print(f" {statistics.median(inside):.2%} |")


def main():
    """Measure with the default buffer and with one that flushes constantly."""
    rows = hn.flights.event_table(days=31)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Pipe()
        driver = Process(target=listen, args=(theirs,))
        driver.start()
        sender = ours.recv()
        print("| batch_size | events | CPU s without | CPU s with | ratio | inside event calls |")
        print("|---|---|---|---|---|---|")
        for name, size in SIZES.items():
            table = hn.Table.create(
                Path(folder, name),
                schema=hn.flights.SCHEMA,
                record_key="flight_id",
                partition_by="flight_date",
                ordering="event_time",
            )._handle
            intake = Intake(table.config, table.schema, "upsert")
            keyed = keyed_in_order(rows, intake)
            print(f"| {name} ", end="")
            rounds(lambda emit: measured(table, keyed, intake, size, emit), sender)  # noqa: B023
        ours.send("over")
        driver.join()


if __name__ == "__main__":
    main()
