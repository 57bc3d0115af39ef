"""Files of other engines with any content give the right rows or an `InvalidTable` with the name.

A table's folder is written by other engines, interrupted copies and people. Whatever exists
under a name that is read, opening, reading, checking and writing either work or raise one of
the library's own errors.
"""

from __future__ import annotations

import copy
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tables import schema_of, without_meta

from hoodie_nb import Table
from hoodie_nb.errors import HoodieError, InvalidTable

SCHEMA = schema_of()
LATER = "20990101000000000"
META = ".hoodie"
OPTIONS = f"{META}/.hoodie_nb/options.json"
PROPERTIES = f"{META}/hoodie.properties"
MARKED = "x/.hoodie_partition_metadata"
PLAN = f"{META}/{LATER}.rollback.requested"
EXAMPLES = settings(
    max_examples=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NewFolder = Callable[[], Path]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["null", "record", "20990101000000000", "../..", "x/a_b_c.parquet"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
DEEP = (b"[" * 100_000, b'{"a":' * 100_000)
BYTES = st.binary(max_size=40) | st.sampled_from(DEEP) | JSON.map(lambda v: json.dumps(v).encode())


def rows(*given: tuple[str, int]) -> pa.Table:
    """Return rows from (id, ts) in partition `x`."""
    return pa.Table.from_pylist([{"id": k, "p": "x", "ts": ts, "v": ts} for k, ts in given], SCHEMA)


@pytest.fixture(scope="module")
def sound(new_folder: NewFolder) -> Path:
    """Return the folder of a table with two commits."""
    table = Table.create(
        new_folder() / "t", schema=SCHEMA, record_key="id", partition_by="p", ordering="ts"
    )
    table.upsert(rows(("a", 1), ("b", 1)))
    table.upsert(rows(("a", 2)))
    return Path(table.path)


def newest_commit(table: Path) -> Path:
    """Return the completed file of the newest commit."""
    return max(Path(table, META).glob("*.commit"))


def use(table: Path) -> list[HoodieError]:
    """Open, read, check and write a table; return the errors; only our own ones are allowed."""
    raised = []
    for act in (
        lambda: Table.open(table).to_arrow(),
        lambda: Table.open(table).history(),
        lambda: Table.open(table).timeline(),
        lambda: Table.open(table).fsck(),
        lambda: Table.open(table).upsert(rows(("a", 3), ("c", 3))),
        lambda: Table.open(table).to_arrow(),
    ):
        try:
            act()
        except HoodieError as error:
            raised.append(error)
    return raised


def changed(folder: Path, sound: Path, name: str, content: bytes) -> Path:
    """Return a copy of the sound table with one file replaced or added."""
    table = shutil.copytree(sound, folder / "t")
    Path(table, name).parent.mkdir(parents=True, exist_ok=True)
    Path(table, name).write_bytes(content)
    return Path(table)


def mutations(value: Any) -> st.SearchStrategy[Any]:
    """Draw a copy of a JSON value in which one part, however deep, is another or gone."""
    places = list(_places(value, ()))

    @st.composite
    def one(draw: st.DrawFn) -> Any:
        place, other = draw(st.sampled_from(places)), draw(JSON)
        made = copy.deepcopy(value)
        if not place:
            return other
        part = made
        for step in place[:-1]:
            part = part[step]
        if draw(st.booleans()):
            part[place[-1]] = other
        else:
            del part[place[-1]]
        return made

    return one()


def _places(value: Any, place: tuple[Any, ...]) -> Any:
    yield place
    if isinstance(value, dict | list):
        steps = value.items() if isinstance(value, dict) else enumerate(value)
        for step, inner in steps:
            yield from _places(inner, (*place, step))


@pytest.mark.parametrize(
    "name",
    [
        f"{META}/{LATER}.commit",
        f"{META}/{LATER}.replacecommit",
        PLAN,
        OPTIONS,
        PROPERTIES,
        MARKED,
        f"{META}/{LATER}.commit.requested",
        f"{META}/.temp/{LATER}/MARKERS0",
    ],
)
def test_any_bytes_under_a_name_that_is_read(new_folder: NewFolder, sound: Path, name: str) -> None:
    """A file of any bytes or JSON gives one of our errors or has no effect."""

    @EXAMPLES
    @example(b"[[null,null]]")  # pairs, whose names are no text
    @given(BYTES)
    def check(content: bytes) -> None:
        use(changed(new_folder(), sound, name, content))

    check()


@pytest.mark.parametrize("action", ["commit", "replacecommit"])
def test_a_commit_with_one_part_of_another_type(
    new_folder: NewFolder, sound: Path, action: str
) -> None:
    """A commit whose statistics, extra metadata or replaced groups have wrong types is refused."""
    content = json.loads(newest_commit(sound).read_bytes())
    content["partitionToReplaceFileIds"] = {"x": ["nobody-0"]}
    del content["extraMetadata"]["_hoodie_nb_checksum"]  # as of another engine

    @EXAMPLES
    @given(mutations(content))
    def check(mutated: Any) -> None:
        text = json.dumps(mutated).encode()
        use(changed(new_folder(), sound, f"{META}/{LATER}.{action}", text))

    check()


@pytest.mark.parametrize("place", ["commit", "properties"])
def test_a_schema_with_one_part_of_another_type(
    new_folder: NewFolder, sound: Path, place: str
) -> None:
    """An invalid Avro schema, in a commit or in the properties, is refused."""
    content = json.loads(newest_commit(sound).read_bytes())
    avro = json.loads(content["extraMetadata"]["schema"])
    avro["fields"].append({"name": "s", "type": ["null", {"type": "array", "items": "long"}]})

    @EXAMPLES
    @given(mutations(avro))
    def check(mutated: Any) -> None:
        text = json.dumps(mutated)
        if place == "commit":
            content["extraMetadata"] = {"schema": text}
            name, written = f"{META}/{LATER}.commit", json.dumps(content)
        else:
            name, written = PROPERTIES, Path(sound, PROPERTIES).read_text()
            written += f"hoodie.table.create.schema={text}\n"
        table = changed(new_folder(), sound, name, written.encode())
        if place == "properties":
            for commit in Path(table, META).glob("*.commit*"):
                commit.unlink()
        use(table)

    check()


def test_options_with_any_values(new_folder: NewFolder, sound: Path) -> None:
    """Invalid options stored with the table are refused with the file's name."""
    names = ["hoodie.parquet.max.file.size", "hoodie.index.bloom.fpp", "write.batch.size", "more"]

    @EXAMPLES
    @given(st.dictionaries(st.sampled_from(names), JSON | st.just("9" * 400), min_size=1))
    def check(options: dict[str, Any]) -> None:
        table = changed(new_folder(), sound, OPTIONS, json.dumps(options).encode())
        for error in use(table):
            assert isinstance(error, InvalidTable)
            assert OPTIONS in str(error)

    check()


STATES = st.sampled_from(["", ".requested", ".inflight"])
ACTIONS = st.sampled_from(["commit", "clean", "rollback", "replacecommit", "savepoint", "odd"])
DIGITS = st.sampled_from(
    [*("9" * 17, "0" * 17, "0" * 14, "9" * 14), "20260231000000000", "00000000000001", LATER]
) | st.text("0123456789", min_size=13, max_size=18)


def test_instants_at_any_time(new_folder: NewFolder, sound: Path) -> None:
    """Names on the timeline with impossible or extreme times give one of our errors."""

    @EXAMPLES
    @given(DIGITS, ACTIONS, STATES)
    def check(time: str, action: str, state: str) -> None:
        use(changed(new_folder(), sound, f"{META}/{time}.{action}{state}", b""))
        use(changed(new_folder(), sound, f"{META}/{time}.{action}{state}", b"{}"))

    check()


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
FOLDERS = [META, f"{META}/.heartbeat", f"{META}/.temp", f"{META}/archived", "x", "", f"{META}/.aux"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_of_any_characters(new_folder: NewFolder, sound: Path, folder: str) -> None:
    """A file of any name has no effect in any folder that is listed."""

    @EXAMPLES
    @given(NAMES.filter(lambda n: n not in (".", "..") and len(n.encode()) < 200))
    def check(name: str) -> None:
        table = changed(new_folder(), sound, f"{folder}/{name}" if folder else name, b"{}")
        assert use(table) == []
        assert without_meta(Table.open(table).to_arrow()) == without_meta(
            rows(("a", 3), ("b", 1), ("c", 3))
        )

    check()


def _plan() -> dict[str, Any]:
    request = {"partitionPath": "x", "fileId": "f", "latestBaseInstant": LATER}
    request |= {"filesToBeDeleted": ["file:/x/f_0_1.parquet"], "logBlocksToBeDeleted": {}}
    instant = {"commitTime": LATER, "action": "commit"}
    return {"instantToRollback": instant, "RollbackRequests": [request], "version": 1}


def test_a_rollback_plan_with_broken_bytes(new_folder: NewFolder, sound: Path) -> None:
    """A plan with a changed byte or a missing end is refused, even if Avro can decode it."""
    from hoodie_nb.actions.rollback import _PLAN

    out = io.BytesIO()
    fastavro.writer(out, _PLAN, [_plan()])
    whole = out.getvalue()

    @settings(EXAMPLES, max_examples=100)
    @given(st.integers(0, len(whole) - 1), st.integers(0, 255), st.booleans())
    def check(at: int, value: int, cut: bool) -> None:
        content = whole[:at] if cut else whole[:at] + bytes([value]) + whole[at + 1 :]
        use(changed(new_folder(), sound, PLAN, content))

    check()


NAMED = {
    "commit": (f"{META}/{LATER}.commit", b'{"partitionToWriteStats": {"x": [{"path": 7}]}}'),
    "deep commit": (f"{META}/{LATER}.commit", DEEP[1]),
    "replaced": (f"{META}/{LATER}.replacecommit", b'{"partitionToReplaceFileIds": {"x": 1}}'),
    "schema": (f"{META}/{LATER}.commit", b'{"extraMetadata": {"schema": "{}"}}'),
    "options": (OPTIONS, b'{"more": 1}'),
    "plan": (PLAN, b"Obj\x01"),
    "no time": (f"{META}/99999999999999999.commit", b"{}"),
}


@pytest.mark.parametrize("case", NAMED)
def test_the_error_names_the_file(new_folder: NewFolder, sound: Path, case: str) -> None:
    """The error contains the path of the file."""
    name, content = NAMED[case]
    raised = use(changed(new_folder(), sound, name, content))
    assert raised
    for error in raised:
        assert isinstance(error, InvalidTable)
        assert Path(name).name in str(error)
