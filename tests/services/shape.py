"""The table of a history of services, drawn by its seed, and where its actions may die."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hoodie_nb import failpoints

VERSIONS = (6, 9, 6, 8)
LOGS = 10_000  # from this seed on, tables are merge-on-read

_WRITES = [n for n in failpoints.NAMES if n.startswith(("coord.", "writer.data", "assigner."))]
_NEVER = ("coord.seal", "coord.unseal", "coord.prepare", "coord.reapply", "coord.redo")
_AFTER = ("clean.", "archive.")  # every commit may clean and archive
_SERVICES = {
    "clean": ("clean.",),
    "archive": ("archive.",),
    "save": ("savepoint.inflight", "savepoint.completed"),
    "unsave": ("savepoint.deleted",),
    "rollback": ("restore.rollback", "restore.withdrawn", "rollback."),
    "restore": ("restore.", "rollback.files", "rollback.instant", "rollback.completed"),
}


def points(name: str) -> list[str]:
    """Return the failpoints that an action may pass."""
    begins = _SERVICES.get(name)
    if begins is not None:
        return [n for n in failpoints.NAMES if n.startswith(begins)]
    own = [n for n in _WRITES if not n.startswith(_NEVER)]
    return own + [n for n in failpoints.NAMES if n.startswith((*_AFTER, "rollback."))]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a seed's table is created with."""

    version: int
    partitioned: bool
    ordering: str | None
    hive_style: bool
    retained: int
    options: dict[str, object] = field(hash=False)
    merge_on_read: bool = False

    @classmethod
    def of(cls, seed: int, draw: random.Random) -> Shape:
        """Return the shape of a seed."""
        retained = draw.choice([1, 2, 3, 5])
        least = retained + draw.choice([1, 2])
        options: dict[str, object] = {
            "hoodie.clean.commits.retained": retained,
            "hoodie.keep.min.commits": least,
            "hoodie.keep.max.commits": least + draw.choice([1, 2]),
            "hoodie.clean.automatic": draw.random() < 0.7,
            "hoodie.archive.automatic": draw.random() < 0.7,
        }
        if draw.random() < 0.6:  # many file groups
            options["hoodie.parquet.small.file.limit"] = 0
        logs = seed >= LOGS
        if logs:
            options["hoodie_nb.append.above.bytes"] = 0
            options["hoodie.compact.inline.max.delta.commits"] = draw.choice([2, 3, 10])
        versions = (8, 9, 9) if logs else VERSIONS
        return cls(
            version=versions[seed % len(versions)],
            partitioned=draw.random() < 0.8,
            ordering="ts" if draw.random() < 0.7 else None,
            hive_style=draw.random() < 0.5,
            retained=retained,
            options=options,
            merge_on_read=logs,
        )
