"""A mapping whose values are computed when first asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

V = TypeVar("V")


class OnDemand(Mapping[str, V]):
    """The values that `find` returns, or that were set since; without values that are empty.

    `names` yields the names of the values that can be found. In another process, a copy is a dict
    with all values.
    """

    def __init__(
        self,
        find: Callable[[str], V | None],
        names: Callable[[], Iterable[str]],
        changed: Mapping[str, V] | None = None,
    ) -> None:
        self._find = find
        self._names = names
        self._changed = changed or {}

    def __getitem__(self, name: str) -> V:
        found = self._changed.get(name) or self._find(name)
        if not found:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self._changed
        yield from (name for name in self._names() if name not in self._changed)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def updated(self, changed: Mapping[str, V]) -> "OnDemand[V]":
        """Return a mapping with these values set."""
        return OnDemand(self._find, self._names, {**self._changed, **changed})


def updated(values: Mapping[str, V], changed: Mapping[str, V]) -> Mapping[str, V]:
    """Return a mapping with values set, without looking at the others."""
    return values.updated(changed) if isinstance(values, OnDemand) else {**values, **changed}
