"""What checkpoints cost: formulas from workload and store to seconds, bytes and requests.

    load = Workload(rows=1e11, row_bytes=100, batch_rows=1e6, partitions=1000, writers=200)
    cost_of(load, Store(latency_s=0.03, bytes_per_s=100e6)).limit

*Files*: the keys of a batch are spread evenly over the file groups of the partitions that it
touches, and copy-on-write reads and writes each of these file groups as a whole.

*Requests*: those that a stream's checkpoint sends to its store. S3 copies a file in three requests,
and receives one above 8 MB in parts; a test counts them on an S3 server and compares.
*CPU*: five coefficients, fitted to one half of the measured scaling laws; the other is predicted
within a factor of 1.2 in the median and 1.4 at worst (`benchmarks/cost_model.py`).

*Seconds*: first the writers work in parallel, each on its file groups, one after the other; then
the coordinator checks the lengths of all files and publishes them, eight at a time, without reading
them, and last adds their keys to the index, one file after the other.

**Caveats**: The CPU times were measured on a local disk; no store's seconds were. Rows are as
narrow as in the benchmark. The index knows the touched files, with one run per partition (new keys:
a tenth more requests in the test). A copy within the store takes as long as any request, Spark adds
nothing, a writer reads each old file once, and an interval's batches touch the same files. Cleaning
is left out: some ten requests after a commit, and three for each file that it deletes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, expm1, log1p

import pandas as pd

from hoodie_nb.errors import InvalidConfig

CPU_S = {  # of one core: per commit, per commit before it, per row and file group
    "commit": 0.0182,
    "earlier_commit": 7.75e-06,
    "batch_row": 2.23e-06,
    "rewritten_row": 1.16e-06,
    "file_group": 0.00926,
}
_COMMIT = {  # per commit, per file group (its writer, the coordinator), partition, further writer
    "GET": (14, 1, 1, 1, 4),
    "HEAD": (17, 2, 1, 1, 1),
    "LIST": (22, 1, 0, 0, 0),
    "PUT": (6, 2, 2, 0, 0),
    "POST": (0, 0, 2, 0, 0),
    "DELETE": (4, 0, 0, 0, 0),
}
_SEAL = {"GET": 5, "HEAD": 7, "LIST": 5, "PUT": 2, "DELETE": 2}
_SEALED_COMMIT = {"GET": 1, "HEAD": -4, "LIST": -3, "DELETE": -1}  # some names are known already
_PUBLISHED_AT_ONCE = 8
# of a file that is uploaded in parts
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A table and the stream into it.

    `touched`: the partitions that a batch touches (0: all); `file_bytes`: the size of a full
    file; `commit_interval`: checkpoints per commit; `commits`: those on the timeline already.
    """

    rows: float
    row_bytes: float
    batch_rows: float
    partitions: int = 1
    file_bytes: float = 120e6
    checkpoint_s: float = 60.0
    commit_interval: int = 1
    writers: int = 1
    touched: int = 0
    commits: int = 0

    def __post_init__(self) -> None:
        """Refuse what no stream has (InvalidConfig)."""
        low = min(getattr(self, name) for name in self.__slots__[:-2]) <= 0
        if low or self.commits < 0 or not 0 <= self.touched <= self.partitions:
            raise InvalidConfig(f"{self}: give touched from 0 to partitions, all others above 0")

    @property
    def files_per_partition(self) -> int:
        """The file groups of each partition."""
        return max(1, ceil(self.rows * self.row_bytes / self.partitions / self.file_bytes))

    @property
    def rows_per_file(self) -> float:
        """The rows of each file group."""
        return self.rows / self.partitions / self.files_per_partition

    @property
    def touched_files(self) -> float:
        """The file groups that a commit rewrites: those that at least one row of it belongs to."""
        files = self.files_per_partition * (self.touched or self.partitions)
        rows = self.batch_rows * self.commit_interval
        return 1.0 if files == 1 else -files * expm1(rows * log1p(-1 / files))

    @property
    def parts(self) -> int:
        """The parts in which each file group's new file is uploaded; 1 if it is sent whole."""
        return ceil(self.rows_per_file * self.row_bytes / _PART_BYTES)


