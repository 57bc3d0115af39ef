"""Log files: their names, and the order in which a slice's logs apply.

*On disk*: `<partition>/.<fileId>_<instant>.log.<version>_<writeToken>`, with `.cdc` at the end if
the file holds changes for incremental readers instead of rows.

| | version 6 | versions 8 and 9 |
| --- | --- | --- |
| instant | that of the slice's base file | that of the deltacommit that wrote the log |
| version | counts up within the slice | 1, unless a file was too large |

*Source:* FSUtils.LOG_FILE_PATTERN, HoodieLogFile.LogFileComparator.
"""

import re
from dataclasses import dataclass

CDC = ".cdc"
_NAME = re.compile(
    r"\.([^._/\ud800-\udfff]+)_(\d{14}|\d{17})\.log\.(\d+)(?:_(\d+-\d+-\d+)(\.cdc)?)?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class LogFileName:
    """The parts of a log file's name; old files have no write token.

    >>> str(LogFileName.parse(".f1_20240101000000000.log.1_0-0-0"))
    '.f1_20240101000000000.log.1_0-0-0'
    """

    file_id: str
    instant_time: str
    version: int
    write_token: str
    suffix: str = ""

    def __str__(self) -> str:
        token = f"_{self.write_token}" if self.write_token else ""
        return f".{self.file_id}_{self.instant_time}.log.{self.version}{token}{self.suffix}"

    def __lt__(self, other: "LogFileName") -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[str, int, str, str]:
        """Return what the logs of a slice are sorted by."""
        return self.instant_time, self.version, self.write_token, self.suffix

    @classmethod
    def parse(cls, name: str) -> "LogFileName | None":
        """Return the parts of `name`; None if it is not the name of a log file."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        return cls(match[1], match[2], int(match[3]), match[4] or "", match[5] or "")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file of a slice: its path in the table, and the bytes that its commit says it has.

    `size_bytes` is what the folder says, if no commit of the timeline names the file. `missing_of`
    is the commit that names a file which its folder does not have; `crc` is the CRC-32 that its
    commit says, if this library wrote it.
    """

    path: str
    name: LogFileName
    size_bytes: int
    missing_of: str = ""
    crc: int | None = None
