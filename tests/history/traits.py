"""The traits of one history, derived from its pipeline and seed.

| trait | which seeds | what it tries |
| --- | --- | --- |
| `insert` | every fourth of `step1`, `step2` | every row exactly once, instead of upserts |
| `interval` | every fifth | checkpoints are sealed: three at a time, or for 30 seconds |
| `long` | 7, 32, 57, … | 105 to 130 checkpoints in one interval, more than any cache holds |
| `keys` | two of seven each | `composite`: nulls, empty values; `unicode`: both sides of U+FFFF |
| `links` | nine of eleven | without: a file system that has no hard links |
| `narrow` | every other | the index's hashes cut to 8 bits, so that keys share them all the time |
| `retained` | all but every fifth | after a commit files are cleaned: 1 to 4 commits are retained |
| `archived` | two of seven | and archived: one or two more commits than these stay |
| `clock` | every third | the clock is set back and forward by up to an hour |
| `logs` | those that are asked for | a merge-on-read table of version 8 or 9, without intervals |
"""

from __future__ import annotations

from dataclasses import dataclass

from hoodie_nb.records.sealing import Interval

KEYS = ("plain", "composite", "unicode", "plain", "composite", "unicode", "plain")
SIZES = (  # every file is full; files take a few more rows; one file takes all
    {},
    {"hoodie.parquet.small.file.limit": 11_500, "hoodie.parquet.max.file.size": 12_500},
    {"hoodie.parquet.small.file.limit": 9_000_000, "hoodie.parquet.max.file.size": 10_000_000},
)
OPTIONS = {
    "hoodie.parquet.small.file.limit": 4000,
    "hoodie.parquet.max.file.size": 6000,
    "write.batch.size": 600,
    "write.task.max.size": 1500,
    "hoodie.copyonwrite.record.size.estimate": 300,
}


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of one history."""

    insert: bool = False
    interval: Interval | None = None
    long: bool = False
    keys: str = "plain"
    index: str = "bloom+state"
    links: bool = True
    narrow: bool = False
    clock: bool = False
    sizes: int = 0
    retained: int = 0
    archived: bool = False
    logs: bool = False
    seed: int = 0

    @classmethod
    def of(cls, pipeline: str, seed: int, *, logs: bool = False) -> Traits:
        """Return the traits of the history with that seed."""
        long = seed % 25 == 7 and not logs
        insert = pipeline != "step3" and seed % 4 == 3 and not long
        return cls(
            insert=insert,
            interval=None if insert or logs else _interval(seed, long=long),
            long=long,
            logs=logs,
            seed=seed,
            keys=KEYS[seed % 7],
            index="bloom" if seed % 4 == 1 else "bloom+state",
            links=seed % 11 not in (3, 8),
            narrow=seed % 2 == 0,
            clock=seed % 3 == 1,
            sizes=seed % 3,
            retained=seed % 5,
            archived=seed % 7 in (1, 4),
        )

    @property
    def options(self) -> dict[str, object]:
        """Return the table's write options."""
        retained = {"hoodie.clean.commits.retained": self.retained or 10}
        few = {"hoodie.keep.min.commits": 1, "hoodie.keep.max.commits": 2} if self.archived else {}
        appends = {
            "hoodie_nb.append.above.bytes": (0, 5000)[self.seed % 2],
            "hoodie.compact.inline.max.delta.commits": (1, 2, 4, 10)[self.seed % 4],
        }
        return {**OPTIONS, **SIZES[self.sizes], **retained, **few, **(appends if self.logs else {})}


def _interval(seed: int, *, long: bool) -> Interval | None:
    if long:
        return Interval(checkpoints=105)
    if seed % 10 == 9:
        return Interval(duration_ms=30_000)
    return Interval(checkpoints=3) if seed % 5 == 4 else None
