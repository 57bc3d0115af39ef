"""What commits say of each file group: its files over time, when it was replaced.

Commits of the active timeline and archived ones say it in the same way. A slice is read from its
instant until the next one of its group, or until the group is replaced.

*Source:* HoodieWriteStat, HoodieReplaceCommitMetadata.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hoodie_nb.timeline.commits import CommitMetadata
from hoodie_nb.timeline.timeline import Instant
from hoodie_nb.view.file_groups import Group, base_files_at
from hoodie_nb.view.read_handle import ReadHandle


class FileFacts(NamedTuple):
    """What a commit says of a file: bytes and rows, and the instant of the slice before it."""

    size_bytes: int | None
    rows: int | None
    previous: str | None


@dataclass(slots=True)
class History:
    """What some commits say, added in any order.

    `facts` are said of each file, by path; `files` are the paths of each group's base files by
    instant, `replaced` is when a group was replaced first.
    """

    facts: dict[str, FileFacts] = field(default_factory=dict)
    files: dict[Group, dict[str, str]] = field(default_factory=dict)
    replaced: dict[Group, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: ReadHandle, commits: Iterable[Instant], *, keep: bool = True) -> "History":
        """Return what these commits say; `keep`: keep them decoded (see `commit_metadata`)."""
        found = cls()
        for instant in commits:
            found.add(instant.requested_time, table.commit_metadata(instant, keep=keep))
        return found

    def add(self, instant_time: str, commit: CommitMetadata) -> None:
        """Add what a commit says."""
        for path, stat in commit.files.items():
            known = map(stat.get, ("fileSizeInBytes", "numWrites", "prevCommit"))
            self.facts[path] = FileFacts(*known)
        for path, group, name in base_files_at(commit.files):
            self.files.setdefault(group, {})[name.instant_time] = path
        for group in commit.replaced_groups:
            self.replaced[group] = min(instant_time, self.replaced.get(group, instant_time))

    @property
    def newest(self) -> dict[Group, tuple[str, str]]:
        """Return the instant and the path of each group's newest base file."""
        return {group: max(files.items()) for group, files in self.files.items()}
