"""The RFC's pipelines by name: their operators, shuffles and indexes; which one `auto` takes.

| pipeline | instant created by | shuffle by | index and buckets | flush |
| --- | --- | --- | --- | --- |
| `current` | a task of parallelism 1 that every record passes | partition | writing task | at end |
| `step1` | the coordinator when the checkpoint starts | partition | writing task | at end |
| `step2` | the coordinator | file id | a separate stage | at end |
| `step3` | the coordinator | file id | a separate stage | while input arrives |
| `direct` | the coordinator | file id | around the shuffle | while input arrives |

`current` has the RFC's bottlenecks 1 (the serial task), 2 (one task per partition) and 3 (all I/O
at the end); step 1, 2 and 3 each remove one. `direct` is beyond the RFC: keys are looked up before
the only shuffle, which moves Arrow blobs instead of rows (see `routing`). A stream's default,
`auto`, is `direct`, or `step3` with the index `state`, which `direct` cannot use.

A `Pipeline` is data: the runners read it, and `diagram` draws it. Bottleneck 4 is the index:
`state` knows only the keys of one job, `bloom` those of the table.

*Source:* RFC-24, "Current Pipeline" and STEP1 to STEP3.
"""

from dataclasses import dataclass, replace
from typing import Literal

from hoodie_nb.errors import InvalidConfig

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a pipeline; `sends_by` is the shuffle key of its output."""

    name: str
    parallelism: str
    does: str
    sends_by: str = ""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts of a pipeline and their settings."""

    name: str
    serial_instant: bool
    shuffle: Literal["partition", "file id"]
    mini_batches: bool
    index: str
    routed: bool = False

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Return the operators in the order in which a record passes them."""
        flush = (
            "flushes mini-batches in the background" if self.mini_batches else "buffers to the end"
        )
        source = Operator("Source", "n", "micro-batch N of the stream", "record")
        if self.serial_instant:
            serial = Operator(
                "InstantGenerator", "1", "creates the instant at the first record", "partition"
            )
            return (source, serial, self._writes_all(flush))
        coordinator = Operator(
            "WriteCoordinator", "driver", "instant before the writers, commit after", "events"
        )
        if self.shuffle == "partition":
            return (coordinator, replace(source, sends_by="partition"), self._writes_all(flush))
        if self.routed:
            router = Operator("KeyRouter", "n", f"{self.index} index, a task per key", "file id")
            writer = Operator("BucketWriter", "n", f"buckets of new keys, {flush}", "statuses")
            return (coordinator, replace(source, sends_by="record"), router, writer)
        assigner = Operator("FileIdAssigner", "n", f"{self.index} index, buckets", "file id")
        writer = Operator("BucketWriter", "n", f"{flush}, one file per bucket", "statuses")
        return (coordinator, replace(source, sends_by="record key"), assigner, writer)

    def _writes_all(self, flush: str) -> Operator:
        does = f"{self.index} index, buckets, {flush}, bucket after bucket"
        return Operator("WriteProcess", "n", does, "statuses")

    def diagram(self) -> str:
        """Return the pipeline as a Mermaid flowchart, which JupyterLab and GitHub draw."""
        boxes = [f'  {n}["{o.name} x {o.parallelism}"]' for n, o in enumerate(self.operators)]
        arrows = [f"  {n} -->|{o.sends_by}| {n + 1}" for n, o in enumerate(self.operators[:-1])]
        return "\n".join(["flowchart LR", *boxes, *arrows])

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{self.diagram()}\n```"

    def __str__(self) -> str:
        steps = [f"{o.parallelism} {o.name} ({o.does})" for o in self.operators]
        sends = [f" ─[{o.sends_by}]→ " for o in self.operators]
        drawn = "".join(step + arrow for step, arrow in zip(steps, [*sends[:-1], ""], strict=True))
        return f"{self.name}: {drawn}"


PIPELINES = {
    pipeline.name: pipeline
    for pipeline in (
        Pipeline("current", True, "partition", False, "state"),
        Pipeline("step1", False, "partition", False, "state"),
        Pipeline("step2", False, "file id", False, "state"),
        Pipeline("step3", False, "file id", True, "bloom+state"),
        Pipeline("direct", False, "file id", True, "bloom+state", routed=True),
    )
}


def pipeline_named(name: str) -> Pipeline:
    """Return a pipeline, or raise InvalidConfig with the known names."""
    if name not in PIPELINES:
        raise InvalidConfig(f"pipeline={name!r}: choose one of {list(PIPELINES)}")
    return PIPELINES[name]


def chosen_pipeline(name: str, index: str | None) -> Pipeline:
    """Return a pipeline by name; "auto" is the fastest one that can use the index (None: its own).

    `direct` looks keys up before its only shuffle, so each of its tasks needs the table's index:
    that of one job is kept by task.
    """
    if name != AUTO:
        return pipeline_named(name)
    return PIPELINES["step3" if index == "state" else "direct"]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a write runs: its pipeline, index and number of tasks.

    `index` is "bloom+state", "bloom", or "state", which is kept in `state_folder`.
    """

    pipeline: Pipeline = PIPELINES["step3"]
    index: str = "bloom+state"
    tasks: int = 1
    state_folder: str = ""
