"""`trigger=` as text to pyspark's arguments."""

from collections.abc import Mapping
from typing import Any

from hoodie_nb.clock import seconds
from hoodie_nb.errors import InvalidConfig

POLL_S = 0.05  # interval of polling while waiting


def trigger_options(trigger: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return pyspark's trigger arguments for `"2 seconds"`, `"available_now"` or pyspark's own."""
    if isinstance(trigger, Mapping):
        known = {"processingTime", "availableNow"}
        if len(trigger) != 1 or not set(trigger) <= known:
            raise InvalidConfig(f"trigger={dict(trigger)!r}: choose one of {sorted(known)}")
        return dict(trigger)
    if trigger in ("available_now", "availableNow"):
        return {"availableNow": True}
    if not any(c.isdigit() for c in str(trigger)):  # Spark's "once" is one of them
        raise InvalidConfig(
            f"trigger={trigger!r}: write a duration, such as '2 seconds', or 'available_now', "
            "which reads what is there and ends"
        )
    milliseconds = round(1000 * seconds(trigger, "trigger"))  # Spark does not accept "ms" and "min"
    return {"processingTime": f"{milliseconds} milliseconds"}
