"""The checksum of a base file's footer: written, and verified when the file is opened.

Pages carry checksums; the footer does not, and one flipped bit there renames a column (it reads as
nulls), changes a type, or hides the keys from the index. So in files of this library the twelve
bytes before the footer are `HNBFOOT1` and the CRC-32 of all following bytes, little-endian. Readers
find pages by their offsets and ignore these bytes. A file without them comes from another
engine: its footer is not checked.

*Source:* the file layout of the Parquet format; PARQUET-1539 for the checksums of pages.
"""

import os
import zlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from hoodie_nb.types.schema import RECORD_KEY

NAME = "hoodie_nb_file_name"
_MAGIC = b"HNBFOOT1"
_END = b"PAR1"
_SEAL = len(_MAGIC) + 4
_TAIL = 4 + len(_END)  # the footer's length, and the mark that ends the file


def sealed(end: bytes) -> bytes:
    """Return a file's end, from its footer or earlier on, with the checksum before the footer."""
    begin = len(end) - _TAIL - int.from_bytes(end[-_TAIL:-4], "little")
    return end[:begin] + _seal(end[begin:]) + end[begin:]


def _seal(footer: bytes) -> bytes:
    return _MAGIC + zlib.crc32(footer).to_bytes(4, "little")


def open_verified(path: str, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a base file; ArrowInvalid if its footer is damaged or names another file.

    The columns `dictionaries` are read as dictionary arrays if Arrow can do that.
    """
    ours, footer = _verified(path)
    metadata = pq.read_metadata(pa.BufferReader(_END + footer)) if footer else None
    file = pq.ParquetFile(
        path,
        memory_map=False,
        pre_buffer=False,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",  # as nanoseconds, times before 1677 would be others
        metadata=metadata,
        read_dictionary=[*_decodable(metadata, dictionaries)] if metadata else None,
    )
    for entry in (file.metadata.metadata or {}).items():
        b"=".join(entry).decode()
    if RECORD_KEY not in file.schema_arrow.names:
        raise pa.ArrowInvalid(f"it has no column {RECORD_KEY}")
    name = os.path.basename(path)
    if ours and name.endswith(".parquet"):
        written = (file.metadata.metadata or {}).get(NAME.encode(), b"").decode()
        if written != name:
            raise pa.ArrowInvalid(f"it has the content of {written}")
    return file


def _decodable(metadata: pq.FileMetaData, names: Sequence[str]) -> Iterator[str]:
    """Yield those of the columns that are there and in no encoding without a dictionary in Arrow.

    Other engines' files may lack a column, or have delta encodings.
    """
    columns = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for name in names:
        at = columns.get(name)
        if at is not None:
            used = {encoding for group in groups for encoding in group.column(at).encodings}
            if not any(encoding.startswith("DELTA") for encoding in used):
                yield name


def _verified(path: str) -> tuple[bool, bytes]:
    """Check the footer's checksum; return whether there is one, and the footer if it is whole."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _TAIL))
        length = int.from_bytes(file.read(_TAIL)[:4], "little")
        begin = size - _TAIL - length
        if begin >= _SEAL:
            file.seek(begin - _SEAL)
            seal = file.read(_SEAL)
            footer = file.read()
            if seal.startswith(_MAGIC) and seal != _seal(footer):
                raise pa.ArrowInvalid("the checksum of its footer does not match")
            return seal.startswith(_MAGIC), footer
    return False, b""
