"""Lost base files: files that commits wrote and that are no longer in the partitions.

A write builds on the newest slice of each file group. If that file is gone (deleted by hand, a lost
disk block), the previous slice looks like the newest, and the next version of the group would
permanently lack the rows of the lost file. So each write compares the listing with the commits of
the active timeline: the slice of a group must be the very file that the newest commit wrote for it,
unless the group was replaced. Hudi's cleaner never removes the newest slice of a live group, and
instants that were rolled back or restored are no longer on the timeline.

*Cost*: a process reads each commit once and keeps one path per file group, for the last `_TABLES`
tables. **Caveats**: readers do not check; archived commits are not read.

*Source:* CleanPlanner, HoodieTimelineArchiver.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hoodie_nb.table.commits import CommitMetadata
from hoodie_nb.table.file_groups import BaseFileName, FileGroups
from hoodie_nb.table.timeline import Instant

Group = tuple[str, str]
_TABLES = 16
ACCEPT = (
    "call Table.open(path).repair(accept_loss=True), which continues with the rows in the other "
    "files"
)


@dataclass(slots=True)
class Written:
    """The newest base file that the commits read so far wrote for each file group."""

    commits: set[str] = field(default_factory=set)
    files: dict[Group, BaseFileName] = field(default_factory=dict)

    def add(self, instant_time: str, paths: Iterable[str]) -> None:
        """Add the base files of a commit."""
        self.commits.add(instant_time)
        for path in paths:
            folder, _, file_name = path.rpartition("/")
            name = BaseFileName.parse(file_name)
            known = None if name is None else self.files.get((folder, name.file_id))
            if name is not None and (known is None or known.instant_time < name.instant_time):
                self.files[folder, name.file_id] = name

    def missing(self, groups: FileGroups) -> list[tuple[str, BaseFileName]]:
        """Return folder and name of each file that is not the slice of its group."""
        found = []
        for (folder, file_id), name in self.files.items():
            piece = groups.partition(folder).get(file_id)
            other = piece is None or piece.file_name != str(name)
            if other and (folder, file_id) not in groups.replaced:
                found.append((folder, name))
        return found


_written: OrderedDict[str, Written] = OrderedDict()


def lost_files(
    root: str,
    groups: FileGroups,
    commits: Iterable[Instant],
    read: Callable[[Instant], CommitMetadata],
) -> list[tuple[str, BaseFileName]]:
    """Return folder and name of the base files that `commits` wrote and `groups` does not have."""
    listed = [i for i in commits if i.requested_time in groups.instants]
    for written in (_written.setdefault(root, Written()), Written()):
        for instant in listed:
            if instant.requested_time not in written.commits:
                written.add(instant.requested_time, read(instant).paths)
        _written[root] = written
        _written.move_to_end(root)
        if not written.missing(groups):
            break  # else commits were removed, or the table was replaced: read all again
    while len(_written) > _TABLES:
        _written.popitem(last=False)
    return sorted(written.missing(groups), key=str)


def note_written(root: str, instant_time: str, paths: Iterable[str]) -> None:
    """Add a commit of this process, so that its metadata need not be read."""
    if root in _written:
        _written[root].add(instant_time, paths)


def lost_message(root: str, lost: Sequence[tuple[str, BaseFileName]], groups: FileGroups) -> str:
    """Return the message of an InvalidTable for lost files."""
    (folder, name), count = lost[0], len(lost)
    others = f" (and {count - 1} more)" if count > 1 else ""
    problem, fix = "is missing", "Restore it from a backup"
    piece = groups.partition(folder).get(name.file_id)
    if piece is not None and piece.instant_time > name.instant_time:
        problem = f"is older than {piece.path}, which no commit names"
        fix = f"Restore {piece.instant_time}.commit from a backup, if it is damaged; or move that "
        fix += "file out of the table"
    return (
        f"{root}/{folder + '/' if folder else ''}{name}{others}, written by commit "
        f"{name.instant_time}, {problem}: a write would build on another file, and the rows of "
        f"this one would be lost permanently. {fix}, or {ACCEPT}"
    )