@dataclass(frozen=True, slots=True)
class Store:
    """An object store: seconds per request, bytes per second of one stream, prices.

    The prices are for 1,000 requests: GET and HEAD read; PUT, POST and LIST write; DELETE is free
    (S3 deletes several objects by one POST, which it does not charge).
    """

    latency_s: float
    bytes_per_s: float
    read_price: float = 0.0
    write_price: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one commit costs, with the checkpoints sealed for it; commits are `period_s` apart."""

    files: float
    read_bytes: float
    written_bytes: float
    requests: Mapping[str, float]
    seconds: Mapping[str, float]
    period_s: float
    price: float

    @property
    def commit_s(self) -> float:
        """The seconds from the first request of the commit to its last one."""
        return sum(self.seconds.values())

    @property
    def limit(self) -> str:
        """The part that takes the most time."""
        return max(self.seconds, key=lambda part: self.seconds[part])

    @property
    def load(self) -> float:
        """The share of the time in which a commit is being written; above 1 the stream lags."""
        return self.commit_s / self.period_s

    @property
    def requests_per_hour(self) -> float:
        """The requests of all kinds in an hour, if the stream keeps up."""
        return sum(self.requests.values()) * 3600 / self.period_s


def requests_of(load: Workload) -> dict[str, float]:
    """Return the requests of a commit by kind, with those of the checkpoints sealed for it."""
    files = load.touched_files
    seals = load.commit_interval if load.commit_interval > 1 else 0
    counts = (1, files, files, (load.touched or load.partitions), load.writers - 1)
    found = {kind: float(seals * _SEAL.get(kind, 0)) for kind in _COMMIT}
    for kind, per in _COMMIT.items():
        found[kind] += sum(n * each for n, each in zip(counts, per, strict=True))
        found[kind] += _SEALED_COMMIT.get(kind, 0) if seals else 0
    if load.parts > 1:
        for kind, added in (("HEAD", 1), ("POST", 2), ("PUT", load.parts - 1)):
            found[kind] += added * files
    found["LIST"] += 6 * (3 * load.commits // 1000)  # more pages of the timeline's three names each
    return found


def features(load: Workload) -> dict[str, float]:
    """Return what the CPU time depends on: how often each coefficient counts."""
    return {
        "commit": 1.0,
        "earlier_commit": load.commits,
        "batch_row": load.batch_rows * load.commit_interval,
        "rewritten_row": load.touched_files * load.rows_per_file,
        "file_group": load.touched_files,
    }


def cost_of(load: Workload, store: Store) -> Cost:
    """Return what one commit of the workload costs on the store."""
    files = load.touched_files
    requests = requests_of(load)
    cpu = {name: CPU_S[name] * count for name, count in features(load).items()}
    alone = cpu["commit"] + cpu["earlier_commit"]
    rewritten = files * load.rows_per_file * load.row_bytes
    seals = load.commit_interval > 1
    sealed = load.batch_rows * load.commit_interval * load.row_bytes if seals else 0
    share = ceil(files / load.writers) / files  # of the work: that of the writer with most files
    once, by_writer, by_coordinator = (sum(p[n] for p in _COMMIT.values()) for n in (0, 1, 2))
    by_writer += 2 + ceil(load.parts / _PARTS_AT_ONCE) if load.parts > 1 else 0
    partitions = load.touched or load.partitions
    read_keys = _COMMIT["GET"][2]
    alone_requests = once + partitions + read_keys * files
    published = (by_coordinator - read_keys) * files + partitions
    prices = {"GET": store.read_price, "HEAD": store.read_price, "DELETE": 0.0}
    return Cost(
        files=files,
        read_bytes=rewritten + sealed,
        written_bytes=rewritten + sealed,
        requests=requests,
        seconds={
            "writers compute": (sum(cpu.values()) - alone) * share,
            "writers transfer": (2 * rewritten + sealed) * share / store.bytes_per_s,
            "writers wait": by_writer * files * share * store.latency_s,
            "coordinator computes": alone,
            "coordinator waits": alone_requests * store.latency_s,
            "coordinator publishes": published / _PUBLISHED_AT_ONCE * store.latency_s,
        },
        period_s=load.checkpoint_s * load.commit_interval,
        price=sum(prices.get(kind, store.write_price) * n for kind, n in requests.items()) / 1000,
    )


def cost_table(loads: Mapping[str, Workload], store: Store) -> pd.DataFrame:
    """Return a row per workload: what a commit costs, and what limits it."""
    costs = {name: cost_of(load, store) for name, load in loads.items()}
    columns = {
        "files": [round(cost.files) for cost in costs.values()],
        "GB written": [round(cost.written_bytes / 1e9, 1) for cost in costs.values()],
        "requests": [round(sum(cost.requests.values())) for cost in costs.values()],
        "requests per hour": [round(cost.requests_per_hour) for cost in costs.values()],
        "seconds": [round(cost.commit_s, 1) for cost in costs.values()],
        "load": [round(cost.load, 2) for cost in costs.values()],
        "limit": [cost.limit for cost in costs.values()],
    }
    return pd.DataFrame(columns, index=list(costs))
