"""The exceptions, named by what the caller can do about them.

    HoodieError
    ├── InvalidConfig      fix the options (or install what is missing)
    ├── InvalidInput       fix or filter the rows
    ├── InvalidTable       fix the table by hand; `fsck` says how
    ├── WriteFailed        rolled back: nothing was applied, write the data again
    ├── CommitFailed       `retryable` says whether the commit may be retried
    ├── StoreFailed        an object store does not answer; check its endpoint, try again
    └── ConcurrentWriter   another writer holds the table; wait for it or stop it

Every message says what is wrong, where (column, rows, instant, file) and what to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


class HoodieError(Exception):
    """Base class of all exceptions that this library raises on purpose."""


class InvalidConfig(HoodieError):
    """An option, a name or the environment is wrong; nothing was written."""


class InvalidInput(HoodieError):
    """Rows or columns cannot be stored; none of the batch was written.

    `refusal` says which rows, if they were found one by one (see `definition.keys`).
    """

    refusal: object = None


class InvalidTable(HoodieError):
    """The path is not a table that this library can write or read."""


class WriteFailed(HoodieError):
    """The write was rolled back; the table is unchanged and the data can be written again."""


class CommitFailed(HoodieError):
    """The commit failed; `retryable` says whether a retry can help."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class StoreFailed(HoodieError, OSError):
    """An object store did not answer, or could not serve a request, although it was repeated."""


class ConcurrentWriter(HoodieError):
    """Another writer is using the table; only one may write at a time."""


@contextmanager
def readable(what: str, cure: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise InvalidTable for what a damaged record makes a parser raise, and for errors of `kinds`.

    It says that `what`, a file or a part of one, cannot be read, why, and the cure.
    """
    caught: tuple[type[Exception], ...] = (*_DAMAGED, *kinds)
    try:
        yield
    except caught as error:
        why = str(error) if isinstance(error, ValueError) else repr(error)
        raise InvalidTable(f"{what} cannot be read ({why:.200}): {cure}") from None
