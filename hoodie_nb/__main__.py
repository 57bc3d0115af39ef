"""The command line: `python -m hoodie_nb demo | doctor | fsck PATH`.

Exit codes: 0 all is well, 1 something was found or failed, 2 the command was not understood, 130
after Ctrl-C, 143 after SIGTERM, 141 if the reader of the output has left.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hoodie_nb.errors import HoodieError

Arguments = argparse.Namespace


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    asked = parser().parse_args(arguments)
    try:
        return int(asked.run(asked))
    except HoodieError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    root = argparse.ArgumentParser(
        prog="python -m hoodie_nb",
        description="Write Apache Hudi tables from PySpark streams, and watch it happen.",
    )
    root.add_argument("--version", action="version", version=_version())
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands.add_parser("demo", help="stream a month of flights into a table, check it"))
    _add_doctor(commands.add_parser("doctor", help="tell what is installed, missing or damaged"))
    _add_fsck(commands.add_parser("fsck", help="tell what is wrong with a table, and the cure"))
    return root


def _version() -> str:
    from hoodie_nb import __version__

    return f"hoodie_nb {__version__}"


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.description = (
        "Stream New York's departures of 2013 into a Hudi table, read it back in three ways and "
        "compare each with the board that pandas computes. Ctrl-C stops between two batches; the "
        "same command goes on from there."
    )
    demo.add_argument(
        "--warehouse",
        type=Path,
        default=Path("warehouse"),
        metavar="FOLDER",
        help="where table, checkpoint and source files go (default: ./warehouse)",
    )
    demo.add_argument("--days", type=int, default=31, help="flight dates, 1 to 365 (default: 31)")
    demo.add_argument(
        "--disorder",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of events that come late, twice or out of order, 0 to 1 (default: 0)",
    )
    demo.add_argument("--seed", type=int, default=0, help="what draws the disorder (default: 0)")
    demo.add_argument("--cores", type=int, default=2, help="Spark's cores (default: 2)")
    demo.add_argument(
        "--fresh", action="store_true", help="remove what the demo wrote before and start anew"
    )
    demo.add_argument(
        "--every",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="pause between progress lines when the output is no terminal; 0: one at every change "
        "(default: 5)",
    )
    demo.set_defaults(run=_demo)


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.description = "Tell what is installed, what is missing or damaged, and the cure."
    doctor.add_argument("--checkpoint", metavar="FOLDER", help="look at this checkpoint, too")
    doctor.add_argument("--table", metavar="PATH", help="look at this table, too")
    doctor.set_defaults(run=_doctor)


def _add_fsck(fsck: argparse.ArgumentParser) -> None:
    fsck.description = "Tell what is wrong with a table and how it is cured; change nothing."
    fsck.add_argument("path", metavar="PATH", help="the table's folder")
    fsck.set_defaults(run=_fsck)


def _demo(asked: Arguments) -> int:
    from hoodie_nb.programs.demo import Order, run

    order = Order(
        warehouse=asked.warehouse,
        days=asked.days,
        disorder=asked.disorder,
        seed=asked.seed,
        cores=asked.cores,
        fresh=asked.fresh,
        every_s=asked.every,
    )
    return run(order)


def _doctor(asked: Arguments) -> int:
    from hoodie_nb.lab.doctor import doctor

    report = doctor(checkpoint=asked.checkpoint, table=asked.table)
    print(report)
    return 0 if report.ok else 1


def _fsck(asked: Arguments) -> int:
    from hoodie_nb.table.fsck import fsck

    findings = fsck(asked.path)
    for finding in findings:
        print(f"- {finding.what}\n  cure: {finding.cure}")
    count = len(findings)
    print(f"{asked.path}: {f'{count} finding' + 's' * (count > 1) if count else 'clean'}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
