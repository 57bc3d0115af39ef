"""The texts of the events in the scenarios."""

from __future__ import annotations

import re

EVENT_TEXTS = {
    "instant_requested": "coordinator requests {instant}",
    "instant_inflight": "coordinator begins {instant}",
    "checkpoint_sealed": "coordinator seals checkpoint {batch}",
    "instant_prepared": "coordinator prepares {instant} part={checkpoint}",
    "instant_committed": (
        "coordinator commits {instant} checkpoints={checkpoints} files={files} "
        "inserts={inserts} updates={updates} deletes={deletes}"
    ),
    "instant_abandoned": "coordinator abandons {instant}: nothing was written",
    "instant_rolled_back": "coordinator rolls back {instant}",
    "instant_redone": "coordinator applies {instant} again as {as_instant}",
    "commit_retried": "coordinator tries {instant} again: {why}",
    "settling_postponed": "coordinator leaves the cleanup of {instant} to the next writer: {why}",
    "bucket_assigned": "assigner opens {file_id} in {partition}",
    "buffer_flushed": "writer flushes {file_id} rows={rows}",
    "file_written": "writer stages {file_id} of {partition} rows={rows}",
    "batch_skipped": "job skips checkpoint {batch}: already in the table",
    "eager_rows_repeated": "job writes {rows} eager rows again",
    "task_failed": "task fails",
}
ACTORS = {text.split()[0] for text in EVENT_TEXTS.values()}
ACTIONS = {text.split()[1] for text in EVENT_TEXTS.values()}


class Names:
    """Stable short names, in order of appearance, for values that depend on clock and run."""

    def __init__(self) -> None:
        self._instants: dict[str, str] = {}
        self._groups: dict[str, str] = {}

    def short(self, text: str) -> str:
        """Return `text` with instants as 001, 002… and file ids as g1, g2… instead."""
        uuid = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-0"
        text = re.sub(uuid, lambda m: self._group(m[0]), text)
        text = re.sub(r"\d{17}", lambda m: self._instant(m[0]), text)
        return re.sub(r"-[0-9a-f]{12}\b", "-nonce", text)

    def _group(self, file_id: str) -> str:
        return self._groups.setdefault(file_id, f"g{len(self._groups) + 1}")

    def _instant(self, time17: str) -> str:
        return self._instants.setdefault(time17, f"{len(self._instants) + 1:03d}")
