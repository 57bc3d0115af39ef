"""fsck, records: damaged options, rules, checkpoint records, savepoints, quarantine.

If one is damaged, the next write, savepoint or read of the quarantine is refused; until then nobody
would notice the damage.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from hoodie_nb.actions.quarantine import refused_rows
from hoodie_nb.actions.savepoints import read_savepoint, saved
from hoodie_nb.checks.archived_files import refuse_damaged
from hoodie_nb.checks.findings import Finding
from hoodie_nb.definition import properties
from hoodie_nb.definition.property_file import PATH as PROPERTIES
from hoodie_nb.definition.rules import NOT_OF_LOGS
from hoodie_nb.definition.rules import PATH as RULES
from hoodie_nb.errors import HoodieError, InvalidTable
from hoodie_nb.evidence.handle import TableHandle
from hoodie_nb.storage.storage import OURS, read_bytes

_FOLDERS = tuple(f"{OURS}/{name}" for name in ("prepared", "sealed", "progress"))


def record_findings(table: TableHandle) -> Iterator[Finding]:
    """Read options, rules, records of checkpoints, savepoints, the archive and the quarantine."""
    purpose = f"restore {PROPERTIES} from a backup; if it was changed on purpose, delete {RULES} "
    purpose += NOT_OF_LOGS
    yield from _tried(partial(table.rules.refuse_other, table.config), purpose, "other-rules")
    damaged = "restore it from a backup, or do what its error says"
    options = partial(properties.load_options, table.storage)
    yield from _tried(options, damaged, "unreadable-record")
    for folder in _FOLDERS:
        for name in table.storage.file_names(folder):
            if name.endswith(".json") and not name.startswith("."):
                path = f"{folder}/{name}"
                yield from _tried(partial(_record, table, path), damaged, "unreadable-record")
    for instant in saved(table):
        cure = f'call Table.open(path).delete_savepoint("{instant.requested_time}") and create it '
        read = partial(read_savepoint, table, instant)
        yield from _tried(read, f"{cure}again", "damaged-savepoint")
    layout = table.timeline.layout
    which = "it" if layout.number == 1 else f"the folder {layout.archive}"
    cure = f"restore it from a backup; without one delete {which}: lost files of its commits are no"
    yield from _tried(partial(refuse_damaged, table), f"{cure} longer noticed", "damaged-archive")
    cure = "restore it from a backup, or delete it to give these refused rows up"
    yield from _tried(partial(refused_rows, table), cure, "damaged-quarantine")


def _tried(read: Callable[[], object], cure: str, code: str) -> Iterator[Finding]:
    with suppress(FileNotFoundError):  # a writer may be running
        try:
            read()
        except InvalidTable as error:
            denied = isinstance(error.__context__, PermissionError)
            yield Finding(str(error), "let this user read it" if denied else cure, code)
        except HoodieError:
            return


def _record(table: TableHandle, path: str) -> None:
    table.rules.decode(read_bytes(table.storage, path), path)
