"""Picture of file groups as of an instant: a line per partition, a bar and dots per group.

A bar's frame is the target file size, the filled part is the newest slice: its base file, then its
log files, each a block of its own. The dots below count the base files of the group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hoodie_nb.lab.look import palette, svg

_LINES = 9
_ACROSS = 6
_LEFT = 170
_CELL = 256  # at most


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A file group's newest slice, its number of slices, and the bytes of each log of the newest.

    `bytes` are those of the base file; `instant_time` is that of the newest file of the slice.
    """

    partition: str
    file_id: str
    instant_time: str
    bytes: int
    slices: int
    logs: tuple[int, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Return the bytes of the base file and the logs."""
        return self.bytes + sum(self.logs)


def height(partitions: int) -> int:
    """Return the height of the picture for this number of partitions."""
    return 62 + 34 * min(_LINES, partitions)


def file_groups(
    groups: Sequence[GroupFacts], target_bytes: int, as_of: str, partitions: int
) -> str:
    """Return the groups of 9 partitions, at most 6 per line; `partitions` sets the height."""
    ordered = sorted(groups, key=lambda g: (g.partition, g.file_id))
    parted: Mapping[str, list[GroupFacts]] = {
        name: list(these) for name, these in groupby(ordered, key=lambda g: g.partition)
    }
    size = svg.size_of(sum(group.total_bytes for group in groups))
    high = height(partitions)
    counted = f"{svg.counted(len(groups), 'file group')} in {svg.counted(len(parted), 'partition')}"
    logs = sum(len(group.logs) for group in groups)
    counted += f", {svg.counted(logs, 'log')}" if logs else ""
    new = sum(group.instant_time == as_of for group in groups)
    title = f"{counted}, {size}, as of {as_of or 'now'}: this instant wrote {new} of them"
    full = max([target_bytes, 1]) if groups else 1
    most = max((group.total_bytes for group in groups), default=1)
    parts = []
    shown = full if most * 8 > full else most  # small files would be invisible in a large frame
    cell = min(_CELL, 128 * _ACROSS // max([len(g[:_ACROSS]) for g in parted.values()], default=1))
    for line, (name, these) in enumerate(list(parted.items())[:_LINES]):
        y = 38 + 34 * line
        parts.append(svg.note(1, y + 14, name or "(no partition)", max_chars=25))
        for place, group in enumerate(these[:_ACROSS]):
            parts.append(
                _group(group, _LEFT + place * cell, y, cell, shown, new=group.instant_time == as_of)
            )
        if len(these) > _ACROSS:
            parts.append(svg.note(svg.WIDTH - 2, y + 14, f"+{len(these) - _ACROSS}", anchor="end"))
    if len(parted) > _LINES:
        parts.append(svg.note(1, high - 4, f"{len(parted) - _LINES} more partitions"))
    frame = "target file size" if shown == full else "largest one"
    marks = [
        ("frame", palette.LINE, f"a file group, up to {svg.size_of(shown)}, the {frame}"),
        ("square", palette.BLUE, "its base file"),
        *([("square", palette.PURPLE, "a log")] if logs else []),
        ("square", palette.AMBER, "written by this instant"),
        ("disc", palette.BLUE, "one for each slice"),
    ]
    parts = [svg.heading(title), *svg.legend(1, 30, *marks), *parts]
    return svg.picture(high, parts, label=title)


def _group(group: GroupFacts, x: float, y: float, cell: int, full: int, *, new: bool) -> str:
    wide = cell - 14
    colour = palette.AMBER if new and not group.logs else palette.BLUE  # of the dots: base files
    caption = (
        f"{group.file_id}: {svg.size_of(group.bytes)}, {svg.counted(group.slices, 'slice')}, "
        f"the newest of instant {group.instant_time}"
    )
    if group.logs:
        sizes = svg.size_of(sum(group.logs))
        caption += f"; {svg.counted(len(group.logs), 'log')} of {sizes}, merged by every read"
    parts = [
        svg.bar(x, y + 4, wide, 12, fill=palette.SHADE, stroke=palette.LINE),
        *_files(group, x, y + 4, wide, full, new=new),
        *(
            svg.mark("disc", x + 3 + 7 * n, y + 22, fill=colour, size=2.2)
            for n in range(min(group.slices, 16))
        ),
    ]
    return svg.group(parts, title=caption)


def _files(
    group: GroupFacts, x: float, y: float, wide: float, full: int, *, new: bool
) -> list[str]:
    """Return the bars of base file and logs, one after the other; the newest is of the instant."""
    end = x + wide
    sizes = [size for size in (group.bytes, *group.logs) if size or not group.logs]
    parts = []
    for place, size in enumerate(sizes):
        is_log = place >= len(sizes) - len(group.logs)
        newest = new and place == len(sizes) - 1
        colour = palette.AMBER if newest else palette.PURPLE if is_log else palette.BLUE
        long = min(max(2.0, wide * size / full), end - x)
        parts.append(svg.bar(x, y, max(0.0, long - (1 if is_log else 0)), 12, fill=colour))
        x += long
    return parts
