"""InstantGenerator: a task creates the instant (only in the pipeline before the RFC's STEP1).

Its task sees every record; at the first one it creates the instant and the staging folder, and from
then on every record carries the instant's time. A repeated attempt finds the instant of the
previous attempt by the folder, and uses it. If two attempts at the same time create an instant
each, the coordinator accepts only files of the first one.

*Source:* RFC-24 bottleneck 1, InstantGenerateOperator.
"""

from dataclasses import replace

from hoodie_nb.actions.publish import staged_folder
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.clock import SystemClock
from hoodie_nb.storage.storage import STAGED, Storage
from hoodie_nb.timeline.timeline import Instant, State, Timeline


def own_commits(storage: Storage, timeline: Timeline, nonce: str) -> list[Instant]:
    """Return the pending commits for which the run `nonce` has created a staging folder.

    Two attempts of the task at the same time may create one each.

    A commit that another engine started at the same time is neither written nor rolled back.
    """
    staged = {entry.name for entry in storage.list_folder(STAGED)}
    return [i for i in timeline.refresh().pending if f"{i.requested_time}-{nonce}" in staged]


def generate_instant(plan: WritePlan) -> str:
    """Create the inflight instant of this checkpoint and its staging folder; return its time."""
    timeline = Timeline(plan.storage, SystemClock(), plan.layout)
    own = own_commits(plan.storage, timeline, plan.staged)
    instant = own[0] if own else timeline.request()
    plan.storage.make_folder(with_instant(plan, instant.requested_time).staged)
    if instant.state is State.REQUESTED:
        timeline.begin(instant)
    return instant.requested_time


def with_instant(plan: WritePlan, instant_time: str) -> WritePlan:
    """Return the plan for an instant that was created after the plan."""
    staged = staged_folder(instant_time, plan.staged)
    return replace(plan, instant_time=instant_time, staged=staged)
