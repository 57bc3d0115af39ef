"""The index at work: where each checkpoint's keys found their answer, from free to dear.

state      the job's own state knew the key: no file is touched
no         key range or bloom filter of every file say: certainly new
read       the filter said maybe, and the file's key column had it
in vain    the filter said maybe, and the file did not have it
"""

from collections.abc import Sequence

from hoodie_nb.lab.draw import svg
from hoodie_nb.lab.draw.instants import HEIGHT
from hoodie_nb.lab.run_state import RunState
from hoodie_nb.lab.seen import Lookups

NARROW = 328
SHARES = (("state", svg.GREEN), ("no", svg.BLUE), ("read", svg.AMBER), ("in vain", svg.RED))
_SHOWN = 20


def shares(lookups: Lookups, index: str = "") -> dict[str, float]:
    """Return the keys by how they were answered; they sum up to the keys that were asked."""
    keys, maybe = lookups.count("keys"), lookups.count("candidates")
    hits = lookups.count("found") if index == "state" else lookups.count("state_hits")
    vain = min(lookups.count("false_positives"), maybe)
    found = max(0.0, min(maybe - vain, keys - hits))
    vain = max(0.0, min(vain, keys - hits - found))
    return {
        "state": hits,
        "no": max(0.0, keys - hits - found - vain),
        "read": found,
        "in vain": vain,
    }


def lookups(state: RunState) -> str:
    """Return one stacked bar for each of the newest 20 checkpoints."""
    shown = state.lookups[-_SHOWN:]
    parts = [svg.heading(f"Index {state.index}".strip())]
    since = f"pure state since {state.pure_since}" if state.pure_since else ""
    parts.append(svg.words(NARROW - 4, 12, since, size=10, fill=svg.GREEN, anchor="end"))
    for place, (name, colour) in enumerate(SHARES):
        parts.append(svg.mark("square", 6 + 72 * place, 25, fill=colour, size=4))
        parts.append(svg.note(14 + 72 * place, 29, name))
    parts += _bars(shown, state.index)
    files = sum(seen.count("files_looked_up") for seen in shown[-1:])
    keys = sum(seen.count("keys") for seen in shown[-1:])
    parts.append(
        svg.words(
            1,
            120,
            f"newest: {svg.short(keys)} keys, {files:.0f} files read",
            size=10,
            fill=svg.FAINT,
        )
    )
    label = f"Index {state.index}: {len(shown)} checkpoints; {since or 'no pure state'}"
    return svg.picture(HEIGHT, parts, label=label, width=NARROW)


def _bars(shown: Sequence[Lookups], index: str) -> list[str]:
    base, tall = 104, 66
    parts = [svg.line(1, base, NARROW - 4, base)]
    most = max((seen.count("keys") for seen in shown), default=0) or 1
    step = (NARROW - 8) / _SHOWN
    for place, seen in enumerate(shown):
        y = float(base)
        found = shares(seen, index)
        told = ", ".join(f"{name} {count:,.0f}" for name, count in found.items())
        for name, colour in SHARES:
            high = tall * found[name] / most
            y -= high
            if high:
                x = 2 + place * step
                parts.append(svg.bar(x, y, step - 3, high, fill=colour, title=told))
    return parts
