"""Files of savepoints on the timeline: encode, parse, list and remove; commits that they keep.

*On disk*: `T.savepoint.inflight` and `T.savepoint` (`T_C.savepoint` in layout 2), where T is the
time of the commit. The completed file is Avro in every table version: who saved it, when, why, and
the names of the snapshot's files by partition. Cleaning keeps these files (see `clean_plan`).

*Source:* HoodieSavepointMetadata, SavepointActionExecutor.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from hoodie_nb import failpoints
from hoodie_nb.display import card
from hoodie_nb.errors import InvalidConfig, readable
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.timeline.timeline import Instant
from hoodie_nb.types.avro_file import decode, encode, load_schema
from hoodie_nb.view.file_groups import FileGroups
from hoodie_nb.view.moments import parse_time

_RECORD = load_schema("HoodieSavepointMetadata")
ACTION = "savepoint"


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint: the time of its commit in 17 digits, and when it was made (UTC)."""

    requested_time: str
    comment: str
    user: str
    saved_at: datetime
    files: int

    def _repr_html_(self) -> str:
        facts = {name: getattr(self, name) for name in ("comment", "user", "saved_at", "files")}
        return card(f"savepoint {self.requested_time}", facts)


def encode_savepoint(groups: FileGroups, *, comment: str, user: str, now_ms: int) -> bytes:
    """Return the content of the completed file of a savepoint of these slices."""
    partitions = {
        path: {
            "partitionPath": path,
            "savepointDataFile": sorted(
                name.rpartition("/")[2] for piece in slices.values() for name in piece.paths
            ),
        }
        for path, slices in groups.slices.items()
    }
    who = {"savepointedBy": user, "savepointedAt": now_ms, "comments": comment}
    return encode(_RECORD, {**who, "partitionMetadata": partitions, "version": 1})


def savepoints(table: TableHandle) -> list[Savepoint]:
    """Return the completed savepoints, oldest first; InvalidTable if one cannot be read."""
    return [read_savepoint(table, instant) for instant in saved(table)]


def saved(table: TableHandle) -> list[Instant]:
    """Return the instants of the completed savepoints, oldest first."""
    return table.timeline.listing.completed(ACTION)


def read_savepoint(table: TableHandle, instant: Instant) -> Savepoint:
    """Return the savepoint of a completed instant; InvalidTable if it cannot be read."""
    where = f"{table.storage.root}/{table.timeline.path(instant)}"
    with readable(where, "delete it with Table.delete_savepoint and create it again"):
        raw = decode(table.timeline.read(instant))
        return Savepoint(
            instant.requested_time,
            str(raw["comments"]),
            str(raw["savepointedBy"]),
            datetime.fromtimestamp(raw["savepointedAt"] / 1000, UTC),
            sum(len(kept["savepointDataFile"]) for kept in raw["partitionMetadata"].values()),
        )


def refuse_archived(table: TableHandle, time17: str) -> None:
    """Raise InvalidConfig if this or a later commit is archived, although it is on the timeline.

    A crash has left it there. Undone, it would still count as archived.
    """
    times = table.timeline.listing.commit_times
    archived, _ = table.timeline.archive.commits()
    newest = max(archived.intersection(times), default="")
    if time17 <= newest:
        raise InvalidConfig(
            f"the commits of {table.storage.root} up to {newest} are archived, but a crash has "
            "left them on the timeline: call table.archive(), then name a later commit"
        )


def drop_pending_savepoints(table: TableHandle) -> None:
    """Drop the savepoints that were not completed, or not deleted to the end."""
    for pending in table.timeline.listing.pending_of(ACTION):
        remove(table, pending)


def remove(table: TableHandle, instant: Instant) -> None:
    """Remove a savepoint: its completed file first."""
    table.timeline.withdraw(instant)
    failpoints.hit("savepoint.deleted.post")
    table.timeline.remove(instant)


def commit_as_of(table: TableHandle, moment: object) -> Instant:
    """Return the commit that a moment names: the very one, or the newest up to a time of day.

    Digits, a commit and a savepoint name one commit; None is the newest. Raises InvalidConfig if
    there is no such completed commit on the timeline.
    """
    commits = table.timeline.listing.commits
    named = getattr(moment, "requested_time", moment)
    time17 = "9" if moment is None else parse_time(moment, table.config)
    if isinstance(named, str) and named.isdigit():
        found = [commit for commit in commits if commit.requested_time in (named, time17)]
    else:
        found = [commit for commit in commits if commit.requested_time <= time17]
    if found:
        return found[-1]
    if not commits:
        raise InvalidConfig(f"the timeline of {table.storage.root} has no completed commit")
    raise InvalidConfig(
        f"{named} is not a completed commit on the timeline of {table.storage.root}: "
        f"`table.history()` lists them, the first is {commits[0].requested_time}"
    )
