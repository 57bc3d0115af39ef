"""What went wrong, named by what the caller may do about it.

    HoodieError
    ├── InvalidConfig      fix the options (or install what is missing)
    ├── InvalidInput       fix the rows, or quarantine them
    ├── InvalidTable       the table needs a person; `fsck` says what
    ├── WriteFailed        rolled back: nothing was applied, write the data again
    ├── CommitFailed       `retryable` tells whether the same commit may be tried again
    └── ConcurrentWriter   another writer holds the table; wait for it or stop it

Every message says what, which (column, rows, instant, file) and what to do.
"""


class HoodieError(Exception):
    """Root of everything this library raises on purpose."""


class InvalidConfig(HoodieError):
    """An option, a name or the environment is wrong; nothing was written."""


class InvalidInput(HoodieError):
    """Rows or columns cannot be stored; nothing of the batch was written."""


class InvalidTable(HoodieError):
    """What lies at the path is no table this library may write or read."""


class WriteFailed(HoodieError):
    """The write was rolled back; the table is as before and the data may come again."""


class CommitFailed(HoodieError):
    """The commit did not go through; `retryable` says whether trying again can help."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ConcurrentWriter(HoodieError):
    """Another writer works on the table; one writer at a time."""
