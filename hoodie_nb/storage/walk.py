"""Walks all folders of a table; links that lead out and nested tables."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hoodie_nb.storage.beneath import link_refused
from hoodie_nb.storage.storage import META, Entry, Storage, joined

Choice = Callable[[Sequence[str]], Sequence[str]]


def walk_folders(storage: Storage, keep: Choice | None = None) -> Iterator[tuple[str, list[Entry]]]:
    """Yield every folder of the table except Hudi's own, each with its entries.

    `keep` chooses among the folders in a folder; others are not listed, nor is what is below them.
    Links are not followed. A link to a folder outside the table is refused, so that rows which
    another engine reads there are not missed.
    """
    folders = [""]
    while folders:
        folder = folders.pop()
        entries = storage.list_folder(folder)
        yield folder, entries
        below = []
        for entry in reversed(entries):
            path = joined(folder, entry.name)
            if entry.is_link:
                _must_not_lead_out(storage, path)
            elif entry.is_folder and path != META:
                below.append(path)
        folders += below if keep is None else keep(below)


def other_table(storage: Storage, folder: str) -> str | None:
    """Return the folder of another table that `folder` is in; None if it is in this table."""
    parts = folder.split("/") if folder else []
    above = ("/".join(parts[: count + 1]) for count in range(len(parts)))
    return next((path for path in above if storage.entry(joined(path, META))), None)


def _must_not_lead_out(storage: Storage, path: str) -> None:
    target = Path(os.path.realpath(storage.fetch(path)))
    if target.is_dir() and not target.is_relative_to(os.path.realpath(storage.root)):
        raise link_refused(storage.root, path)
