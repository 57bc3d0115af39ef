"""The source file of each row: Spark orders a micro-batch's files by size, not by age.

Among rows of one key with equal ordering values the newer arrival wins. So rows of a folder must be
ordered by the time of their file, its path, and their position in it. Two columns, the path and the
start of the row's block in the file, are added to the rows; the first stage replaces the path by
the file's rank in `CheckpointFolder.arrived`.

| the stream is | the columns come from |
| --- | --- |
| a folder, its rows changed one by one, or shuffled | the hidden column `_metadata` |
| a union, view, CTE or unpivot, without functions in Python | the task (`input_file_name`) |
| anything else | nothing: the order of its files is unknown |

They are left out if each micro-batch has one file (`maxFilesPerTrigger` is 1): Spark would fill
them in for every row, and plan each micro-batch twice.

**Caveats**: a stateful plan gets no extra columns, which could change the schema of its state.
`input_file_name` is empty after a shuffle, and wrong after a function in Python, which reads ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PATH = "_hoodie_nb_path"
FILE = "_hoodie_nb_file"
BLOCK = "_hoodie_nb_block"
PLACE = (FILE, BLOCK)
PLACE_FIELDS = [pa.field(FILE, pa.int64()), pa.field(BLOCK, pa.int64())]
_ROW_BY_ROW = {
    "CollectMetrics",
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "Project",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "StreamingRelation",
    "SubqueryAlias",
}
_COMMON_TABLES = {"CTERelationDef", "CTERelationRef", "WithCTE"}
_HIDING = {"Expand", "StreamingRelationV2", "Union", "View", *_COMMON_TABLES}


def with_places(stream: DataFrame, *, ahead: bool = True) -> DataFrame:
    """Return a stream with the file and block of each row; unchanged if they are unknown.

    Also unchanged if each micro-batch has one file. `ahead`: files are listed already that no
    completed batch has read; then the first micro-batch may have several.
    """
    plan = stream._jdf.queryExecution().analyzed()
    if "FileSource[" not in plan.toString() or not (ahead or _reads_several(plan)):
        return stream
    steps = _nodes(plan)
    try:
        if steps <= _ROW_BY_ROW:
            file = stream.metadataColumn("_metadata")
            return _with(stream, file.file_path, file.file_block_start)
        if steps <= _ROW_BY_ROW | _HIDING and not _runs_python(stream, plan):
            return _with(stream, F.input_file_name(), F.input_file_block_start())
    except AnalysisException:  # the stream has a column with this name
        pass
    return stream


def sources_of(stream: DataFrame) -> list[int]:
    """Return the number of each relation's source: Spark reads a repeated source once."""
    nodes = _relations(stream._jdf.queryExecution().analyzed())
    first = [next(n for n, other in enumerate(nodes) if other.equals(node)) for node in nodes]
    return [sorted({*first}).index(n) for n in first]


def placed(batch: DataFrame, files: Sequence[str]) -> DataFrame:
    """Return a batch with the places of its rows if it has several files, else without them."""
    return batch if files or PATH not in batch.columns else batch.drop(PATH, BLOCK)


def is_row_by_row(stream: DataFrame) -> bool:
    """Whether a stream is only filtered and projected by Spark: one row is found without others."""
    plan = stream._jdf.queryExecution().analyzed()
    steps = _ROW_BY_ROW - {"Repartition", "RepartitionByExpression"} | _HIDING
    return _nodes(plan) <= steps and not _runs_python(stream, plan)


def _relations(plan: Any) -> list[Any]:  # noqa: ANN401 - a plan of the JVM
    """Return the streaming sources in a plan, repeated ones too."""
    leaves = plan.collectLeaves()
    nodes = [leaves.apply(n) for n in range(leaves.size())]
    return [node for node in nodes if node.nodeName().startswith("StreamingRelation")]


def _reads_several(plan: Any) -> bool:  # noqa: ANN401
    """Whether a micro-batch may have several files."""
    nodes = _relations(plan)
    if len(nodes) > 1 or nodes[0].nodeName() != "StreamingRelation":
        return True
    limit = nodes[0].dataSource().options().get("maxFilesPerTrigger")
    return not limit.isDefined() or str(limit.get()).strip() != "1"


def _with(stream: DataFrame, path: Column, block: Column) -> DataFrame:
    return stream.select("*", path.alias(PATH), block.alias(BLOCK))


def _nodes(plan: Any) -> set[str]:  # noqa: ANN401 - a plan of the JVM
    children = plan.children()
    below = (_nodes(children.apply(n)) for n in range(children.size()))
    return {plan.nodeName()}.union(*below)


def _runs_python(stream: DataFrame, plan: Any) -> bool:  # noqa: ANN401
    jvm: Any = stream.sparkSession._jvm
    pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    return bool(plan.containsPattern(pattern.PYTHON_UDF()))


def places(rows: pa.Table, files: Sequence[str]) -> list[pa.Array]:
    """Return the rank of each row's file (-1 if not among `files`), and its block."""
    names = pc.replace_substring_regex(rows.column(PATH), "^file:/+", "/")
    known = pa.array([name.replace("file://", "", 1) for name in files], names.type)
    ranks = pc.cast(pc.index_in(names, value_set=known), pa.int64())
    columns = (ranks, pc.cast(rows.column(BLOCK), pa.int64()))
    return [pc.fill_null(column, -1) for column in columns]  # every sort has them first
