"""The names of the notebooks: each loads; a claim that does not hold stops the notebook."""

import pytest

import hoodie_nb as hn
from hoodie_nb import failpoints, lab


@pytest.mark.parametrize("name", lab.__all__)
def test_a_name_of_the_notebooks_loads(name):
    """Each name of `hoodie_nb.lab` is where its table says."""
    assert getattr(lab, name).__name__ if callable(getattr(lab, name)) else True


def test_another_name_is_an_attribute_error():
    """A misspelled name says which module lacks it."""
    with pytest.raises(AttributeError, match=r"hoodie_nb\.lab"):
        _ = lab.LocalJobs


def test_a_claim_is_printed_only_if_all_of_its_facts_hold(capsys):
    """One wrong fact is enough to stop the notebook."""
    lab.check("rows are there", True, [1])
    assert capsys.readouterr().out == "✓ rows are there\n"
    with pytest.raises(AssertionError, match="rows are there"):
        lab.check("rows are there", True, [])
    assert capsys.readouterr().out == ""


def test_a_place_fails_until_it_is_repaired():
    """`fail_at` arms a failpoint, and without a name disarms it."""
    lab.fail_at("coord.commit.pre=raise:EIO")
    with pytest.raises(OSError, match="Input/output"):
        failpoints.hit("coord.commit.pre")
    lab.fail_at()
    failpoints.hit("coord.commit.pre")


def test_a_program_is_killed_at_its_place_and_only_there():
    """The exit code shows the signal; `@2` lets the first time pass."""
    program = "import sys; from hoodie_nb import failpoints as f; f.hit('coord.publish'); "
    program += "sys.argv[1] == 'twice' and f.hit('coord.publish')"
    assert lab.start_program(program, "once").wait() == 0
    assert lab.start_program(program, "once", kill_at="coord.publish@2").wait() == 0
    assert lab.start_program(program, "twice", kill_at="coord.publish@2").wait() == -9


@pytest.mark.parametrize(("clears_first", "stored"), [(False, 100), (True, 0)])
def test_a_buffer_that_is_cleared_before_its_flush_loses_its_rows(tmp_path, clears_first, stored):
    """After a failed flush the next checkpoint writes what is in the buffer, if anything is."""
    made = lab.Generated(rows=100, batches=1, partitions=1, update_share=0)
    table = lab.create_table(str(tmp_path / "table"), made.config, clock=lab.ManualClock())
    job = lab.LocalJob(table)
    job.write(made.tables()[0])
    lab.fail_at("writer.data=raise:ENOSPC")
    with pytest.raises(hn.WriteFailed):
        job.checkpoint(1, clears_first=clears_first)
    lab.fail_at()
    job.checkpoint(2)
    job.complete(2)
    assert hn.Table.open(tmp_path / "table").to_arrow().num_rows == stored
