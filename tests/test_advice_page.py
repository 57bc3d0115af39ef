"""docs/advice.md lists each error text that advises an action on a table or checkpoint folder.

The page is written from tests/facts/advice.toml. The texts are the string literals of the library
that have an advising verb. Each is in the page, or below among those that advise something else:
an argument, an option, a program. A test cannot know that a new text without such a verb advises
something.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from generated_pages import WRITER

ROOT = Path(__file__).parents[1]
VERBS = re.compile(
    r"\b(delete|move|restore|remove|replace|drop|repair|call|give|upsert|undo|start|backup|"
    r"checkpoint folder|let \w+|fsck|Table\.\w+)\b|\b(operation|index)=",
    re.IGNORECASE,
)
_TEST = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)(?:\[(.+)\])?(?: \(.+\))?")
ELSEWHERE = (  # texts that advise another argument, option or program, or nothing
    "# Spark asks for a module that this Java lacks",
    "a batch call, or a stream that starts",
    "a delete has no record key",
    "a table is opened by hn.Table.open(path)",
    "Fix the options, then start the stream again.",
    "More bits per key",
    "A table of a catalog (CREATE TABLE",
    "a table is opened by hn.Table.open(path)",
    "Spark commits a write with the format",
    "Spark gave no path",
    "Spark passes the checkpoint folder only",
    "`insert` keeps all rows; use upsert",
    "each once, and fsck finds nothing",
    "is not one of a write: what defines a table",
    "repair={} is none of True",
    "mean the same, but differ",
    "merge: the source is held in memory",
    "there is no table at {}: to create one",
    "={}: give names of columns",
    "Get a new session from hn.spark()",
    "Let them run a Python like the driver's",
    "Stop the other writer, or wait for it, then start the stream again.",
    "a schema as DDL text needs a running Spark session",
    "a session is already running",
    "a stream with operation='insert'",
    "also check this checkpoint folder",
    "belong to Hudi: drop them first",
    "but index='state' knows those of one job only",
    "call it in another thread",
    "cannot stream a {}: give",
    "cannot write a {}: give",
    "delete files that no retained snapshot reads",
    "choose 'error', 'open' or 'replace'",
    "commit_interval with index='state'",
    "commit_interval={}: give",
    "delete the savepoint of this commit",
    "delete: give either rows or keys",
    "do what the text says, then run fsck again",
    "differ from Hudi's delete flag only in case",
    "for batches",
    "since=None: give a commit or a time",
    "was being written at `{}` {}: who read",
    "give --cores 1 or more",
    "give a later one",
    "give a dict",
    "give a local folder",
    "give a pyarrow.Schema",
    "give a share",
    "give a table or frame",
    "give an expression",
    "give an integer",
    "give an older commit as `until`",
    "give another --warehouse",
    "give another path",
    "give at most 10 redraws",
    "give both",
    "give entries",
    "give every row a key",
    "give hn.Table.open(path)",
    "give job.events.records()",
    "give no rows to empty the table",
    "give only one of",
    "give paths as text",
    "give rows with the columns",
    "give the number",
    "give the time {}",
    "give touched from 0",
    "give {} or a later",
    "give 1 or more files",
    "give 17 digits",
    "give a path, and at most one of",
    "has hoodie.table.keygenerator.",
    "has hoodie.table.timeline.timezone=",
    "have the same name: rename or drop one",
    "is not a completed commit on the timeline",
    "is the newest commit of {}: there is nothing to undo",
    "is still {}: the next start settles it",  # a line of the laboratory's fault panel
    "let the values differ in more than case",
    "list the files, delete nothing",
    "move old instants to the archive",
    "names no hoodie.table.recordkey.fields",
    "needs state_folder",
    "no savepoint: `table.savepoints()` lists them",
    "remove earlier demo output",
    "remove these pairs first",
    "rename or drop them first",
    "set JAVA_HOME to another Java",
    "so an upsert would duplicate them",
    "start again with --fresh",
    "start it with multiprocessing",
    "start with hn.spark(",
    "undo all commits after a given one",
    "undo the newest commit",
    "use index='bloom+state' or 'bloom'",
    "use insert, which looks keys up",
    "use scope=",
    "use upsert; nothing of the batch was written",
)


def texts() -> Iterator[str]:
    """Yield the library's string literals of several words, `{}` for each value in them."""
    for file in sorted((ROOT / "hoodie_nb").rglob("*.py")):
        tree = ast.parse(file.read_text())
        found = [node for node in ast.walk(tree) if _is_text(node)]
        parts = {id(part) for node in found for part in ast.walk(node) if part is not node}
        parts |= _docstrings(tree)
        for node in found:
            if id(node) not in parts:
                text = _content(node)
                if len(text.split()) > 3:
                    yield text


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)


def _docstrings(tree: ast.AST) -> set[int]:
    found = (getattr(node, "body", None) for node in ast.walk(tree))
    first = (body[0] for body in found if isinstance(body, list) and body)
    return {id(each.value) for each in first if isinstance(each, ast.Expr)}


def _content(node: ast.AST) -> str:
    """Return the text of a literal, or of several that are added."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_content, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _content(node.left) + _content(node.right)
    return "{}" if isinstance(node, ast.FormattedValue) else ""


ADVISING = sorted({text for text in texts() if VERBS.search(text)})


def listed() -> list[tuple[str, list[str]]]:
    """Return the rows of the page: a part of the text, and where it is followed."""
    sections = WRITER.sections("advice").values()
    return [(part, where) for rows in sections for part, (_, *where) in rows.items()]


def covered(parts: Iterable[str]) -> set[str]:
    """Return the texts with these parts; a part of several texts counts for the one that it is."""
    found = {part: [text for text in ADVISING if part in text] for part in parts}
    return {text for part, held in found.items() for text in held if held == [text] or text == part}


def test_each_text_that_advises_is_listed() -> None:
    """It is a row of the page, or one of those that advise no action on a table."""
    left = set(ADVISING) - covered(part for part, _ in listed())
    assert [text for text in left if not any(part in text for part in ELSEWHERE)] == []


def test_no_text_about_files_is_kept_from_the_page() -> None:
    """What advises to delete, move or restore something that exists is in the page."""
    left = set(ADVISING) - covered(part for part, _ in listed())
    files = re.compile(r"(delete|move|remove|restore) (it|its|the|that|this|all)\b", re.IGNORECASE)
    assert {text for text in left if files.search(text)} == {
        "delete the savepoint of this commit",  # the help of a command
        "use its parameters, give another path, or remove the folder",  # the laboratory's source
    }


def test_each_row_is_a_text_of_the_library() -> None:
    """No row is left of a text that has changed, and none is in the list here."""
    for part, _ in listed():
        assert covered([part]), part
    for part in ELSEWHERE:
        assert any(part in text for text in ADVISING), part


def test_each_row_names_tests_that_follow_it() -> None:
    """Or it says that nobody has tried it, and why."""
    bad = [
        part
        for part, where in listed()
        if not where or not all(_TEST.fullmatch(w) or w.startswith("untried: ") for w in where)
    ]
    assert bad == [] and len(listed()) > 80


def test_the_named_cases_exist() -> None:
    """Each is one of the texts of its test's file."""
    found = [_TEST.fullmatch(item) for _, where in listed() for item in where]
    cases = {(each[1], each[3]) for each in found if each is not None and each[3]}
    assert [case for file, case in cases if f'"{case}"' not in (ROOT / file).read_text()] == []
    assert len(cases) > 40
