"""The InstantGenerator of the pipeline before STEP1: a task creates the instant.

Its task sees every record; at the first one it creates the instant and the staging folder, and from
then on every record carries the instant's time. A repeated attempt finds the instant of the
previous attempt by the folder, and uses it.

*Source:* RFC-24 bottleneck 1, InstantGenerateOperator.
"""

from dataclasses import replace

from hoodie_nb.clock import SystemClock
from hoodie_nb.table.publish import staged_folder
from hoodie_nb.table.storage import STAGED, Storage
from hoodie_nb.table.timeline import Instant, State, Timeline
from hoodie_nb.writer.plan import WritePlan


def own_commit(storage: Storage, timeline: Timeline, nonce: str) -> Instant | None:
    """Return the pending commit for which the run `nonce` has created a staging folder, if any.

    A commit that another engine started at the same time is neither written nor rolled back.
    """
    staged = {entry.name for entry in storage.list_folder(STAGED)}
    found = [i for i in timeline.refresh().pending if f"{i.requested_time}-{nonce}" in staged]
    return found[0] if found else None


def generate_instant(plan: WritePlan) -> str:
    """Create the inflight instant of this checkpoint and its staging folder; return its time."""
    timeline = Timeline(plan.storage, SystemClock())
    instant = own_commit(plan.storage, timeline, plan.staged) or timeline.request()
    plan.storage.make_folder(with_instant(plan, instant.requested_time).staged)
    if instant.state is State.REQUESTED:
        timeline.begin(instant)
    return instant.requested_time


def with_instant(plan: WritePlan, instant_time: str) -> WritePlan:
    """Return the plan for an instant that was created after the plan."""
    staged = staged_folder(instant_time, plan.staged)
    return replace(plan, instant_time=instant_time, staged=staged)
