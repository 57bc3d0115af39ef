"""Invariant I9: the state index contains what the files contain, and gives the same answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hoodie_nb.actions.publish import staged_folder
from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.buckets.plan import WritePlan
from hoodie_nb.commit.coordinator import WriteCoordinator
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.files.base_file import read_keys, stored_schema
from hoodie_nb.index import lookup, manifest
from hoodie_nb.index.bloom import BloomIndex
from hoodie_nb.index.file_keys import hash64
from hoodie_nb.index.lookup import BloomStateIndex
from hoodie_nb.index.manifest import manifest_of
from hoodie_nb.intake.intake import Intake
from hoodie_nb.reading.read import merge_of
from hoodie_nb.reading.slice_rows import slice_rows
from hoodie_nb.types.schema import RECORD_KEY


def plan_of(table: TableHandle) -> WritePlan:
    """Return a plan as a writer of the table gets it, with a separate staging folder."""
    coordinator = WriteCoordinator(table, EventLog())
    plan = coordinator.plan(None, Intake(table.config, table.schema), Shape())
    return replace(plan, staged=staged_folder("0" * 17, uuid.uuid4().hex))


def forget_caches() -> None:
    """Clear this process's caches."""
    manifest._manifests.clear()
    lookup._view.cache_clear()


def index_gaps(table: TableHandle) -> list[str]:
    """Return the errors of the state: keys that it lacks, and keys with a wrong file group."""
    forget_caches()
    plan = plan_of(table)
    try:
        return [*_missing(plan), *_astray(table, plan)]
    finally:
        table.storage.remove(plan.staged, tree=True)


def _missing(plan: WritePlan) -> Iterator[str]:
    index = BloomStateIndex(plan)
    for partition, slices in plan.groups.slices.items():
        state = manifest_of(plan).partition(partition)
        known = index._open(partition, slices)
        for file_id, piece in slices.items():
            if state is None or state.loaded(piece) is None:
                continue
            hashes = hash64(read_keys(plan.storage.fetch(piece.base_path)))
            rows, groups = known.find(hashes)
            mine = rows[groups == known.file_ids.index(file_id)]
            if len(np.unique(mine)) < len(hashes):
                lacks = len(hashes) - len(np.unique(mine))
                yield f"{piece.base_path}: the state lacks {lacks} keys"


def _astray(table: TableHandle, plan: WritePlan) -> Iterator[str]:
    """A key that a log has deleted may be in another file group since: it is not looked up."""
    state, files = BloomStateIndex(plan), BloomIndex(plan)
    schema = stored_schema(table.schema)
    merge = merge_of(table, table.file_groups(), schema)
    for partition, slices in plan.groups.slices.items():
        for file_id, piece in slices.items():
            keys = read_keys(plan.storage.fetch(piece.base_path))
            if piece.logs:
                rows = pa.concat_tables(slice_rows(plan.storage, piece, schema, None, merge))
                keys = keys.filter(pc.is_in(keys, rows[RECORD_KEY].combine_chunks()))
            here = pa.array([file_id] * len(keys), pa.string())
            if not (state.locate(partition, keys).equals(here)):
                yield f"{piece.base_path}: keys are located elsewhere"
            if not files.locate(partition, keys).equals(here):
                yield f"{piece.base_path}: the blooms locate its keys elsewhere"
