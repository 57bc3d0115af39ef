"""For learning: pictures, widgets, experiments, recordings, and the names of the notebooks.

    from hoodie_nb import lab

    job = lab.LocalJob(lab.open_table(path, lab.ManualClock()), pipeline="step1")
    lab.check("nothing is visible before the commit", table.to_arrow().num_rows == 0)

Each name is loaded on first use.
"""

import importlib

_MODULES = {  # and the names that each has
    "buckets.assigner": "FileIdAssigner",
    "buckets.bucket_writer": "BucketWriter",
    "buckets.pipelines": "PIPELINES",
    "buckets.plan": "TaskAttempt task_of",
    "buckets.profile": "small_files",
    "clock": "ManualClock",
    "evidence.handle": "create_table open_table",
    "files.bloom": "BloomFilter",
    "lab.experiments.race": "Generated",
    "lab.rfc.process_thread": "Source",
    "lab.rfc.rfc_job": "LocalJob",
    "lab.run.recordings": "recorded",
    "lab.run.run_state": "RunState",
    "lab.stores.s3_server": "S3Server",
    "lab.stores.slow_storage": "Link",
    "local.in_process": "keyed_in_order",
    "local.operators": "assign assign_and_write write",
    "programs.lessons": "check check_table fail_at start_program without_check",
    "records.sealing": "Interval",
    "timeline.timeline": "Instant",
    "view.file_groups": "BaseFileName",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'hoodie_nb.lab' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hoodie_nb.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
