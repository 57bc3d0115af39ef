"""Global keys: a row whose key is in another partition moves, or updates the row there.

*Work flow*, on the keyed rows of a batch, right before they are assigned: one row per key is kept,
by the merge rule. Keys that are not in the partition of their row are looked up in all others. The
ordering values of those that are found there are read, and compared by the merge rule:

| row | stored in another partition | what is written |
| --- | --- | --- |
| a row that is not older | moves | the row, and a delete (`MOVED`) of the stored row |
| an older row | stays | the row, to the stored partition, where the merge finds it late |
| a delete | is deleted unless it is newer | the delete, to the stored partition |

Everything after that is as for other tables: both halves of a move are in one instant.

*Semantics*: a pure function of the rows and the plan's file groups. If the table has changed before
the commit, a redo computes it again from the rows: late rows and deletes are staged with their file
(`bucket_writer`), get their own partition back (`own_partitions`), and moves are not staged.

**Caveats**: a key that is new in its partition is looked up in each partition of the table, and
the key column of each file that may have a known key is read: hashes may be shared, and a state
index still has keys that were deleted or moved. A key that another engine has stored in two
partitions stays there until a row moves it, or `repair`; copies in one partition of which only some
are newer than a row that moves are refused. *Source:* HoodieGlobalBloomIndex with
`hoodie.bloom.index.update.partition.path`, which compares no ordering values (Hudi's issue 8203).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.buckets.index_port import Index
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.definition.keys import partition_paths
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidConfig, InvalidInput, InvalidTable
from hoodie_nb.files.base_file import iterate_rows, open_base_file
from hoodie_nb.intake.intake import Intake
from hoodie_nb.rows.columns import DELETE_ALWAYS, MOVED, OP, SEQ, is_delete, with_column
from hoodie_nb.rows.merge_rule import not_older
from hoodie_nb.rows.ordering import runs_of
from hoodie_nb.rows.taking import sort_rows, take_rows
from hoodie_nb.types.schema import PARTITION_PATH, RECORD_KEY

_ORDER = (PARTITION_PATH, RECORD_KEY, SEQ)
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Hits:
    """Rows whose key another partition has: their numbers, and whether they win there."""

    partition: str
    rows: Rows
    wins: npt.NDArray[np.bool_]


def relocated(keyed: pa.Table, plan: WritePlan, index: Index) -> pa.Table:
    """Return keyed rows with which each key is in one partition only, sorted as they were.

    Raises InvalidInput for an insert of a key that the table or the batch has already.
    """
    if not plan.intake.config.global_keys:
        return keyed
    rows = _one_per_key(keyed, plan.intake)
    hits = list(_Lookup(rows, plan, index).elsewhere())
    if not hits:
        return rows
    moving = take_rows(rows, pa.array(np.concatenate([hit.rows for hit in hits])))
    moves = np.concatenate([hit.wins for hit in hits]) & ~is_delete(moving)
    paths = np.repeat([hit.partition for hit in hits], [len(hit.rows) for hit in hits])
    kinds = np.where(moves, MOVED, moving.column(OP).to_numpy())
    there = with_column(with_column(moving, PARTITION_PATH, paths), OP, kinds)
    stays = np.ones(rows.num_rows, dtype=bool)
    stays[np.concatenate([hit.rows for hit in hits])[~moves]] = False
    return sort_rows(pa.concat_tables([rows.filter(pa.array(stays)), there]), _ORDER)


def own_partitions(keyed: pa.Table, intake: Intake) -> pa.Table:
    """Return keyed rows with the partition of their own columns, as they arrived."""
    if not intake.config.global_keys:
        return keyed
    return with_column(keyed, PARTITION_PATH, partition_paths(keyed, intake.config))


def refuse_global(config: TableConfig, what: str, remedy: str) -> None:
    """Raise InvalidConfig if the table has global keys, which `what` cannot keep in one place."""
    if config.global_keys:
        raise InvalidConfig(
            f"{what} is not supported for a table with global keys (global_index=True): {remedy}"
        )


def _one_per_key(keyed: pa.Table, intake: Intake) -> pa.Table:
    keys = keyed.column(RECORD_KEY)
    if pc.count_distinct(keys).as_py() == keyed.num_rows:
        return keyed
    if intake.adds:
        counts = pc.value_counts(keys)
        twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
        _refuse(f"the batch has key {twice!r} more than once")
    return sort_rows(intake.rule.fold(keyed), _ORDER)


class _Lookup:
    """Finds the keys of a batch in the partitions of the plan; exact, whatever the index says."""

    def __init__(self, rows: pa.Table, plan: WritePlan, index: Index) -> None:
        self._rows = rows
        self._plan = plan
        self._index = index
        self._keys = rows.column(RECORD_KEY).combine_chunks()
        self._kinds = rows.column(OP).to_numpy()

    def elsewhere(self) -> Iterator[_Hits]:
        """Yield the rows whose key is not in their own partition, but in another one."""
        partitions = self._rows.column(PARTITION_PATH).combine_chunks()
        new = np.ones(len(partitions), dtype=bool)
        for a, b in runs_of(partitions):
            for hit in self._stored(partitions[a].as_py(), np.arange(a, b), None):
                new[hit.rows] = False
        away = np.flatnonzero(new)
        homes = partitions.take(pa.array(away))
        for partition in sorted(self._plan.groups.slices):
            others = pc.not_equal(homes, partition).to_numpy(zero_copy_only=False)
            found = list(self._stored(partition, away[others], self._plan.intake.ordering))
            if found:
                yield self._verdict(partition, found)

    def _verdict(self, partition: str, hits: list[_Hits]) -> _Hits:
        """Return each row once; refuse one that beats some copies of its key, and not others."""
        rows, at = np.unique(np.concatenate([hit.rows for hit in hits]), return_inverse=True)
        won = np.bincount(at, weights=np.concatenate([hit.wins for hit in hits]))
        mixed = np.flatnonzero((won > 0) & (won < np.bincount(at)))
        if len(mixed):
            key = self._keys[int(rows[mixed[0]])].as_py()
            raise InvalidTable(
                f"{self._plan.storage.root}: partition {partition!r} has key {key!r} more than "
                "once, with older and newer ordering values than the new row, which cannot move "
                'them: call Table.open(path).fsck(repair="deduplicate")'
            )
        return _Hits(partition, rows, won > 0)

    def _stored(self, partition: str, rows: Rows, ordering: str | None) -> Iterator[_Hits]:
        """Yield those of the rows whose key the partition has, file by file.

        With `ordering` in each of the files that has it, else in one.
        """
        slices = self._plan.groups.partition(partition)
        if not slices or not len(rows):
            return
        keys = self._keys.take(pa.array(rows))
        found = self._index.locate(partition, keys)
        where = np.flatnonzero(found.is_valid())
        ids = found.drop_null()
        if ordering and len(where):
            at, others = self._index.copies(partition, keys.take(pa.array(where)), ids)
            where = np.concatenate([where, where[at]])
            ids = pa.concat_arrays([ids, pa.array(others, ids.type)])
        files = ids.dictionary_encode()
        for number, file_id in enumerate(files.dictionary.to_pylist()):
            piece = slices[file_id]
            mine = where[files.indices.to_numpy() == number]
            path = self._plan.storage.fetch(piece.path, piece.size_bytes)
            for at, stored in _matches(path, keys.take(pa.array(mine)), self._columns(ordering)):
                hit = rows[mine[at]]
                if self._plan.intake.adds:
                    key = self._keys[int(hit[0])].as_py()
                    _refuse(f"key {key!r} is in partition {partition!r} already")
                yield _Hits(partition, hit, self._wins(hit, stored, ordering))

    def _columns(self, ordering: str | None) -> pa.Schema:
        names = [RECORD_KEY, *([ordering] if ordering else [])]
        return pa.schema([self._rows.schema.field(name) for name in names])

    def _wins(self, rows: Rows, stored: pa.Table, ordering: str | None) -> npt.NDArray[np.bool_]:
        always = self._kinds[rows] >= DELETE_ALWAYS
        if ordering is None:
            return np.ones_like(always)
        incoming = self._rows.column(ordering).take(pa.array(rows)).combine_chunks()
        wins = always | not_older(incoming, stored.column(ordering).combine_chunks())
        return np.asarray(wins, dtype=bool)


def _matches(path: str, keys: pa.Array, columns: pa.Schema) -> Iterator[tuple[Rows, pa.Table]]:
    """Yield the positions of the `keys` that a base file has, with these columns of its rows."""
    for piece in iterate_rows(open_base_file(path), columns, path):
        at = pc.index_in(piece.column(RECORD_KEY), value_set=keys)
        if at.null_count < len(at):
            found = at.drop_null().combine_chunks().to_numpy().astype(np.int64)
            yield found, piece.filter(at.is_valid())


def _refuse(why: str) -> None:
    raise InvalidInput(
        f"insert: {why}, and the table has global keys (global_index=True): use upsert; nothing of "
        "the batch was written"
    )
