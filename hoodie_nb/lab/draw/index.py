"""Picture of index lookups: colours and order of the ways in which a key was found.

state           the state knew the key: no file is read
ruled out       key range or bloom filter of every file exclude the key: it is new
read            the filter said maybe, and the file's key column had it
false positive  the filter said maybe, and the file did not have it
"""

from hoodie_nb.lab.draw.instants import HEIGHT
from hoodie_nb.lab.look import palette, svg
from hoodie_nb.lab.run.run_parts import Lookups
from hoodie_nb.lab.run.run_state import RunState

NARROW = 332
TALL = 196
SHARES = {  # their colour, their legend, and the title if they are most
    "state": (palette.GREEN, "known to the state", "were known: no file was read"),
    "ruled out": (palette.BLUE, "new, by the filters", "are new: no file was read"),
    "read": (palette.AMBER, "found in a file", "were found by reading files"),
    "false positive": (palette.RED, "read, not found", "are new, found by reading files"),
}


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
    caption = f"A bar: a checkpoint. Newest: {svg.short(keys)} keys, {files:.0f} files read"
    bars = _bars(state, NARROW, 20, 106, 54)
    parts = [*_frame(state, NARROW), *bars, svg.note(1, 122, caption)]
    return svg.picture(HEIGHT, parts, label=_label(state), width=NARROW)


def index(state: RunState) -> str:
    """Return the newest 40 checkpoints, all keys by kind of answer, and the size of the state."""
    sums = totals(state)
    saved = state.saved
    keys = sum(sums.values()) or 1
    caption = "; ".join(
        f"{SHARES[name][1]} {svg.short(n)} ({n / keys:.0%})" for name, n in sums.items()
    )
    kept = [f"{k.replace('_', ' ')} {v:,}" for k, v in saved.items() if type(v) is int]
    since = f", pure since {state.pure_since}" if state.pure_since else ""
    known = f"{svg.short(keys if state.lookups else 0)} keys: {caption}"
    kept_text = f"state{since}: {', '.join(kept)}" if kept else "no state has been saved yet"
    parts = [
        *_frame(state, svg.WIDTH),
        *_bars(state, svg.WIDTH, 40, 138, 90),
        svg.note(1, 154, "A bar: a checkpoint, the oldest left; its height: the keys looked up"),
        svg.note(1, 172, known),
        svg.note(1, 190, kept_text),
    ]
    return svg.picture(TALL, parts, label=f"{_label(state)}; {known}; {kept_text}")


def _label(state: RunState) -> str:
    since = f"pure state since {state.pure_since}" if state.pure_since else "no pure state"
    return f"{_title(state)}. Index {state.index}: {len(state.lookups)} checkpoints; {since}"


def _title(state: RunState) -> str:
    sums = totals(state)
    keys = sum(sums.values())
    most = max(sums, key=lambda name: sums[name])
    if not keys:
        return "No key has been looked up yet"
    return f"{sums[most] / keys:.0%} of the keys {SHARES[most][2]}"


def _frame(state: RunState, width: int) -> list[str]:
    marks = [("square", colour, words) for colour, words, _ in SHARES.values()]
    parts = [svg.heading(_title(state))]
    if width > NARROW:
        parts.append(svg.note(width - 4, 12, f"Index {state.index}", anchor="end"))
        return [*parts, *svg.legend(1, 30, *marks)]
    lines = enumerate((marks[:2], marks[2:]))
    return [*parts, *(part for n, two in lines for part in svg.legend(1, 28 + 15 * n, *two))]


def _bars(state: RunState, width: int, newest: int, base: int, tall: int) -> list[str]:
    shown = state.lookups[-newest:]
    parts = [svg.line(1, base, width - 4, base)]
    most = max((seen.count("keys") for seen in shown), default=0) or 1
    step = (width - 8) / max(12, len(shown))
    for place, seen in enumerate(shown):
        y = float(base)
        found = shares(seen, state.index)
        bars = []
        for name, (colour, _, _) in SHARES.items():
            high = tall * found[name] / most
            y -= high
            if high:
                bars.append(
                    svg.bar(
                        2 + place * step,
                        y,
                        step - 3,
                        high,
                        fill=colour,
                    )
                )
        caption = ", ".join(f"{name} {count:,.0f}" for name, count in found.items())
        parts.append(svg.group(bars, title=caption))
    return parts
