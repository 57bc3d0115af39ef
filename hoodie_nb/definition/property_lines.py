"""`hoodie.properties` of a new table: which lines are written, by table version.

Versions 8 and 9 have a timeline of layout 2 and name the merge mode; version 8 also names its
classes. *Source:* HoodieTableConfig, HoodieTableMetaClient.TableBuilder.
"""

import json
import zlib

from hoodie_nb.definition.properties import INDEX, KEYGEN, TableConfig
from hoodie_nb.definition.property_file import escape
from hoodie_nb.types.avro_schema import to_avro
from hoodie_nb.types.merge_modes import lines_of

_GENERATORS = {"NON_PARTITION": "Nonpartitioned", "SIMPLE": "Simple", "COMPLEX": "Complex"}


def text_of(config: TableConfig, saved_at: str) -> str:
    """Return the text of the file of a new table, in the form of its version."""
    values = {
        "hoodie.table.name": config.name,
        "hoodie.table.type": "MERGE_ON_READ" if config.merge_on_read else "COPY_ON_WRITE",
        "hoodie.table.version": config.version,
        "hoodie.timeline.layout.version": str(config.layout.number),
        "hoodie.table.recordkey.fields": ",".join(config.record_key),
        "hoodie.table.partition.fields": ",".join(config.partition_by),
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.populate.meta.fields": "true",
        "hoodie.table.cdc.enabled": "false",
        "hoodie.datasource.write.hive_style_partitioning": str(config.hive_style).lower(),
        "hoodie.datasource.write.partitionpath.urlencode": str(config.url_encode).lower(),
        "hoodie.datasource.write.drop.partition.columns": "false",
        "hoodie.partition.metafile.use.base.format": "false",
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.table.keygenerator.type": config.keygen,
        INDEX: "GLOBAL_BLOOM" if config.global_keys else "",
        **(_of_version_6(config) if config.version == "6" else _of_version_8_or_9(config)),
        "hoodie.table.create.schema": json.dumps(
            to_avro(config.schema, config.name), separators=(",", ":")
        ),
        "hoodie.table.checksum": str(zlib.crc32(f".{config.name}".encode())),  # the last line
    }
    rows = [f"{key}={escape(value)}" for key, value in values.items() if value]
    return "\n".join([f"#Properties saved on {saved_at}", *rows, ""])


def _of_version_6(config: TableConfig) -> dict[str, str]:
    return {
        "hoodie.table.precombine.field": config.ordering or "",
        "hoodie.table.keygenerator.class": f"{KEYGEN}{_GENERATORS[config.keygen]}KeyGenerator",
        **lines_of(config.merge_mode, config.version),
        "hoodie.archivelog.folder": "archived",
    }


def _of_version_8_or_9(config: TableConfig) -> dict[str, str]:
    return {
        "hoodie.table.ordering.fields": config.ordering or "",
        **lines_of(config.merge_mode, config.version),
        "hoodie.table.initial.version": config.version,
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.archivelog.folder": "history",
        "hoodie.table.format": "native",
        "hoodie.table.multiple.base.file.formats.enable": "false",
    }
