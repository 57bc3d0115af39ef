"""The world of the model: rules, stories, the disk, and what each writer has in memory."""

from __future__ import annotations

from typing import NamedTuple

from writers.table import Change, Commit, File


class Rules(NamedTuple):
    """The rules of the plan; each is true in it."""

    view_in_section: bool = True  # the view is taken where the instant is requested
    found_groups: bool = True  # a group in which a key was found is checked, not only written ones
    key_check: bool = True  # a key that was not found is looked up again
    deletes_checked: bool = True  # also one that was to be deleted
    old_groups: bool = True  # also in groups that the view had
    new_instant: bool = True  # what conflicts is written again under a new instant
    after_first: bool = True  # no instant precedes the first completed commit
    log_order: bool = True  # a log is later than all of its group that completed since the view
    log_deletes: bool = True  # no log with deletes came into a log's group since the view
    base_of_log: bool = True  # a log's group has the base file of the view
    base_after_logs: bool = True  # no log came since the view into a group that gets a base file
    owner_folder: bool = True  # a dead writer's checkpoint is written again into its own folder
    replace_self: bool = True  # a taker replaces `self` before it reads records
    read_self: bool = True  # a writer reads `self` between its record and its answer to Spark
    notes_by_completion: bool = True  # the newest notes are those of the commit completed last
    notes_in_section: bool = True  # notes continue those of the newest commit
    record_by_notes: bool = True  # a record that the newest notes cover is dropped
    links_withdrawn: bool = True  # who takes the lock first deletes the files of pending instants
    own_marks: bool = True  # the mark of applied seals is one for each writer


PLAN = Rules()


class Batch(NamedTuple):
    """What a writer reports of its staged files."""

    number: int  # of the last checkpoint in it
    first: int
    changes: tuple[Change, ...]
    instant: int
    view: int  # commits that it knew
    files: frozenset[File]
    bases: tuple[tuple[str, int], ...]  # the groups found or written, and their base files then
    missing: tuple[Change, ...]  # changes of keys that were not found
    folder: int  # the writer whose folder has the files


class Writer(NamedTuple):
    """One writer's memory."""

    step: str = "idle"
    run: int = 0
    batch: Batch | None = None
    taken: Batch | None = None  # another writer's, as its record was when it was read
    losses: int = 0
    target: int = -1  # whose prepared checkpoint it completes, in a section
    notes: tuple[int, ...] = ()


class World(NamedTuple):
    """The table, what is on the disk beside it, and the writers."""

    files: frozenset[File]
    commits: tuple[Commit, ...]
    pending: frozenset[tuple[int, int]]  # instant, owner
    clock: int
    lock: int  # a writer, or -1
    records: tuple[Batch | None, ...]
    staged: frozenset[tuple[int, File]]  # folder, file
    selves: tuple[int, ...]  # the run that each identity belongs to; -1: taken
    counted: tuple[int, ...]  # checkpoints that Spark counts
    seals: tuple[tuple[int, int], ...]  # writer, checkpoint, in the order of arrival
    writers: tuple[Writer, ...]
    service: str
    crashes: int
    sleeps: int


class Story(NamedTuple):
    """What two writers and a service have to do."""

    batches: tuple[tuple[tuple[Change, ...], ...], ...]
    files: frozenset[File] = frozenset()
    logs: bool = False
    event_time: bool = True
    fill: bool = False
    seals: bool = False
    service: str = ""
    crashes: int = 0
    sleeps: int = 0


class Broken(Exception):
    """An invariant does not hold."""


def begin_world(story: Story) -> World:
    """Return the world before the first step."""
    count = len(story.batches)
    commits = (Commit(1, 1, (), frozenset(), (0,) * count, 0),) if story.files else ()
    return World(
        story.files,
        commits,
        frozenset(),
        2,
        -1,
        (None,) * count,
        frozenset(),
        (0,) * count,
        (0,) * count,
        (),
        (Writer(),) * count,
        story.service,
        story.crashes,
        story.sleeps,
    )


def logs_of(world: World, batch: Batch, groups: set[str]) -> list[File]:
    """Return the logs that came into groups since a batch's view."""
    since = {commit.instant for commit in world.commits[batch.view :]}
    return [f for f in world.files if f.log and f.group in groups and f.instant in since]


def gone(world: World, writer: int) -> bool:
    """Tell whether the run in `self` is dead, or asleep so long that its lease is over."""
    held = world.writers[writer]
    lost = held.step == "dead" or held.step.startswith("asleep ")
    return lost or world.selves[writer] != held.run


def newest_notes(world: World, rules: Rules) -> tuple[int, ...]:
    """Return by writer how many checkpoints the newest commit says are in the table."""
    if not world.commits:
        return (0,) * len(world.writers)
    if rules.notes_by_completion:
        return world.commits[-1].notes
    return max(world.commits, key=lambda commit: commit.instant).notes


def sweep(world: World, owner: int) -> World:
    """Delete what a writer has staged."""
    return world._replace(staged=frozenset(s for s in world.staged if s[0] != owner))


def put(world: World, me: int, **fields: object) -> World:
    """Return the world with another memory of a writer."""
    return world._replace(writers=replaced(world.writers, me, world.writers[me]._replace(**fields)))


def replaced(values: tuple, at: int, value: object) -> tuple:
    """Return a tuple with one value changed."""
    return (*values[:at], value, *values[at + 1 :])


def unlock(world: World, me: int) -> World:
    """Return the world after a writer has left its section, if it is in one."""
    return world._replace(lock=-1) if world.lock == me else world
