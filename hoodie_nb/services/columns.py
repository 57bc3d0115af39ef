"""`table.add_columns()`: a commit without files that changes the schema.

*Work flow*, under the table's lock: recover the table and commit what is prepared; one instant,
which is committed as that of any write. A reader takes the schema of the newest commit, so it sees
the new columns from the completed file on, and the old ones before.

*Fault tolerance*: before the completed file nothing has changed, and the next writer rolls the
instant back; after it, the next writer does the remaining steps. The same columns can be added
again: nothing is done if they exist. The schema is in every later commit, too, and the newest one
is never archived. If the commit is undone (`rollback`, `restore`), the schema is the earlier one.

*On disk*: `extraMetadata.schema`; the operation is ALTER_SCHEMA, as in Hudi.

*Source:* AlterHoodieTableAddColumnsCommand, TableSchemaResolver.
"""

import pyarrow as pa

from hoodie_nb.buckets.pipelines import Shape
from hoodie_nb.definition.new_columns import with_added
from hoodie_nb.events import EventLog
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.intake.intake import Intake
from hoodie_nb.local.batch import Commit, completed
from hoodie_nb.local.settling import settled

OPERATION = "alter_schema"


def add_columns(table: TableHandle, events: EventLog, given: pa.Schema) -> Commit | None:
    """Commit the table's schema with the columns of `given`; None if it has them all."""
    coordinator = settled(table, events)
    schema = with_added(table.schema, given, table.config)
    if schema.equals(table.schema):
        return None
    intake = Intake(table.config, schema, OPERATION)
    intake.check(schema)
    with coordinator.writing(intake, Shape(), keep_empty=True) as work:
        pass  # there are no rows
    assert work.result is not None
    return completed(table, coordinator.commit(work.result, intake))
