"""How the result of a service is shown, as text and as a card in a notebook."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar

from hoodie_nb.display import card

_SHOWN = 50
_SEVERAL = re.compile(r"s\b")


class Result:
    """The text and the card of a result, from its fields: texts, numbers, and tuples of things.

    The field `requested_time` is that of the service's instant (None if it was a plan only, or
    nothing was to be done); a service without instants has the field `done`. `labels` are those of
    fields: of what was done, and of what is planned.
    """

    __slots__ = ()
    labels: ClassVar[Mapping[str, tuple[str, str]]] = {
        "commit": ("commit undone", "commit to undo"),
        "commits": ("commits undone", "commits to undo"),
        "deleted": ("orphans deleted", "orphans to delete"),
        "files": ("files deleted", "files to delete"),
        "instants": ("instants archived", "instants to archive"),
        "size_bytes": ("bytes", "bytes"),
        "start": ("the timeline starts at", "the timeline starts at"),
    }

    def _facts(self) -> tuple[str, dict[str, Any]]:
        """Return the time of the instant, or "(plan)", and what the other fields say, by label."""
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in names}
        time17 = values.pop("requested_time", None)
        done = values.pop("done", time17 is not None)
        facts = {}
        for name, value in values.items():
            if value is None or value == "":
                continue
            spoken = name.replace("_", " ")
            past, planned = self.labels.get(name, (spoken, spoken))
            facts[past if done else planned] = value
        return time17 or ("" if done else "(plan)"), facts

    def _phrases(self) -> Iterator[str]:
        for label, value in self._facts()[1].items():
            count = len(value) if isinstance(value, tuple) else value
            if isinstance(count, int):
                yield f"{count:,} {_SEVERAL.sub('', label, 1) if count == 1 else label}"
            else:
                yield f"{label} {getattr(value, 'requested_time', value)}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self._phrases())}>"

    def _repr_html_(self) -> str:
        title, facts = self._facts()
        shown: dict[str, object] = {}
        for label, value in facts.items():
            things = value if isinstance(value, tuple) else ()
            shown[label] = len(things) if isinstance(value, tuple) else value
            shown |= {f"{label} {n}": thing for n, thing in enumerate(things[:_SHOWN], 1)}
        return card(f"{type(self).__name__} {title}", shown)
