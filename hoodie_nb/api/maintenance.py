"""Methods of `Table` for maintenance: clean, archive, cluster, compact, savepoint, restore."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, fields

import pandas as pd

from hoodie_nb.actions.savepoints import Savepoint, savepoints
from hoodie_nb.api.reads import Moment
from hoodie_nb.checks.findings import Finding
from hoodie_nb.checks.fsck import fsck
from hoodie_nb.config import CLEAN_POLICIES
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.evidence.other_engines import refuse_foreign_logs
from hoodie_nb.index.status import IndexStatus, index_status, rebuild_index
from hoodie_nb.lock.lock import writing
from hoodie_nb.lock.writers import Writers, writers
from hoodie_nb.services import restore, savepoint
from hoodie_nb.services.archive import Archived, archive
from hoodie_nb.services.clean import Cleaned, clean
from hoodie_nb.services.cluster import Clustered, cluster
from hoodie_nb.services.compact import Compacted, compact
from hoodie_nb.services.cures import cure
from hoodie_nb.services.restore import Restored
from hoodie_nb.services.rollback import RolledBack, newest, rollback


class TableMaintenance:
    """What `Table` offers to those who keep it healthy."""

    _handle: TableHandle
    events: EventLog

    def index_status(self) -> IndexStatus:
        """Return the coverage of the state index: files loaded, entries, bytes."""
        refuse_foreign_logs(self._handle)
        return index_status(self._handle)

    def rebuild_index(self) -> IndexStatus:
        """Rebuild the state index from the key column of every file."""
        with self._locked():
            return rebuild_index(self._handle)

    def clean(
        self,
        *,
        dry_run: bool = False,
        commits: int | None = None,
        hours: int | None = None,
        versions: int | None = None,
    ) -> Cleaned:
        """Delete files that no retained snapshot reads; with `dry_run` only return the plan.

        What is retained: the last `commits`, those of the last `hours`, or the last `versions` of
        each file. By default the table's options `hoodie.clean.*` decide, as after each commit, and
        only partitions that have changed since the last clean are checked.
        Raises InvalidConfig if several are given.
        """
        given = dict(zip(CLEAN_POLICIES, (commits, hours, versions), strict=True))
        with self._locked(dry_run):
            return clean(self._handle, self.events, given, dry_run=dry_run)

    def archive(self, *, dry_run: bool = False) -> Archived:
        """Move old instants to the archive; with `dry_run` only return the plan.

        `hoodie.keep.min.commits` commits stay, and those that cleaning, a savepoint or unfinished
        work needs. Raises InvalidTable if one of their files, or a file of the archive, is lost or
        damaged.
        """
        with self._locked(dry_run):
            return archive(self._handle, self.events, dry_run=dry_run)

    def savepoint(
        self, commit: Moment | Savepoint = None, *, comment: str = "", user: str = ""
    ) -> Savepoint:
        """Keep the snapshot as of a commit (None: the newest) until `delete_savepoint`.

        `commit`: 17 digits or a commit of `history`; or a time, meaning the newest commit up to
        then. Raises InvalidConfig if there is none, or its files were cleaned away.
        """
        with self._locked():
            return savepoint.create(self._handle, self.events, commit, comment=comment, user=user)

    def delete_savepoint(self, commit: Moment | Savepoint) -> None:
        """Delete the savepoint of a commit: `clean` may then delete its files."""
        with self._locked():
            savepoint.delete(self._handle, self.events, commit)

    def savepoints(self) -> pd.DataFrame:
        """Return the savepoints, oldest first, with the number of files that each keeps."""
        self._handle.reload()
        columns = [field.name for field in fields(Savepoint)]
        return pd.DataFrame(map(astuple, savepoints(self._handle)), columns=columns)

    def cluster(
        self, *, partitions: Sequence[str] | None = None, dry_run: bool = False
    ) -> Clustered:
        """Merge the small base files of each partition into larger ones, in one instant.

        With `dry_run` only return the plan. `partitions`: their paths (None: all). Rows keep their
        commit times, so `changes` reports none. The old files stay until they are cleaned.
        """
        with self._locked(dry_run):
            return cluster(self._handle, self.events, partitions=partitions, dry_run=dry_run)

    def compact(
        self, *, partitions: Sequence[str] | None = None, dry_run: bool = False
    ) -> Compacted:
        """Merge all log files of a merge-on-read table into new base files, in one instant.

        With `dry_run` only return the plan. `partitions`: their paths (None: all). Rows keep their
        commit times, so `changes` reports none. Afterwards this library writes partitions again
        that had log files of another engine.
        """
        with self._locked(dry_run):
            return compact(self._handle, self.events, partitions=partitions, dry_run=dry_run)

    def restore(self, to: Moment | Savepoint, *, dry_run: bool = False) -> Restored:
        """Undo all commits after `to` and delete their files; with `dry_run` only return the plan.

        `to`: as in `savepoint`. Streams whose batches are undone are refused at their next start,
        with the way to continue. Raises InvalidConfig if there is no such commit, nothing after it,
        a savepoint after it, or if its files were cleaned away; ConcurrentWriter while a job runs;
        WriteFailed after an I/O error, with the way to complete it.
        """
        with self._locked(dry_run, alone=True):
            return restore.restore(self._handle, self.events, to, dry_run=dry_run)

    def rollback(self, commit: Moment | Savepoint = None, *, dry_run: bool = False) -> RolledBack:
        """Undo the newest commit and delete its files; with `dry_run` only return the plan.

        `commit`: as in `savepoint` (None: the newest before the call waits for other writers).
        Streams are refused as after `restore`.
        Raises InvalidConfig if it is not the newest one, has a savepoint, only merged files, or if
        files of the commit before it were cleaned away; ConcurrentWriter while a job runs;
        WriteFailed after an I/O error, with the call to repeat.
        """
        seen = newest(self._handle) if commit is None else ""
        with self._locked(dry_run, alone=True):
            return rollback(self._handle, self.events, commit, dry_run=dry_run, seen=seen)

    def fsck(self, *, repair: bool | str = False) -> list[Finding]:
        """Return the problems of the table, each with its code and its fix; empty means clean.

        `repair=True` first makes all safe repairs (leftovers of dead writers, wrong footer indexes,
        ...), and their findings say so (`repaired`). "deduplicate" also keeps one row per key: that
        with the greatest ordering value, or the newest; "accept_loss" goes on without the rows of
        lost base or log files. Raises ConcurrentWriter while another process writes, WriteFailed
        after an I/O error, InvalidConfig for another word.
        """
        if not repair:
            return fsck(self._handle.storage)
        with self._locked():
            return cure(self._handle, self.events, repair)

    def writers(self) -> Writers:
        """Return who writes the table, who waits for it and who has died; nothing is locked.

        Also how many batches of this object were written before their turn. InvalidTable if a file
        of the lock cannot be read; on a store StoreFailed.
        """
        return Writers.of(writers(self._handle.storage), self.events)

    def _locked(
        self, dry_run: bool = False, *, alone: bool = False
    ) -> AbstractContextManager[object]:
        """Return the table's lock for a service; a plan alone needs none."""
        refuse_foreign_logs(self._handle)
        return nullcontext() if dry_run else writing(self._handle.storage, alone=alone)
