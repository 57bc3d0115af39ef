"""Damage to one durable file: the kinds of files and of damage.

| how | what becomes of the file |
| --- | --- |
| `flip` | one bit, anywhere |
| `cut` | only its first part is left |
| `empty` | it is truncated to nothing |
| `gone` | it is deleted |
| `other` | it has the content of another file of its kind, or its own earlier content |
| `longer` | garbage is appended |
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OURS = ".hoodie/.hoodie_nb"
HOW = ("flip", "cut", "empty", "gone", "other", "longer")
REMEDIES = ("restore", "delete", "remove", "start")  # the verbs of a fix


def kind_of(path: str) -> str:
    """Return the kind of a file below our folder.

    >>> kind_of("staged/20260101000000000-ab/0.staged-keys")
    'staged-keys'
    """
    folder, _, name = path.partition("/")
    if folder == "index":
        return "index-run" if name.endswith(".run") else folder
    if folder != "staged":
        return folder
    run = not (name[:17].isdigit() and name[17:18] == "-")
    last = name.rpartition("-")[2]
    return "sealed-run" if run else f"staged-{last}" if last in ("keys", "deletes") else "staged"


def files_of_ours(table: Path) -> dict[str, list[Path]]:
    """Return the files below our folder, and those of the state index, by kind."""
    found: dict[str, list[Path]] = {}
    root, state = table / OURS, table.parent / "hoodie_nb_state"
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        found.setdefault(kind_of(path.relative_to(root).as_posix()), []).append(path)
    for path in sorted(p for p in state.rglob("*") if p.is_file()):
        found.setdefault("state", []).append(path)
    return found


def files_of_logs(table: Path) -> dict[str, list[Path]]:
    """Return the log files of a merge-on-read table, and what is staged for it."""
    logs = sorted(path for path in table.rglob(".*.log.*") if ".hoodie" not in path.parts)
    found = {"log": logs, "log-staged": files_of_ours(table).get("staged", [])}
    return {kind: paths for kind, paths in found.items() if paths}


def files_of_the_table(table: Path) -> dict[str, list[Path]]:
    """Return the newest base file of each group, and the completed files with an inflight one."""
    done = {p.stem: p for p in (table / ".hoodie").glob("*.commit")}
    newest: dict[tuple[Path, str], Path] = {}
    for path in table.rglob("[!.]*.parquet"):
        file_id, _, instant = path.stem.split("_")
        group = (path.parent, file_id)
        if instant in done and (group not in newest or newest[group].stem[-17:] < instant):
            newest[group] = path
    inflight = [p for time, p in done.items() if p.with_name(f"{time}.inflight").exists()]
    found = {"base": sorted(newest.values()), "completed": sorted(inflight)}
    return {kind: paths for kind, paths in found.items() if paths}


@dataclass(frozen=True, slots=True)
class Damage:
    """A planned or applied damage to one file."""

    path: Path
    kind: str
    how: str
    before: bytes
    after: bytes | None
    links: tuple[Path, ...] = ()  # other names of the same file: it is published

    @classmethod
    def draw(
        cls,
        draw: random.Random,
        files: Mapping[str, Sequence[Path]],
        *,
        earlier: Mapping[Path, bytes] | None = None,
        how: str | None = None,
    ) -> Damage:
        """Choose a kind, a file of it, and the damage."""
        kind = draw.choice(sorted(files))
        path, how = draw.choice(files[kind]), how or draw.choice(HOW)
        others = [p.read_bytes() for p in files[kind] if p != path]
        others += [(earlier or {}).get(path, b"")]
        before = path.read_bytes()
        after = _damaged(draw, how, before, others)
        return cls(path, kind, how, before, after, tuple(_links(path)))

    def __str__(self) -> str:
        return f"damage:{self.kind}:{self.how}"

    def apply(self) -> None:
        """Damage the file."""
        if self.after is None:
            self.path.unlink()
        else:
            self.path.write_bytes(self.after)

    def undo(self) -> None:
        """Restore the file under each of its names."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for path in (self.path, *(link for link in self.links if link.exists())):
            path.write_bytes(self.before)

    def check_message(self, text: str) -> None:
        """Raise AssertionError unless the message names the file and a fix.

        A missing or older record may be reported as a checkpoint that is not in the table.
        """
        missed = self.path.suffix == ".json" and (
            self.how == "gone" or "is not in the table" in text
        )
        names = [path.name for path in (self.path, *self.links)]
        assert missed or any(n in text for n in names), f"{self}: the message names no file: {text}"
        assert any(verb in text.lower() for verb in REMEDIES), f"{self}: no fix: {text}"


def _links(path: Path) -> list[Path]:
    """Return the other names of a file: it is staged, and in a partition."""
    if path.stat().st_nlink == 1:
        return []
    table = next(p for p in path.parents if (p / OURS).is_dir())
    return [p for p in table.rglob("*") if p.is_file() and p != path and p.samefile(path)]


def _damaged(
    draw: random.Random, how: str, content: bytes, others: Sequence[bytes]
) -> bytes | None:
    if how == "gone":
        return None
    if how == "other":
        return draw.choice([o for o in others if o] or [content[::-1]])
    if how == "longer":
        return content + draw.randbytes(draw.randint(1, 64))
    if how == "empty" or not content:
        return b""
    if how == "cut":
        return content[: draw.randrange(len(content))]
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]
