"""A follower: a copy of the table that is kept up to date with `changes`, for a long time."""

from __future__ import annotations

from collections import Counter

from core.replay import listed, replayed

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.reading.changes import changes
from hoodie_nb.reading.read import to_arrow
from hoodie_nb.types.schema import FILE_NAME

_REASONS = ("has undone", "was undone", "were archived", "can be read is", "has not completed")


class Follower:
    """The rows as of `position`, the commit up to which the follower has read."""

    def __init__(self) -> None:
        self.position = ""
        self._rows: list[dict[str, object]] = []

    def follow(self, table: TableHandle, undone: set[str]) -> str:
        """Read on from the position; return "follows", or the reason why it had to read anew.

        After the changes the copy equals the table. Changes since an undone commit are refused.
        """
        times = [i.requested_time for i in table.timeline.completed_commits()]
        if not times:
            self.position, self._rows = "", []
            return "empty"
        until = times[-1]
        try:
            changed = changes(table, self.position or None, until)
        except InvalidConfig as error:
            reason = next((text for text in _REASONS if text in str(error)), None)
            early = "is before `since`" in str(error) and self.position in undone
            assert reason or early, error
            if reason == "has not completed":
                return reason
            self.position, self._rows = until, listed(to_arrow(table, as_of=until))
            return reason or "undone"
        assert self.position not in undone, f"follows the undone position {self.position}"
        after = listed(to_arrow(table, as_of=until))
        names = changed.drop_columns(["_change", FILE_NAME]).column_names
        held = [{name: row.get(name) for name in names} for row in self._rows]
        found = replayed(held, changed)
        expected = Counter(map(repr, after))
        assert found == expected, f"the copy of {self.position} differs at {until}"
        self.position, self._rows = until, after
        return "follows"
