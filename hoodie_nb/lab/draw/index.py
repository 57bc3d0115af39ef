"""Picture of index lookups: colours and order of the ways in which a key was found.

state           the state knew the key: no file is read
ruled out       key range or bloom filter of every file exclude the key: it is new
read            the filter said maybe, and the file's key column had it
false positive  the filter said maybe, and the file did not have it
"""

from hoodie_nb.lab.draw import svg
from hoodie_nb.lab.draw.instants import HEIGHT
from hoodie_nb.lab.run.run_parts import Lookups
from hoodie_nb.lab.run.run_state import RunState

NARROW = 328
TALL = 190
SHARES = {"state": svg.GREEN, "ruled out": svg.BLUE, "read": svg.AMBER, "false positive": svg.RED}


def shares(lookups: Lookups, index: str = "") -> dict[str, float]:
    """Return the number of keys by kind of answer; the sum is the number of keys."""
    keys = lookups.count("keys")
    maybe = lookups.count("candidates")
    hits = lookups.count("found") if index == "state" else lookups.count("state_hits")
    vain = min(lookups.count("false_positives"), maybe)
    found = max(0.0, min(maybe - vain, keys - hits))
    vain = max(0.0, min(vain, keys - hits - found))
    counts = (hits, max(0.0, keys - hits - found - vain), found, vain)
    return dict(zip(SHARES, counts, strict=True))


def totals(state: RunState) -> dict[str, float]:
    """Return the shares over all stored checkpoints."""
    found = [shares(seen, state.index) for seen in state.lookups]
    return {name: sum(each[name] for each in found) for name in SHARES}


def lookups(state: RunState) -> str:
    """Return one stacked bar for each of the newest 20 checkpoints, for a dashboard."""
    files = sum(seen.count("files_looked_up") for seen in state.lookups[-1:])
    keys = sum(seen.count("keys") for seen in state.lookups[-1:])
    caption = f"newest: {svg.short(keys)} keys, {files:.0f} files read"
    parts = [*_frame(state, NARROW), *_bars(state, NARROW, 20, 104, 66), svg.note(1, 120, caption)]
    return svg.picture(HEIGHT, parts, label=_label(state), width=NARROW)


def index(state: RunState) -> str:
    """Return the newest 40 checkpoints, all keys by kind of answer, and the size of the state."""
    sums = totals(state)
    saved = state.saved
    keys = sum(sums.values()) or 1
    caption = "   ".join(f"{name} {svg.short(n)} ({n / keys:.0%})" for name, n in sums.items())
    kept = [f"{k.replace('_', ' ')} {v:,}" for k, v in saved.items() if type(v) is int]
    parts = [
        *_frame(state, svg.WIDTH),
        *_bars(state, svg.WIDTH, 40, 144, 104),
        svg.note(1, 162, f"{svg.short(keys if state.lookups else 0)} keys: {caption}"),
        svg.note(1, 180, f"state: {', '.join(kept)}" if kept else "no state has been saved yet"),
    ]
    return svg.picture(TALL, parts, label=_label(state))


def _label(state: RunState) -> str:
    since = f"pure state since {state.pure_since}" if state.pure_since else "no pure state"
    return f"Index {state.index}: {len(state.lookups)} checkpoints; {since}"


def _frame(state: RunState, width: int) -> list[str]:
    parts = [svg.heading(f"Index {state.index}".strip())]
    since = f"pure state since {state.pure_since}" if state.pure_since else ""
    parts.append(svg.note(width - 4, 12, since, fill=svg.GREEN, anchor="end"))
    for place, (name, colour) in enumerate(SHARES.items()):
        parts.append(svg.mark("square", 6 + 72 * place, 25, fill=colour, size=4))
        parts.append(svg.note(14 + 72 * place, 29, name))
    return parts


def _bars(state: RunState, width: int, newest: int, base: int, tall: int) -> list[str]:
    shown = state.lookups[-newest:]
    parts = [svg.line(1, base, width - 4, base)]
    most = max((seen.count("keys") for seen in shown), default=0) or 1
    step = (width - 8) / newest
    for place, seen in enumerate(shown):
        y = float(base)
        found = shares(seen, state.index)
        bars = []
        for name, colour in SHARES.items():
            high = tall * found[name] / most
            y -= high
            if high:
                bars.append(svg.bar(2 + place * step, y, step - 3, high, fill=colour))
        caption = ", ".join(f"{name} {count:,.0f}" for name, count in found.items())
        parts.append(svg.group(bars, title=caption))
    return parts
