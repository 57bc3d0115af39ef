"""The pages of the reference that are written from the code: signatures, docstrings, tables.

`PAGES` says which public name is on which page; a name of `hoodie_nb.__all__` that is on none, or
on two, is an error. So is a public class or method without a docstring.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

import hoodie_nb
from hoodie_nb.__main__ import parser

PAGES = {  # page: its title, the public names, and the classes that these return
    "table": (
        "Tables",
        ("Table",),
        "local.merge_into.MergeInto local.batch.Commit checks.findings.Finding "
        "index.status.IndexStatus actions.savepoints.Savepoint services.clean.Cleaned "
        "services.archive.Archived services.cluster.Clustered services.compact.Compacted "
        "services.restore.Restored services.rollback.RolledBack lock.writers.Writers "
        "lock.writers.Writer",
    ),
    "streams": ("Streams", ("write_stream",), "stream.job.Job stream.tally.JobProgress"),
    "session": (
        "Sessions and the set-up",
        ("spark", "log_path", "register", "doctor", "__version__"),
        "",
    ),
    "errors": (
        "Errors",
        (
            *("HoodieError", "InvalidConfig", "InvalidInput", "InvalidTable", "WriteFailed"),
            *("CommitFailed", "StoreFailed", "ConcurrentWriter"),
        ),
        "",
    ),
    "laboratory": (
        "The laboratory",
        (
            *("Dashboard", "Replay", "Controls", "FaultPanel", "IndexView", "BloomView"),
            *("Timeline", "FileGroups", "Compare", "Knob"),
            *("flights", "faults", "race", "cost_model", "log_costs"),
        ),
        "",
    ),
    "events": ("Events and logging", (), "events.Event events.EventLog"),
    "options": ("Write options", (), "config.WriteOptions"),
}
INTRODUCED_BY = {  # the module whose docstring opens the page
    "streams": "api.streams",
    "errors": "errors",
    "events": "events",
    "options": "config",
}
SEE_ALSO = {
    "table": "[Using a table from Python](../docs/using.md), [Reading](../docs/reading.md).",
    "streams": "[Using a table from Python](../docs/using.md) shows a stream.",
    "session": "[On a Spark cluster](../docs/cluster.md).",
    "errors": "[What errors advise](../docs/advice.md), [Failures](../docs/failures.md).",
    "laboratory": "[The notebooks](../notebooks/README.md) use all of these.",
    "events": "[Logging](../docs/logging.md).",
    "options": "[Hudi's options](../docs/hudi-options.md) has all others.",
}
_SHOWN = ("__arrow_c_stream__",)  # of the methods with underscores
_DOC_LINK = re.compile(r"(?<![\w/`[])docs/([\w-]+)\.md\b")


def reference_pages() -> dict[str, str]:
    """Return the generated pages by their places from the root."""
    check_names()
    pages = {name: api_page(name) for name in PAGES}
    pages["command-line"] = command_line()
    return {f"reference/{name}.md": text for name, text in pages.items()}


def check_names() -> None:
    """Raise ValueError unless each public name is on exactly one page."""
    counts = Counter(name for _, names, _ in PAGES.values() for name in names)
    wrong = {name for name in {*hoodie_nb.__all__, *counts} if counts[name] != 1}
    wrong |= counts.keys() - {*hoodie_nb.__all__}
    if wrong:
        raise ValueError(f"PAGES has these public names not once: {sorted(wrong)}")


def api_page(name: str) -> str:
    """Return a page of signatures and docstrings."""
    title, names, others = PAGES[name]
    parts = [f"# {title}", f"See also: {SEE_ALSO[name]}"]
    if name in INTRODUCED_BY:
        parts.append(docstring(importlib.import_module(f"hoodie_nb.{INTRODUCED_BY[name]}")))
    parts += [described(public, getattr(hoodie_nb, public)) for public in names]
    if others and names:
        parts.append("## What they return")
    for place in others.split():
        module, _, own = place.rpartition(".")
        parts.append(described(own, getattr(importlib.import_module(f"hoodie_nb.{module}"), own)))
    return linked("\n\n".join(parts)) + "\n"


def described(name: str, value: object) -> str:
    """Return the directive of a public name, with its members if it has any."""
    if isinstance(value, str):
        return directive("data", name, "The version of the package, as text.", 3)
    if inspect.ismodule(value):
        functions = [
            directive("function", f"{name}.{own}{signature(f)}", docstring(f), 3)
            for own, f in public_of(value)
        ]
        return "\n\n".join([f"## `hn.{name}`", docstring(value), *functions])
    if inspect.isclass(value):
        members = "\n\n".join(member(value, own) for own in public_members(value))
        kind = "exception" if issubclass(value, Exception) else "class"
        head = f"{name}{'' if kind == 'exception' else constructor(value)}"
        return directive(kind, head, f"{docstring(value)}\n\n{members}", 4)
    return directive("function", f"{name}{signature(value)}", docstring(value), 3)


def directive(kind: str, head: str, body: str, colons: int, option: str = "") -> str:
    """Return a directive of Sphinx's Python domain."""
    fence = ":" * colons
    options = f":{option}:\n" if option else ""
    return f"{fence}{{py:{kind}}} {head}\n{options}\n{body.strip()}\n{fence}"


