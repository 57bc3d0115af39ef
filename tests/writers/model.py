"""A model of several writers on one table: all schedules of two writers, crashes and a service.

It is the plan of several writers in small: a table of two keys, base files, logs, commits in the
order of their completion, prepared checkpoints and the folder of each writer. `explore` walks every
schedule; `Rules` has one switch for each rule, so that a test can take it out and see what breaks.
Not modelled: the index, cleaning, archiving, readers that follow, a PUT that arrives late.
"""

from __future__ import annotations

from collections.abc import Iterator

from writers.table import Commit, File, Slices, fold, newest_slices, rows_of, written
from writers.world import (
    PLAN,
    Batch,
    Broken,
    Rules,
    Story,
    World,
    Writer,
    begin_world,
    gone,
    logs_of,
    newest_notes,
    put,
    replaced,
    sweep,
    unlock,
)


class Schedule:
    """The steps that a world allows under some rules."""

    def __init__(self, story: Story, rules: Rules) -> None:
        self.story, self.rules = story, rules
        first = begin_world(story)
        self.start = rows_of(newest_slices(first.files, first.commits, story.event_time))

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield each next world with the name of the step."""
        for me, writer in enumerate(world.writers):
            name = "AB"[me]
            if writer.step == "dead":
                yield f"{name} starts again", self.restart(world, me)
                continue
            if writer.step.startswith("asleep "):
                yield f"{name} wakes", put(world, me, step=writer.step.removeprefix("asleep "))
                continue
            moved = self.step(world, me)
            if moved is None:
                continue
            yield f"{name} {writer.step}", moved
            if writer.step == "idle" and world.lock != me:
                continue  # a crash before anything was done
            if world.crashes:
                yield f"{name} dies", self.die(world._replace(crashes=world.crashes - 1), me)
            if world.sleeps:
                slept = put(world, me, step=f"asleep {writer.step}")
                yield f"{name} sleeps", unlock(slept._replace(sleeps=world.sleeps - 1), me)
        if world.service and world.lock == -1:
            yield f"service {world.service}", self.serve(self.entered(world))

    def step(self, world: World, me: int) -> World | None:
        """Return the world after a writer's next step; None: it has nothing to do, or waits."""
        step = world.writers[me].step
        if step in ("stage", "seal", "record", "answer"):
            return getattr(self, step)(world, me)
        if world.lock not in (-1, me):
            return None
        if step == "idle" and not self.work(world, me):
            return None
        if step != "idle" and world.selves[me] != world.writers[me].run:
            return self.die(world, me)  # somebody has taken over
        if step not in ("idle", "enter", "view") and world.lock != me:
            return self.die(world, me)  # the lock is lost
        world = self.entered(world)._replace(lock=me)
        return getattr(self, step)(world, me)

    def entered(self, world: World) -> World:
        """Return the world as a section finds it: if it begins now, without half a commit."""
        if world.lock != -1 or not self.rules.links_withdrawn:
            return world
        instants = {instant for instant, _ in world.pending}
        files = frozenset(file for file in world.files if file.instant not in instants)
        return world._replace(files=files)

    def work(self, world: World, me: int) -> bool:
        """Tell whether a writer has a checkpoint to write, or a record to complete."""
        left = world.counted[me] < len(self.story.batches[me])
        return (
            left
            or world.selves[me] != world.writers[me].run
            or bool(self.unapplied(world, me))
            or world.records[me] is not None
        )

    def unapplied(self, world: World, me: int) -> list[int]:
        """Return the sealed checkpoints of a writer that its mark does not cover."""
        if self.rules.own_marks:
            mark = newest_notes(world, self.rules)[me]
            return [n for writer, n in world.seals if writer == me and n >= mark]
        mark = world.commits[-1].seals if world.commits else 0
        return [n for at, (writer, n) in enumerate(world.seals) if writer == me and at >= mark]

    # --- a writer of its own checkpoint

    def idle(self, world: World, me: int) -> World:
        """Register, or take over what an earlier run of this identity has left."""
        writer = world.writers[me]
        selves = replaced(world.selves, me, writer.run)
        if world.selves[me] == writer.run and world.records[me] is None:
            return put(world, me, step="enter")
        return put(world._replace(selves=selves), me, step="inherit")

    def inherit(self, world: World, me: int) -> World:
        """Complete what an earlier run has prepared, else roll it back."""
        return self.take(world, me, me)

    def enter(self, world: World, me: int) -> World:
        """Look for the dead first, then begin or commit."""
        for other in range(len(world.writers)):
            if other != me and self.to_take(world, other):
                if self.rules.replace_self:
                    world = world._replace(selves=replaced(world.selves, other, -1))
                return put(world, me, step="takeover", target=other)
        batch = world.writers[me].batch
        if batch is not None:
            return put(world, me, step="link", target=me)
        notes = newest_notes(world, self.rules)
        number = world.counted[me]
        if number < len(self.story.batches[me]) and notes[me] > number:
            counted = replaced(world.counted, me, number + 1)  # it is in the table
            return put(unlock(world._replace(counted=counted), me), me, step="idle")
        if self.story.seals and number < len(self.story.batches[me]):
            return put(unlock(world, me), me, step="seal")
        if not self.story.seals and number >= len(self.story.batches[me]):
            return put(unlock(world, me), me, step="idle")
        if self.story.seals and not self.unapplied(world, me):
            return put(unlock(world, me), me, step="idle")
        return self.request(world, me)

    def to_take(self, world: World, other: int) -> bool:
        """Tell whether another writer is gone, or has lost the lock inside a commit."""
        instants = {instant for instant, owner in world.pending if owner == other}
        if world.selves[other] == -1:
            return bool(instants) or world.records[other] is not None
        return gone(world, other)

    def request(self, world: World, me: int) -> World:
        """Request an instant and take the view."""
        pending = world.pending | {(world.clock, me)}
        numbers = self.unapplied(world, me) if self.story.seals else [world.counted[me]]
        changes = tuple(c for n in numbers for c in self.story.batches[me][n])
        batch = Batch(numbers[-1], numbers[0], changes, world.clock, -1, frozenset(), (), (), me)
        world = unlock(world._replace(pending=pending, clock=world.clock + 1), me)
        if not self.rules.view_in_section:
            return put(world, me, step="view", batch=batch)
        return self.viewed(world, me, batch)

    def viewed(self, world: World, me: int, batch: Batch) -> World:
        """Keep the view, and the notes if they are computed too early."""
        batch = batch._replace(view=len(world.commits))
        notes = newest_notes(world, self.rules)
        return put(world, me, step="stage", batch=batch, notes=notes)

    def view(self, world: World, me: int) -> World:
        """Take the view in a section of its own: the rule is taken out."""
        return unlock(self.viewed(world, me, world.writers[me].batch), me)

    def stage(self, world: World, me: int) -> World:
        """Write the files of the view's slices."""
        batch = world.writers[me].batch
        known = world.commits[: batch.view]
        batch = self.wrote(batch, newest_slices(world.files, known, self.story.event_time))
        staged = world.staged | {(me, file) for file in batch.files}
        after = "enter" if self.story.seals or world.records[me] else "record"
        if world.records[me]:  # written again, with its rows kept by the record
            world = world._replace(records=replaced(world.records, me, batch))
        return put(world._replace(staged=staged), me, step=after, batch=batch)

    def wrote(self, batch: Batch, slices: Slices) -> Batch:
        """Return a batch written onto slices."""
        story = self.story
        made = written(
            batch.changes, slices, batch.instant, story.logs, story.event_time, story.fill
        )
        return batch._replace(files=made.files, bases=made.bases, missing=made.missing)

    def seal(self, world: World, me: int) -> World:
        """Keep the rows of a checkpoint; Spark counts it."""
        number = world.counted[me]
        seals = world.seals
        if (me, number) not in seals:
            seals += ((me, number),)
        counted = replaced(world.counted, me, number + 1)
        return put(world._replace(seals=seals, counted=counted), me, step="idle")

    def record(self, world: World, me: int) -> World:
        """Keep the record that the checkpoint is prepared."""
        batch = world.writers[me].batch
        return put(world._replace(records=replaced(world.records, me, batch)), me, step="answer")

    def answer(self, world: World, me: int) -> World:
        """Tell Spark, which counts the checkpoint, if this run still has its identity."""
        if self.rules.read_self and world.selves[me] != world.writers[me].run:
            return self.die(world, me)
        counted = replaced(world.counted, me, world.writers[me].batch.number + 1)
        return put(world._replace(counted=counted), me, step="enter")

    # --- a commit, of the own batch or of a dead writer's

    def link(self, world: World, me: int) -> World:
        """Publish the files, or request another instant if something came between."""
        writer = world.writers[me]
        batch = writer.batch if writer.target == me else writer.taken
        notes = newest_notes(world, self.rules)
        if self.rules.record_by_notes and notes[writer.target] > batch.number:
            return put(world, me, step="settle")
        if batch.instant in {commit.instant for commit in world.commits}:
            return put(world, me, step="settle")
        if any((batch.folder, file) not in world.staged for file in batch.files):
            if batch.number < world.counted[writer.target]:
                raise Broken(f"staged files of {'AB'[writer.target]} are gone")
            return put(world, me, step="settle")  # Spark sends these rows again
        pending = (batch.instant, writer.target) in world.pending
        if not pending or self.conflicts(world, batch):
            return self.again(world, me, batch)
        return put(world._replace(files=world.files | batch.files), me, step="complete")

    def again(self, world: World, me: int, batch: Batch) -> World:
        """Write the whole batch under a new instant; the third time, in the section."""
        writer = world.writers[me]
        owner = writer.target
        instant = world.clock if self.rules.new_instant else batch.instant
        pending = world.pending - {(batch.instant, owner)} | {(instant, owner)}
        files = world.files - {f for f in world.files if f.instant == batch.instant}
        world = world._replace(pending=pending, clock=max(world.clock, instant + 1), files=files)
        batch = batch._replace(instant=instant, view=len(world.commits))
        if owner == me and not writer.losses:
            return unlock(put(world, me, step="stage", batch=batch, losses=1), me)
        batch = self.wrote(batch, newest_slices(world.files, world.commits, self.story.event_time))
        folder = owner if self.rules.owner_folder else me
        staged = world.staged | {(folder, file) for file in batch.files}
        batch = batch._replace(folder=folder)
        world = world._replace(staged=staged)
        if world.records[owner]:
            world = world._replace(records=replaced(world.records, owner, batch))
        return put(world, me, step="link", **{"batch" if owner == me else "taken": batch})

    def complete(self, world: World, me: int) -> World:
        """Write the completed file, with the notes of all writers."""
        writer = world.writers[me]
        owner = writer.target
        batch = writer.batch if owner == me else writer.taken
        early = owner == me and not self.rules.notes_in_section
        notes = writer.notes if early else newest_notes(world, self.rules)
        notes = replaced(notes, owner, batch.number + 1)
        arrivals = [at for at, seal in enumerate(world.seals) if seal == (owner, batch.number)]
        mark = max([*(at + 1 for at in arrivals), *(c.seals for c in world.commits)], default=0)
        commit = Commit(batch.instant, world.clock, batch.changes, frozenset(), notes, mark)
        pending = world.pending - {(batch.instant, owner)}
        world = world._replace(
            commits=(*world.commits, commit), pending=pending, clock=world.clock + 1
        )
        self.applied_once(world)
        return put(world, me, step="settle")

    def settle(self, world: World, me: int) -> World:
        """Drop the record and the staged files, and go on."""
        owner = world.writers[me].target
        pending = frozenset((t, w) for t, w in world.pending if w != owner)
        lost = {t for t, w in world.pending - pending}
        files = frozenset(file for file in world.files if file.instant not in lost)
        world = sweep(world, owner)._replace(
            records=replaced(world.records, owner, None), pending=pending, files=files
        )
        if owner == me:
            return unlock(put(world, me, step="idle", batch=None, losses=0, target=-1), me)
        return put(world, me, step="enter", target=-1, taken=None)

    # --- a dead writer

    def takeover(self, world: World, me: int) -> World:
        """Read the record of a dead writer."""
        return self.take(world, me, world.writers[me].target)

    def take(self, world: World, me: int, owner: int) -> World:
        """Complete a prepared checkpoint, else roll it back and sweep its folder."""
        batch = world.records[owner]
        pending = {(t, w) for t, w in world.pending if w != owner or (batch and t == batch.instant)}
        lost = {t for t, _ in world.pending - pending}
        files = frozenset(file for file in world.files if file.instant not in lost)
        world = world._replace(pending=frozenset(pending), files=files)
        if batch is not None:
            if owner == me:  # what others have left half done comes first
                return put(world, me, step="enter", batch=batch)
            return put(world, me, step="link", target=owner, taken=batch)
        return put(world, me, step="swept", target=owner)

    def swept(self, world: World, me: int) -> World:
        """Sweep a folder without a record, and take its `self` if that is still to be done."""
        owner = world.writers[me].target
        world = sweep(world, owner)
        if owner != me:
            world = world._replace(selves=replaced(world.selves, owner, -1))
        return put(world, me, step="enter", target=-1)

    def die(self, world: World, me: int) -> World:
        """Return the world without a writer's memory."""
        writers = replaced(world.writers, me, Writer("dead", world.writers[me].run))
        return unlock(world._replace(writers=writers), me)

    def restart(self, world: World, me: int) -> World:
        """Return the world with a new run of a dead writer."""
        writers = replaced(world.writers, me, Writer("idle", world.writers[me].run + 1))
        return world._replace(writers=writers)

    # --- the rules of a conflict

    def conflicts(self, world: World, batch: Batch) -> bool:
        """Tell whether what completed since the view forbids to complete a batch."""
        now = newest_slices(world.files, world.commits, self.story.event_time)
        wrote = {file.group: file for file in batch.files}
        logs = {group for group, file in wrote.items() if file.log}
        checked = [
            (group, base)
            for group, base in batch.bases
            if (self.rules.found_groups or group in wrote)
            and (self.rules.base_of_log or group not in logs)
        ]
        if any(group not in now or now[group].base != base for group, base in checked):
            return True
        first = min((commit.instant for commit in world.commits), default=0)
        if self.rules.after_first and batch.instant < first:
            return True
        rewritten = set(wrote) - logs
        return (
            self.found_since(world, batch, now)
            or self.logs_since(world, batch, logs)
            or (self.rules.base_after_logs and bool(logs_of(world, batch, rewritten)))
        )

    def found_since(self, world: World, batch: Batch, now: Slices) -> bool:
        """Tell whether a key that was not found is in the table now."""
        before = newest_slices(world.files, world.commits[: batch.view], self.story.event_time)
        keys = {c.key for c in batch.missing if self.rules.deletes_checked or not c.deleted}
        groups = [g for g in now if self.rules.old_groups or g not in before]
        return self.rules.key_check and any(keys & set(now[group].rows) for group in groups)

    def logs_since(self, world: World, batch: Batch, logs: set[str]) -> bool:
        """Tell whether other logs of a log's group forbid it."""
        came = logs_of(world, batch, logs)
        later = any(file.instant > batch.instant for file in came)
        deletes = any(change.deleted for file in came for change in file.rows)
        return (self.rules.log_order and later) or (self.rules.log_deletes and deletes)

    def serve(self, world: World) -> World:
        """Compact the groups with logs, or cluster all groups, in one turn."""
        slices = newest_slices(world.files, world.commits, self.story.event_time)
        instant = world.clock
        if world.service == "compact":
            made = {
                File(group, instant, frozenset(held.rows.values()))
                for group, held in slices.items()
                if held.last > held.base
            }
            gone_groups: frozenset[str] = frozenset()
        else:
            made = {File(f"c{instant}", instant, frozenset(rows_of(slices)))}
            gone_groups = frozenset(slices)
        notes = newest_notes(world, self.rules)
        seals = world.commits[-1].seals if world.commits else 0
        commit = Commit(instant, instant + 1, (), gone_groups, notes, seals)
        return world._replace(
            files=world.files | made,
            commits=(*world.commits, commit),
            clock=instant + 2,
            service="",
        )

    # --- what must hold

    def applied_once(self, world: World) -> None:
        """Raise Broken if the changes of a checkpoint are in two commits."""
        given = [c for batches in self.story.batches for batch in batches for c in batch]
        done = [change for commit in world.commits for change in commit.changes]
        if any(done.count(change) > given.count(change) for change in done):
            raise Broken("a checkpoint is applied twice")

    def check(self, world: World) -> None:
        """Raise Broken if a reader sees other rows than the dict of the completed batches."""
        event_time = self.story.event_time
        found = rows_of(newest_slices(world.files, world.commits, event_time))
        keys = [row.key for row in found]
        if len(keys) != len(set(keys)):
            raise Broken("a key has two rows")
        wanted = fold(self.start, world.commits, event_time)
        if {row.key: row for row in found} != wanted:
            raise Broken("a reader sees other rows than the completed batches make")

    def check_end(self, world: World) -> None:
        """Raise Broken if nothing can go on and a checkpoint is missing."""
        for me, batches in enumerate(self.story.batches):
            if world.counted[me] < len(batches):
                raise Broken(f"{'AB'[me]} is stuck")
        given = {c for batches in self.story.batches for batch in batches for c in batch}
        missing = given - {c for commit in world.commits for c in commit.changes}
        if missing:
            raise Broken(f"counted, and not in the table: {sorted(missing)}")
        if world.records != (None,) * len(world.records) or world.pending:
            raise Broken("something is left behind")


def explore(story: Story, rules: Rules = PLAN, limit: int = 2_000_000) -> int:
    """Walk all schedules of a story, return the number of worlds; raise Broken with its steps."""
    schedule = Schedule(story, rules)
    start = begin_world(story)
    seen, stack = {start}, [(start, ())]
    while stack:
        world, steps = stack.pop()
        try:
            schedule.check(world)
            following = list(schedule.steps(world))
            if not following:
                schedule.check_end(world)
        except Broken as error:
            raise Broken(f"{error} after {list_of(steps)}") from None
        for name, after in following:
            if after not in seen:
                seen.add(after)
                stack.append((after, (name, steps)))
        if len(seen) > limit:
            raise Broken(f"more than {limit} worlds")
    return len(seen)


def list_of(steps: tuple) -> str:
    """Return steps as text."""
    names: list[str] = []
    while steps:
        names.append(steps[0])
        steps = steps[1]
    return " | ".join(reversed(names))
