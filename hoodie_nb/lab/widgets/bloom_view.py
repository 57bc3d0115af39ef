"""`BloomView`: a bloom filter to add keys to and ask; how its rates are measured.

Add keys until the filter is full or overfull, look up a key, and see which bits are checked. The
rates on the right are measured with real filters of increasing size.
"""

from __future__ import annotations

import base64
from functools import lru_cache

import ipywidgets as W
import numpy as np
import pyarrow as pa

from hoodie_nb.files.bloom import BloomFilter
from hoodie_nb.lab.draw.bloom import HEIGHT, RatePoint, bloom
from hoodie_nb.lab.look.svg import WIDTH
from hoodie_nb.lab.widgets.frame import Frame, Pictures

_HEADER_BYTES = 13
_PROBES = 20_000
_RATES = (0.5, 0.2, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-6)


def bits_of(bloom_filter: BloomFilter) -> list[bool]:
    """Return the bits of a SIMPLE filter, read from its footer text."""
    data = base64.b64decode(bloom_filter.to_text())[_HEADER_BYTES:]
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return [bool(bit) for bit in bits[: bloom_filter.bits]]


def _keys(first: int, count: int, prefix: str = "key") -> pa.Array:
    return pa.array([f"{prefix}-{n}" for n in range(first, first + count)], pa.string())


@lru_cache(maxsize=32)
def rates(keys: int) -> tuple[RatePoint, ...]:
    """Return the measured false-positive rates of filters sized for `keys` at several rates."""
    found = []
    for asked in _RATES:
        made = BloomFilter.sized(keys, asked)
        made.add(_keys(0, keys))
        wrong = float(made.might_contain(_keys(0, _PROBES, "absent")).mean())
        found.append(RatePoint(made.bits / keys, asked, wrong))
    return tuple(found)


class BloomView(Frame):
    """A filter sized for `keys` at the rate `fpp`, with `held` keys in it; `ask(key)` probes it."""

    def __init__(self, keys: int = 32, fpp: float = 0.01, held: int | None = None) -> None:
        self._size = W.IntSlider(keys, 4, 64, description="sized for", continuous_update=False)
        self._held = W.IntSlider(held or keys, 0, 256, description="keys held")
        self._fpp = W.SelectionSlider(
            options=sorted({*_RATES[:6], fpp}, reverse=True), value=fpp, description="wanted rate"
        )
        self._key = W.Text("key-0", description="look up", layout={"width": "260px"})
        self._answer = W.HTML(layout={"height": "28px"})
        controls = (self._size, self._fpp, self._held, self._key)
        for control in controls:
            control.observe(lambda _: self._show(), "value")
        rows = [W.HBox(controls[:2]), W.HBox([*controls[2:], self._answer])]
        super().__init__(Pictures({"bloom": (WIDTH, HEIGHT)}), above=rows)
        self._show()

    def ask(self, key: str) -> bool:
        """Look up a key in the filter: False is certain."""
        self._key.value = key
        return self.maybe

    @property
    def summary(self) -> str:
        """Return one line: the filter and its answer."""
        said = "maybe" if self.maybe else "certainly not"
        return f"BloomView: {self.filter}, {self._held.value} keys, {self._key.value!r}: {said}"

    def _show(self) -> None:
        keys = self._size.value
        key = pa.array([self._key.value or "-"])
        self.filter = BloomFilter.sized(keys, self._fpp.value)
        self.filter.add(_keys(0, self._held.value))
        self.maybe = bool(self.filter.might_contain(key)[0])
        probe = BloomFilter.sized(keys, self._fpp.value)
        probe.add(key)
        held = self._key.value in {f"key-{n}" for n in range(self._held.value)}
        positive = "and it is: a true positive" if held else "but is not: a false positive"
        said = f"may be there, {positive}" if self.maybe else "is certainly not there"
        self._answer.value = f"<b>{said}</b>"
        title = (
            f"{self._key.value!r} {said} ({self.filter.bits} bits, {self.filter.hashes} per key)"
        )
        drawn = bloom(bits_of(self.filter), bits_of(probe), title, rates(keys))
        self.pictures.show("bloom", drawn)
