"""What the next clean may skip: bytes that commits made old, and how far cleans have looked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hoodie_nb.timeline.commits import WriteStatus
from hoodie_nb.view.file_groups import FileGroups

HOUR_COMMITS = 100  # commits of the last hour that are retained at most


@dataclass(frozen=True, slots=True)
class Outdated:
    """What a commit has made old: the bytes of the files that it replaced, in which partitions."""

    instant_time: str
    size_bytes: int
    partitions: frozenset[str]

    @classmethod
    def of(cls, time17: str, statuses: Sequence[WriteStatus], before: FileGroups) -> Outdated:
        """Return it for a commit, from the view of the file groups before it."""
        bases = (s for s in statuses if not s.is_log)
        old = (before.partition(s.partition_path).get(s.file_id) for s in bases)
        size = sum(piece.total_bytes for piece in old if piece is not None)
        return cls(time17, size, frozenset(s.partition_path for s in statuses))


@dataclass(frozen=True, slots=True)
class Mark:
    """How far an earlier plan has looked: later ones start with the commits from `upto` on.

    If one of the savepoints is gone since, all partitions must be looked at again.
    """

    versions: int
    upto: str
    savepoints: frozenset[str]
