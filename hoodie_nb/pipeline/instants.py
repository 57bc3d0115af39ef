"""The InstantGenerator of the pipeline before STEP1: instants made inside a task.

Its task sees every record; at the first one it puts the instant on the timeline and makes the
staging folder, and from there on the instant's time travels in every record. A repeated attempt
finds the instant of the one before and goes on with it: the driver holds the writer lock, so a
pending commit can only be this job's own.

*Source:* RFC-24 bottleneck 1, InstantGenerateOperator.
"""

from dataclasses import replace

from hoodie_nb.clock import SystemClock
from hoodie_nb.pipeline.plan import WritePlan
from hoodie_nb.table.publish import staged_folder
from hoodie_nb.table.timeline import COMMITS, Instant, State, Timeline


def pending_commit(timeline: Timeline) -> Instant | None:
    """Return the one pending commit, None if there is none."""
    found = [i for i in timeline.refresh().pending if i.action in COMMITS]
    return found[0] if found else None


def generate_instant(plan: WritePlan) -> str:
    """Make the instant of this checkpoint, inflight, and its staging folder; return its time."""
    timeline = Timeline(plan.storage, SystemClock())
    instant = pending_commit(timeline) or timeline.request()
    if instant.state is State.REQUESTED:
        timeline.begin(instant)
    plan.storage.make_folder(with_instant(plan, instant.requested_time).staged)
    return instant.requested_time


def with_instant(plan: WritePlan, instant_time: str) -> WritePlan:
    """Return the plan for an instant that did not stand when the plan was made."""
    staged = staged_folder(instant_time, plan.staged)
    return replace(plan, instant_time=instant_time, staged=staged)
