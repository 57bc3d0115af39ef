"""`hoodie.properties`, the file: Java's escapes, checksum, backup, replacing it atomically.

Java changes the file in place: it writes `hoodie.properties.backup` first and deletes it last. If
the file is missing or truncated, readers use the backup, and the next writer restores the file.

*Source:* HoodieTableConfig, java.util.Properties.
"""

import contextlib
import re
import zlib
from collections.abc import Set

from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage.storage import PROPERTIES, Storage, read_bytes

PATH = PROPERTIES
BACKUP = f"{PATH}.backup"


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys and values of a Java properties file, unescaped."""
    found = {}
    for line in text.splitlines():
        line = line.strip()
        if line and line[0] not in "#!":
            key, _, value = line.partition("=")
            found[_unescape(key.strip())] = _unescape(value.strip())
    return found


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        code = match[1]
        plain = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
        return chr(int(code[1:], 16)) if len(code) == 5 else plain.get(code, code)

    plain = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def escape(text: str) -> str:
    """Return a value escaped for a Java properties file."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    units = memoryview(text.encode("utf-16-le")).cast("H")  # Java's characters
    return "".join(chr(unit) if 31 < unit < 127 else f"\\u{unit:04x}" for unit in units)


def checksum(values: dict[str, str]) -> str:
    """Return the checksum of a table's properties: the CRC-32 of its name."""
    database = values.get("hoodie.database.name", "")
    name = values.get("hoodie.table.name")
    return str(zlib.crc32(f"{database}.{name}".encode()))


def restore(storage: Storage) -> None:
    """Restore the properties from their backup if an engine died while changing them."""
    path, text = read_text(storage)
    if path == BACKUP:
        content = text.encode("latin-1")
        if storage.entry(PATH):
            storage.put(PATH, content)
        else:
            with contextlib.suppress(FileExistsError):  # the engine is still running
                storage.put(PATH, content, new=True)
        storage.remove(BACKUP)


def remove(storage: Storage, keys: Set[str]) -> None:
    """Remove properties, in one step; the other lines stay as they are."""
    _, text = read_text(storage)
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if not parse_properties(line).keys() & keys]
    if kept != lines:
        storage.put(PATH, "".join(kept).encode("latin-1"))


def read_text(storage: Storage) -> tuple[str, str]:
    """Return path and text of the properties: the backup's if they are damaged or missing."""
    for _ in range(2):  # another engine may change them between the two reads
        for path in (PATH, BACKUP):
            text = _text(storage, path)
            values = parse_properties(text or "")
            if text is not None and values.get("hoodie.table.checksum") == checksum(values):
                return path, text
    text = _text(storage, PATH)
    if text is None:
        raise InvalidTable(
            f"{storage.root} is not a Hudi table (it has no {PATH}): create one with Table.create, "
            "or check the path"
        )
    return PATH, text


def _text(storage: Storage, path: str) -> str | None:
    try:
        return read_bytes(storage, path).decode("latin-1")  # Java's encoding of such files
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
