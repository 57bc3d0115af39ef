"""Names of merge modes and payload classes, and how properties name them.

The rules themselves are in `rows.merge_rule`. A mode is written as a payload class (version 6),
as a mode (version 9), or both (version 8). *Source:* RecordMergeMode, HoodieTableConfig.
"""

from collections.abc import Mapping
from dataclasses import dataclass

PAYLOAD = "org.apache.hudi.common.model."
_BY_PAYLOAD = "00000000-0000-0000-0000-000000000000"  # the strategy that asks the payload class


@dataclass(frozen=True, slots=True)
class MergeMode:
    """A merge rule as Hudi names it. The first payload class is written, the others are read.

    `custom`: only a payload class names it, so it exists in version 6 only.
    """

    payloads: tuple[str, ...]
    strategy: str = _BY_PAYLOAD
    needs_ordering: bool = False
    custom: bool = False
    for_global_keys: bool = True


MODES = {
    "event_time": MergeMode(
        ("DefaultHoodieRecordPayload", "EventTimeAvroPayload"),
        "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
        needs_ordering=True,
    ),
    "commit_time": MergeMode(
        ("OverwriteWithLatestAvroPayload",), "ce9acb64-bde0-424c-9b91-f6ebba25356d"
    ),
    "partial": MergeMode(("PartialUpdateAvroPayload",), custom=True, for_global_keys=False),
}
WRITTEN = {  # allowed values for writing a table
    "hoodie.record.merge.mode": ("EVENT_TIME_ORDERING", "COMMIT_TIME_ORDERING", "CUSTOM"),
    "hoodie.compaction.payload.class": tuple(
        PAYLOAD + name for mode in MODES.values() for name in mode.payloads
    ),
}


def mode_of(values: Mapping[str, str], ordering: str | None) -> str:
    """Return the merge mode in a table's properties; it depends on whether rows are ordered."""
    given = values.get("hoodie.record.merge.mode", "")
    payload = values.get("hoodie.compaction.payload.class", "").removeprefix(PAYLOAD)
    for name, mode in MODES.items():
        if mode.custom and payload in mode.payloads and given in ("", "CUSTOM"):
            return name
    late_wins = "COMMIT_TIME" in given or (not given and "OverwriteWithLatest" in payload)
    return "event_time" if ordering and not late_wins else "commit_time"


def lines_of(name: str, version: str) -> dict[str, str]:
    """Return the properties of a new table that name its merge mode."""
    mode = MODES[name]
    lines = {"hoodie.record.merge.mode": f"{name.upper()}_ORDERING"} if version != "6" else {}
    if version != "9":
        lines["hoodie.compaction.payload.class"] = PAYLOAD + mode.payloads[0]
    if version == "8":
        lines["hoodie.record.merge.strategy.id"] = mode.strategy
    return lines


def other_rule(values: Mapping[str, str], name: str) -> str | None:
    """Return why the table merges by a rule that is not supported; None if it does not."""
    more = [key for key in values if key.startswith("hoodie.record.merge.property.")]
    if more:
        return f"has {more[0]}={values[more[0]]}, a merge rule of its own"
    if values.get("hoodie.record.merge.mode") != "CUSTOM":
        return None
    strategy = values.get("hoodie.record.merge.strategy.id", "")
    if MODES[name].custom and strategy in ("", MODES[name].strategy):
        return None
    return f"merges records by a rule of its own (hoodie.record.merge.strategy.id={strategy!r})"