def linked(text: str) -> str:
    """Return a docstring in which the pages of docs that it names are links."""
    return _DOC_LINK.sub(r"[docs/\1.md](../docs/\1.md)", text)


def docstring(value: object) -> str:
    """Return the docstring; raise ValueError if there is none."""
    found = inspect.getdoc(value)
    if not found:
        raise ValueError(f"{value!r} is public and has no docstring")
    return found


def signature(value: object, skip: int = 0) -> str:
    """Return the parameters and the result of a function, without `self` if `skip` is 1."""
    found = inspect.signature(value)
    kept = [*found.parameters.values()][skip:]
    text = str(found.replace(parameters=kept))
    return re.sub(r"'([\w.\[\], |]+)'(?=[,)=]| =|$)", _unquoted, text)


def _unquoted(found: re.Match[str]) -> str:
    """Return an annotation, which is written as text, without its quotes; defaults keep them."""
    before = found.string[: found.start()].rstrip()
    return found[1] if before.endswith((":", "->")) else found[0]


def constructor(cls: type) -> str:
    """Return the parameters of a class that users make; nothing for those that are returned."""
    made = dataclasses.is_dataclass(cls) or cls.__name__ in hoodie_nb.__all__
    if not made or cls.__name__ == "Table":  # Table.create and Table.open make it
        return ""
    return signature(cls).removesuffix(" -> None")


def public_members(cls: type) -> list[str]:
    """Return the methods and properties of a class and its bases in this package."""
    own = [base for base in cls.__mro__ if base.__module__.startswith("hoodie_nb")]
    names = [name for base in own for name in vars(base) if public(name)]
    return [name for name in dict.fromkeys(names) if kind_of(cls, name)]


def public(name: str) -> bool:
    """Whether a name is for users."""
    return not name.startswith("_") or name in _SHOWN


def kind_of(cls: type, name: str) -> str:
    """Return what a member is to Sphinx: a method, a property, or "" for plain values."""
    held = inspect.getattr_static(cls, name)
    if isinstance(held, property):
        return "property"
    return "method" if isinstance(held, classmethod | staticmethod) or callable(held) else ""


def member(cls: type, name: str) -> str:
    """Return the directive of a method or property."""
    held = inspect.getattr_static(cls, name)
    if isinstance(held, property):
        return directive("property", name, docstring(held), 3)
    bound = isinstance(held, classmethod | staticmethod)
    option = type(held).__name__ if bound else ""
    value = getattr(cls, name)
    return directive(
        "method", name + signature(value, 0 if bound else 1), docstring(value), 3, option
    )


def public_of(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the public functions and classes that a module defines."""
    for name, value in vars(module).items():
        if public(name) and callable(value) and getattr(value, "__module__", "") == module.__name__:
            yield name, value


def command_line() -> str:
    """Return the page of the commands, from the parser of the command line."""
    actions = parser()._actions
    (commands,) = (a for a in actions if isinstance(a, argparse._SubParsersAction))
    parts = [
        "# Command line",
        f"{parser().description}. [Commands](../docs/commands.md) has them in one table, and the "
        "exit codes.",
    ]
    for name, command in commands.choices.items():
        command.prog = f"hoodie-nb {name}"
        options = [a for a in command._actions if not isinstance(a, argparse._HelpAction)]
        rows = [f"| {spelled(option)} | {option.help or ''} |" for option in options]
        command.formatter_class = functools.partial(argparse.HelpFormatter, width=80)
        parts += [f"## `hoodie-nb {name}`", inspect.cleandoc(command.description or "")]
        parts.append(f"```text\n{command.format_usage().strip()}\n```")
        if rows:
            parts.append("\n".join(["| option | meaning |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def spelled(option: argparse.Action) -> str:
    """Return an option with the name of its value."""
    value = "" if option.nargs == 0 else option.metavar or option.dest.upper()
    return f"`{' '.join([*option.option_strings, value]).strip()}`"
