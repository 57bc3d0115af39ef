"""What an `insert_overwrite` or clustering replaces, and its completed replacecommit.

*Work flow*: the writers see a table without file groups, so every row is a new one, in a new file
group. The completed file names the file groups that are replaced: those of the partitions that got
rows, or all; a clustering names those that it has merged. Readers leave them out from that instant
on, so a crash before the completed file changes nothing, and none after it can bring them back.

*On disk*: `T.replacecommit`, with `partitionToReplaceFileIds`. Its requested file is empty: it has
no plan that another engine could continue, and is rolled back like a commit.

*Source:* InsertOverwriteCommitActionExecutor, HoodieReplaceCommitMetadata.
"""

from collections.abc import Mapping, Sequence

from hoodie_nb.errors import InvalidInput
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.records.prepared import Prepared
from hoodie_nb.timeline.commits import OVERWRITES, WriteStatus, action_of, encode_commit
from hoodie_nb.view.file_groups import FileGroups


def groups_to_keep(groups: FileGroups, operation: str) -> FileGroups:
    """Return the file groups that the writers of an operation build on.

    A bulk insert rewrites no file, however small.
    """
    if action_of(operation) == "replacecommit" or operation == "bulk_insert":
        return FileGroups(instants=groups.instants)
    return groups


def replaced_groups(
    groups: FileGroups, operation: str, statuses: Sequence[WriteStatus], *, refused: bool
) -> dict[str, list[str]]:
    """Return the file groups that the result of an overwrite replaces, by partition path.

    Raises InvalidInput if it would empty the table because all of its rows were refused.
    """
    if operation not in OVERWRITES.values():
        return {}
    written = {status.partition_path for status in statuses}
    whole = operation == OVERWRITES["table"]
    paths = [*groups.slices] if whole else [path for path in written if path in groups.slices]
    if refused and paths and not statuses:
        raise InvalidInput(
            "all rows of the overwrite are bad: nothing was written, and the table keeps its rows. "
            "Use on_bad_record='fail' to see why, or give no rows to empty the table"
        )
    return {path: sorted(groups.slices[path]) for path in sorted(paths)}


def completed_file(
    table: TableHandle, record: Prepared, statuses: Sequence[WriteStatus], notes: Mapping[str, str]
) -> bytes:
    """Return the completed file of an instant whose last record this is."""
    replaced = record.replaced if record.pending.action == "replacecommit" else None
    time17 = record.instant_time
    operation = record.operation
    avro = table.timeline.layout.avro
    return encode_commit(time17, statuses, operation, notes, replaced=replaced, avro=avro)
