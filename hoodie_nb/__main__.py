"""The command line: `python -m hoodie_nb COMMAND`, of which `--help` lists the commands.

Exit codes: 0 success, 1 a finding or a failure, 2 an invalid command line, 130 after Ctrl-C, 143
after SIGTERM, 141 if the reader of the output has closed it.
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
    args = parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except HoodieError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a folder that cannot be written, a full disk
        print(f"error: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    root = argparse.ArgumentParser(
        prog="python -m hoodie_nb",
        description="Write Apache Hudi tables from PySpark streams and watch how they are written",
    )
    root.add_argument("--version", action="version", version=_version())
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(
        commands.add_parser("demo", help="stream a month of flights into a table and check it")
    )
    _add_doctor(commands.add_parser("doctor", help="report what is installed or missing"))

    def of_table(name: str, summary: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary)
        command.add_argument("path", metavar="PATH", help="the table's folder")
        return command

    _add_fsck(of_table("fsck", "report problems in a table and their fixes"))
    _add_history(of_table("history", "list a table's commits"))
    _add_clean(of_table("clean", "delete files that no retained snapshot reads"))
    _add_archive(of_table("archive", "move old instants to the archive"))
    _add_savepoint(of_table("savepoint", "keep a snapshot from being cleaned"))
    _add_compact(of_table("compact", "merge small files into larger ones"))
    _add_restore(of_table("restore", "undo all commits after a given one"))
    _add_rollback(of_table("rollback", "undo the newest commit"))
    return root


def _version() -> str:
    from hoodie_nb import __version__

    return f"hoodie_nb {__version__}"


def _add_dry_run(command: argparse.ArgumentParser, summary: str) -> None:
    command.add_argument("--dry-run", action="store_true", help=summary)


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.description = (
        "Stream New York's departures of 2013 into a Hudi table, read it with three readers and "
        "compare each with the board computed by pandas. Ctrl-C stops between two batches; the "
        "same command continues from there."
    )
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
    demo.add_argument("--cores", type=int, default=2, help="Spark's cores (default: 2)")
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
    demo.set_defaults(run=_demo)


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.description = "Report what is installed, missing or damaged, and how to fix it."
    doctor.add_argument("--checkpoint", metavar="FOLDER", help="also check this checkpoint folder")
    doctor.add_argument("--table", metavar="PATH", help="also check this table")
    doctor.set_defaults(run=_doctor)


def _add_fsck(fsck: argparse.ArgumentParser) -> None:
    fsck.description = "Report problems in a table and how to fix them."
    fsck.add_argument("--repair", action="store_true", help="first make all repairs that are safe")
    fsck.set_defaults(run=_fsck)


def _add_history(history: argparse.ArgumentParser) -> None:
    history.description = "List the commits of a table with what they wrote, oldest first."
    history.add_argument(
        "--last", type=int, default=20, metavar="N", help="only the last N commits (default: 20)"
    )
    history.set_defaults(run=_history)


def _add_clean(clean: argparse.ArgumentParser) -> None:
    clean.description = (
        "Delete the base files that no retained snapshot reads. Without a number the table's own "
        "options decide what is retained, as after each commit."
    )
    _add_dry_run(clean, "list the files, delete nothing")
    kept = clean.add_mutually_exclusive_group()
    kept.add_argument("--commits", type=int, metavar="N", help="retain the last N commits")
    kept.add_argument("--hours", type=int, metavar="N", help="retain the commits of N hours")
    kept.add_argument("--versions", type=int, metavar="N", help="retain N versions of each file")
    clean.set_defaults(run=_clean)


def _add_savepoint(savepoint: argparse.ArgumentParser) -> None:
    savepoint.description = "Keep the snapshot as of a commit until its savepoint is deleted."
    which = savepoint.add_mutually_exclusive_group()
    which.add_argument("--commit", metavar="INSTANT", help="the commit (default: the newest)")
    which.add_argument("--delete", metavar="INSTANT", help="delete the savepoint of this commit")
    which.add_argument("--list", action="store_true", help="list the savepoints")
    savepoint.add_argument("--comment", default="", metavar="TEXT", help="why it is kept")
    savepoint.set_defaults(run=_savepoint)


def _add_compact(compact: argparse.ArgumentParser) -> None:
    compact.description = (
        "Merge the small base files of each partition into larger ones, in one instant. The old "
        "files stay until they are cleaned."
    )
    _add_dry_run(compact, "show the plan, change nothing")
    compact.set_defaults(run=_compact)


def _add_archive(archive: argparse.ArgumentParser) -> None:
    archive.description = (
        "Move the oldest instants to the archive, until hoodie.keep.min.commits commits stay."
    )
    _add_dry_run(archive, "list the instants, change nothing")
    archive.set_defaults(run=_archive)


def _add_restore(restore: argparse.ArgumentParser) -> None:
    restore.description = (
        "Undo all commits after one, newest first, and delete their files. Stop all writers first."
    )
    restore.add_argument("--to", metavar="INSTANT", required=True, help="the last commit to keep")
    _add_dry_run(restore, "print the plan, change nothing")
    restore.set_defaults(run=_restore)


def _add_rollback(rollback: argparse.ArgumentParser) -> None:
    rollback.description = "Undo the newest commit and delete its files. Stop all writers first."
    rollback.add_argument("--commit", metavar="INSTANT", help="must be the newest (the default)")
    _add_dry_run(rollback, "list the files, change nothing")
    rollback.set_defaults(run=_rollback)


def _demo(args: Arguments) -> int:
    from hoodie_nb.programs.demo import DemoSettings, run

    return run(DemoSettings(**{name: value for name, value in vars(args).items() if name != "run"}))


def _doctor(args: Arguments) -> int:
    from hoodie_nb.lab.doctor import doctor

    report = doctor(checkpoint=args.checkpoint, table=args.table)
    print(report)
    return 0 if report.ok else 1


def _fsck(args: Arguments) -> int:
    from hoodie_nb.api import Table
    from hoodie_nb.lab.draw.svg import counted
    from hoodie_nb.table.fsck import fsck

    findings = Table.open(args.path).fsck(repair=True) if args.repair else fsck(args.path)
    for finding in findings:
        print(f"- {finding.what}\n  at stake: {finding.at_stake} ({finding.code})")
        print(f"  repaired: {finding.repaired}" if finding.repaired else f"  fix: {finding.fix}")
    left = sum(not finding.repaired for finding in findings)
    print(f"{args.path}: {counted(left, 'finding') if left else 'clean'}")
    return 1 if left else 0


def _history(args: Arguments) -> int:
    from hoodie_nb.api import Table

    commits = Table.open(args.path).history()
    columns = ["requested_time", "operation", "inserts", "updates", "deletes", "bytes_written"]
    print(commits[columns].tail(args.last).to_string(index=False))
    return 0


def _archive(args: Arguments) -> int:
    from hoodie_nb.api import Table

    archived = Table.open(args.path).archive(dry_run=args.dry_run)
    if args.dry_run:
        print(*archived.instants, sep="\n", end="\n" if archived.instants else "")
    print(archived)
    return 0


def _clean(args: Arguments) -> int:
    from hoodie_nb.api import Table

    given = {name: getattr(args, name) for name in ("commits", "hours", "versions", "dry_run")}
    cleaned = Table.open(args.path).clean(**given)
    if args.dry_run:
        print(*cleaned.files, sep="\n", end="\n" if cleaned.files else "")
    print(cleaned)
    return 0


def _savepoint(args: Arguments) -> int:
    from hoodie_nb.api import Table

    table = Table.open(args.path)
    if args.delete:
        table.delete_savepoint(args.delete)
    elif not args.list:
        table.savepoint(args.commit, comment=args.comment)
    found = table.savepoints()
    print("no savepoints" if found.empty else found.to_string(index=False))
    return 0


def _compact(args: Arguments) -> int:
    from hoodie_nb.api import Table

    compacted = Table.open(args.path).compact_small_files(dry_run=args.dry_run)
    for partition in compacted.partitions:
        print(partition)
    print(compacted)
    return 0


def _restore(args: Arguments) -> int:
    from hoodie_nb.api import Table

    restored = Table.open(args.path).restore(args.to, dry_run=args.dry_run)
    print(restored.table().to_string(index=False))
    print(restored)
    return 0


def _rollback(args: Arguments) -> int:
    from hoodie_nb.api import Table

    undone = Table.open(args.path).rollback(args.commit, dry_run=args.dry_run)
    if args.dry_run:
        print(*undone.files, sep="\n")
    print(undone)
    return 0


if __name__ == "__main__":
    sys.exit(main())
