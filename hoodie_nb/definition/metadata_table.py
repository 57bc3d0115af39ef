"""Hudi's metadata table: it is not maintained here, only dropped.

This library does not write it. Readers that use it would miss our commits, so it has to be dropped
before the first of them; Hudi's writer builds it again when it next writes with one.

*Fault tolerance*: the properties come first. They alone say whether readers use the metadata table,
and they change at once: from then on readers list folders. After a crash in between, its files are
a leftover that nobody reads, and the next write deletes them. In the other order readers would
follow properties to files that are gone, or to a part of them.

*Source:* HoodieTable.maybeDeleteMetadataTable, HoodieTableConfig.TABLE_METADATA_PARTITIONS.
"""

from hoodie_nb.definition import property_file
from hoodie_nb.storage.storage import META, Storage

FOLDER = f"{META}/metadata"
_INDEXES = f"{META}/.index_defs"
PROPERTIES = frozenset(
    {
        "hoodie.table.metadata.partitions",
        "hoodie.table.metadata.partitions.inflight",
        "hoodie.table.index.defs.path",
    }
)


def drop(storage: Storage) -> None:
    """Delete the metadata table, if there is one or a part of one; idempotent."""
    property_file.remove(storage, PROPERTIES)
    for folder in (_INDEXES, FOLDER):
        if storage.entry(folder):
            storage.remove(folder, tree=True)
            storage.sync_folder(META)
