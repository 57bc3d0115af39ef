"""Small stories of two writers and a service, each of which breaks if a rule is taken out."""

from __future__ import annotations

from writers.table import Change, File
from writers.world import Rules, Story

UP, LATE, DELETE = Change("k1", 6), Change("k1", 3), Change("k1", 6, deleted=True)
ONE = frozenset({File("g1", 1, frozenset({Change("k1", 5)}))})
TWO = ONE | {File("g2", 1, frozenset({Change("k2", 5)}))}


def story(first: object, second: object, **given: object) -> Story:
    """Return a story; each writer has checkpoints of changes, or one change."""
    batches = [((work,),) if isinstance(work, Change) else work for work in (first, second)]
    return Story(batches=tuple(batches), **given)


STORIES = {
    "the same new key": story(UP, Change("k1", 7)),
    "a new key in a small file": story(
        Change("k2", 4), Change("k2", 6, deleted=True), files=ONE, fill=True
    ),
    "a delete that finds nothing": story(DELETE, LATE),
    "a late row": story(LATE, DELETE, files=ONE),
    "one of two groups": story(((UP, Change("k2", 6)),), Change("k1", 7), files=TWO),
    "first commits": story(UP, Change("k2", 7)),
    "two logs": story(UP, DELETE, files=ONE, logs=True),
    "equal ordering values": story(UP, Change("k1", 6), files=ONE, logs=True),
    "logs by commit time": story(
        Change("k1", 1), Change("k1", 2), files=ONE, logs=True, event_time=False
    ),
    "a base file beside a log": story(
        LATE, ((DELETE, Change("k2", 4)),), files=ONE, fill=True, logs=True
    ),
    "a compaction": story(UP, Change("k1", 7, True), files=ONE, logs=True, service="compact"),
    "a clustering": story(
        Change("k1", 8), ((DELETE,), (Change("k1", 7),)), files=ONE, logs=True, service="cluster"
    ),
    "deleted, compacted, inserted": story(
        Change("k1", 8),
        ((DELETE,), (Change("k1", 7),)),
        files=ONE,
        logs=True,
        event_time=False,
        service="compact",
    ),
    "two checkpoints": story(((UP,), (Change("k1", 8),)), Change("k1", 7), files=ONE),
    "sealed checkpoints": story(((UP,), (Change("k1", 8),)), Change("k2", 7), seals=True),
    "sealed, onto logs": story(
        ((UP,), (Change("k2", 8),)), Change("k1", 7), files=ONE, logs=True, seals=True
    ),
}

# which story shows that a rule is needed, with how many crashes and sleeps
SHOWN = {
    "view_in_section": ("two logs", 0, 0),
    "found_groups": ("a late row", 0, 0),
    "key_check": ("the same new key", 0, 0),
    "deletes_checked": ("a delete that finds nothing", 0, 0),
    "old_groups": ("a new key in a small file", 0, 0),
    "new_instant": ("two logs", 0, 0),
    "after_first": ("a delete that finds nothing", 0, 0),
    "log_order": ("two logs", 0, 0),
    "log_deletes": ("deleted, compacted, inserted", 0, 0),
    "base_of_log": ("a clustering", 0, 0),
    "base_after_logs": ("a base file beside a log", 0, 0),
    "owner_folder": ("two checkpoints", 2, 0),
    "replace_self": ("the same new key", 0, 1),
    "read_self": ("the same new key", 0, 1),
    "notes_by_completion": ("a late row", 1, 0),
    "notes_in_section": ("sealed checkpoints", 0, 0),
    "record_by_notes": ("two checkpoints", 0, 1),
    "links_withdrawn": ("the same new key", 0, 1),
    "own_marks": ("sealed checkpoints", 0, 0),
}
assert set(SHOWN) == set(Rules._fields)
