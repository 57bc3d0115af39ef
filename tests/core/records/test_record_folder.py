"""A folder of records: what is read again, and when."""

import pytest
from counted_storage import CountedStorage
from faults import Fault, FaultyStorage

from hoodie_nb.definition.rules import KeptRules
from hoodie_nb.records.progress import Checkpoint
from hoodie_nb.records.sealing import SealedRecords
from hoodie_nb.storage.storage import STAGED

CHECKPOINTS = [Checkpoint("q", number, f"{number:064d}") for number in range(4)]


def records_of(storage):
    """Return the sealed records of a table without commits."""
    storage.make_folder(STAGED)
    return SealedRecords(storage, KeptRules(storage), lambda checkpoint: None)


def test_a_sealed_record_is_read_once_by_each_process(tmp_path):
    """A stream with many sealed checkpoints does not read all of them at each checkpoint."""
    storage = CountedStorage(FaultyStorage(tmp_path))
    first = records_of(storage)
    for checkpoint in CHECKPOINTS:
        first.add(checkpoint, [], 0)
        first.refresh()
    assert [record.checkpoint for record in first.all()] == CHECKPOINTS
    assert storage.requests["GET"] == 0
    second = records_of(storage)
    for _ in range(3):
        second.refresh()
        assert second.all() == first.all()
    assert storage.requests["GET"] == len(CHECKPOINTS)


def test_another_holder_of_the_lock_is_noticed(tmp_path):
    """After `refresh`, records that another holder has removed or added are so here, too."""
    storage = FaultyStorage(tmp_path)
    ours, theirs = records_of(storage), records_of(storage)
    ours.add(CHECKPOINTS[0], [], 0)
    ours.add(CHECKPOINTS[1], [], 0)
    theirs.remove(CHECKPOINTS[:2])
    theirs.applied = ours.applied = 1
    theirs.add(CHECKPOINTS[2], [], 0)
    ours.refresh()
    assert [record.checkpoint for record in ours.all()] == CHECKPOINTS[2:3]


@pytest.mark.parametrize("how", ["error", "error_after"])
def test_after_a_failed_change_the_folder_is_read_again(tmp_path, how):
    """A name that is free again may get another content: what is on disk counts."""
    storage = FaultyStorage(tmp_path)
    records = records_of(storage)
    records.add(CHECKPOINTS[0], [], now_ms := 1)
    records.refresh()
    records.remove(CHECKPOINTS[:1])
    before_put = 3  # make the folder, sync the one above it, sync the staging area
    storage.fault = Fault(at=storage.steps + before_put + 1, how=how)
    with pytest.raises(OSError, match="put"):
        records.add(CHECKPOINTS[0], [], now_ms + 1)
    storage.fault = None
    expected = [] if how == "error" else [now_ms + 1]
    assert [record.sealed_at_ms for record in records.all()] == expected
