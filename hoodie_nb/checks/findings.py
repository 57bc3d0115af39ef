"""fsck, codes: what is at stake, fix as text; which `fsck(repair=True)` repairs, and how.

*Codes* are stable words for programs; docs/fsck.md lists them. `STAKES` says of each what may
happen to the rows that the table should have, if nothing is done: some are lost, readers do not
show them, or readers show some twice.
"""

from dataclasses import dataclass

from hoodie_nb.evidence.lost import ACCEPT

REPAIR = "call Table.open(path).fsck(repair=True)"
DEDUPLICATE = (
    'call Table.open(path).fsck(repair="deduplicate"), which keeps the row with the greatest '
    "ordering value of each key, or the newest row"
)
RESTORE = (
    "restore it from a backup; without one its rows are lost: move it out of the table, then "
    f"{ACCEPT}"
)
REPLACE = (
    "restore it from a backup, or move it out of the table. If its rows are then missing, "
    f"{ACCEPT}, and upsert the rows of the moved file"
)
MOVE = "move it out of the table: readers may show its rows"

STAKES = {
    "copied-partition": "rows doubled",
    "damaged-archive": "nothing",
    "damaged-base-file": "rows lost",
    "damaged-log": "rows lost",
    "damaged-partition-metadata": "rows hidden",
    "damaged-quarantine": "rows lost",
    "damaged-savepoint": "nothing",
    "duplicate-keys": "rows doubled",
    "foreign-file": "rows doubled",
    "foreign-pending-instant": "nothing",
    "hidden-slice": "rows hidden",
    "late-archived-file": "rows hidden",
    "late-completed-file": "rows lost",
    "leftover": "disk space",
    "leftover-metadata-table": "disk space",
    "lost-base-file": "rows lost",
    "lost-commit": "rows lost",
    "lost-completed-file": "rows lost",
    "lost-log": "rows lost",
    "lost-older-file": "rows hidden",
    "lost-partition-metadata": "rows hidden",
    "orphan-file": "rows doubled",
    "other-rules": "rows lost",
    "other-table": "rows doubled",
    "pending-instant": "nothing",
    "replaced-file-group": "rows hidden",
    "second-completed-file": "nothing",
    "torn-log": "rows lost",
    "unfinished-file": "nothing",
    "unnamed-file": "rows lost",
    "unreadable-base-file": "rows hidden",
    "unreadable-log": "rows hidden",
    "unreadable-plan": "nothing",
    "unreadable-record": "rows lost",
    "unreadable-table": "rows hidden",
    "wrong-key-index": "rows doubled",
    "wrong-partition": "rows doubled",
    "wrong-record-key": "rows doubled",
}

REPAIRS = {  # what `fsck(repair=True)` does, of an orphan only if it is certain
    "damaged-partition-metadata": "written again",
    "late-archived-file": "deleted",
    "late-completed-file": "deleted",
    "leftover": "deleted",
    "lost-partition-metadata": "written again",
    "orphan-file": "deleted",
    "pending-instant": "completed or rolled back",
    "unfinished-file": "committed or deleted with its instant",
    "wrong-key-index": "rewritten",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a table: its cause, how to fix it, and its code, one of `STAKES`.

    `path` is that of a file which may be deleted, `repaired` what `fsck(repair=True)` has done;
    else they are empty.
    """

    what: str
    fix: str
    code: str
    path: str = ""
    repaired: str = ""

    @property
    def at_stake(self) -> str:
        """Return what the table loses if nothing is done."""
        return STAKES[self.code]

    def __str__(self) -> str:
        return f"{self.what}: {f'repaired ({self.repaired})' if self.repaired else self.fix}"
