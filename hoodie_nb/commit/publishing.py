"""Publishing with retries: a commit is tried several times before it fails.

A single disk error should not cause a complete rewrite. The steps are idempotent.
"""

import contextlib
from collections.abc import Sequence

from hoodie_nb.commit.prepared import drop_torn
from hoodie_nb.events import EventLog
from hoodie_nb.table.commits import WriteStatus
from hoodie_nb.table.handle import TableHandle
from hoodie_nb.table.publish import publish_commit
from hoodie_nb.table.timeline import Instant

_RETRIES = 3


def publish(
    table: TableHandle,
    events: EventLog,
    instant: Instant,
    statuses: Sequence[WriteStatus],
    content: bytes,
) -> Instant:
    """Publish an instant's files and write its completed file; the last attempt's error counts."""
    for attempt in range(_RETRIES + 1):
        try:
            return publish_commit(table.storage, table.timeline, instant, statuses, content)
        except OSError as error:
            torn = drop_torn(table, [instant.requested_time])
            done = table.timeline.completed(instant.requested_time)
            if done is not None and table.timeline.read(done) == content:  # only not synced
                with contextlib.suppress(OSError):
                    table.storage.sync_folder(table.timeline.layout.folder)
                return done
            if attempt == _RETRIES or (isinstance(error, FileExistsError) and not torn):
                raise
            events.emit("commit_retried", instant=instant.requested_time, why=str(error))
            table.clock.sleep(0.5 * 2**attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")
