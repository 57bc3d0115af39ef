"""Creating and replacing a table: when a folder is free, `if_exists`, clearing the old table.

*Fault tolerance*: an interrupted creation leaves no table, and can be repeated.
"""

import errno
from collections.abc import Callable

import pyarrow as pa

from hoodie_nb.clock import SystemClock
from hoodie_nb.definition import properties, property_file
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.definition.rules import KeptRules, rules_of
from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.storage.storage import META, OURS, SCRATCH, TURNS, Entry, Storage, joined
from hoodie_nb.timeline.instant import LAYOUT_2
from hoodie_nb.timeline.timeline import Timeline
from hoodie_nb.view.file_groups import METADATA_NAMES, Commits, data_file_name, table_folders

_ATTEMPTS = 10
SchemaOf = Callable[[TableConfig], pa.Schema]


def present(
    storage: Storage, config: TableConfig, if_exists: str, schema_of: SchemaOf
) -> TableConfig | None:
    """Return the table that exists, None in a free place; InvalidTable if it is neither.

    `schema_of` returns the columns that it has now, which may not be those of its creation.
    """
    if not _is_there(storage):
        try:
            _must_be_free(storage)
            return None
        except InvalidTable:
            if not _is_there(storage):  # else another process has made it meanwhile
                raise
    if if_exists == "error":
        raise InvalidTable(
            f"{storage.root} has a table already: use Table.open, if_exists='open', "
            "or if_exists='replace' to delete it first"
        )
    found = properties.load(storage)
    if found.merge_on_read and (found.refusal or not KeptRules(storage).known):
        raise InvalidTable(
            f"{storage.root} has a merge-on-read table of another engine, which is neither "
            "replaced nor written here: read it with Table.open, or delete its folder first"
        )
    if if_exists == "open":
        _must_agree(found, config, storage.root, schema_of)
    return found


def clear(storage: Storage, found: TableConfig) -> None:
    """Delete a table: data files of its own partitions, then `.hoodie`, its properties last.

    If interrupted, the remains are still a table that can be replaced; the lock is kept.
    """
    commits = Commits.of(Timeline(storage, SystemClock(), found.layout))
    for folder in [f for f in table_folders(storage, commits) if f.is_partition]:
        for entry in sorted(folder.entries, key=_is_metadata):  # the metadata file last
            if data_file_name(entry.name) or entry.name in METADATA_NAMES:
                storage.remove(joined(folder.path, entry.name))
        path = folder.path
        while path and not storage.list_folder(path):
            storage.remove(path)
            path = path.rpartition("/")[0]
    for entry in storage.list_folder(META):
        path = f"{META}/{entry.name}"
        if entry.is_folder and path != OURS:
            storage.remove(path, tree=True)
        elif not entry.is_folder and path != property_file.PATH:
            storage.remove(path)
    for entry in storage.list_folder(OURS):
        if entry.is_folder and f"{OURS}/{entry.name}" != TURNS:  # others wait there
            _remove_tree(storage, f"{OURS}/{entry.name}")
    storage.remove(property_file.PATH)


def _remove_tree(storage: Storage, path: str) -> None:
    """Delete a folder in which those that wait may stage files, until they find it gone."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            storage.remove(path, tree=True)
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or attempt == _ATTEMPTS:
                raise


def _is_metadata(entry: Entry) -> bool:
    return entry.name in METADATA_NAMES


def _is_there(storage: Storage) -> bool:
    return any(map(storage.entry, (property_file.PATH, property_file.BACKUP)))


def _must_be_free(storage: Storage) -> None:
    """Raise InvalidTable for other files than an interrupted creation leaves, or one that runs."""
    target = storage.root
    found = storage.entry("")
    if found is not None and not (found.is_folder or found.is_link):
        raise InvalidTable(f"{target} is a file, not a folder: choose another path")
    names = [e.name for e in storage.list_folder("")]
    inside = {joined(META, e.name) for e in storage.list_folder(META)}
    leftover = names == [META] and inside <= {OURS, LAYOUT_2.folder}
    if names and (not leftover or storage.list_folder(LAYOUT_2.folder)):
        raise InvalidTable(
            f"{target} has files that are not a Hudi table ({', '.join(names[:3])}): choose an "
            "empty or new folder"
        )


def refuse_nested(storage: Storage) -> None:
    """Raise InvalidTable for a folder inside a table, whose readers would take it for a partition.

    The folders above are not listed: only their `hoodie.properties` is looked for.
    """
    outer = storage.outer_table()
    if outer is not None:
        raise InvalidTable(
            f"{storage.root} is inside the folder of the table {outer}, whose readers would find "
            "files there that are not its own: choose a folder beside it"
        )


def refuse_remains(storage: Storage) -> None:
    """Raise InvalidTable if our folder has records of a table that was there."""
    folders = [f"{OURS}/{e.name}" for e in storage.list_folder(OURS) if e.is_folder]
    filled = [
        path for path in folders if path not in (SCRATCH, TURNS) and storage.list_folder(path)
    ]
    if filled:  # they may hold rows that a stream considers written
        raise InvalidTable(
            f"{storage.root} has the remains of another table ({', '.join(filled)}): delete its "
            f"folder {META}, or choose another folder"
        )


def _must_agree(found: TableConfig, wanted: TableConfig, root: str, schema_of: SchemaOf) -> None:
    theirs = {**rules_of(found), "merge_on_read": found.merge_on_read}
    ours = {**rules_of(wanted), "merge_on_read": wanted.merge_on_read}
    if not wanted.schema.equals(found.schema):
        theirs["schema"] = schema_of(found).to_string()
        ours["schema"] = wanted.schema.to_string()
    different = [
        f"{k}: table {theirs[k]!r}, requested {ours[k]!r}" for k in ours if ours[k] != theirs[k]
    ]
    if different:
        raise InvalidConfig(f"{root} is a different table: {'; '.join(different)}")
