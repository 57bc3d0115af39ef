"""Local folders below a table's root without symbolic links; renames that never replace.

A table of unknown origin may contain links: if `.hoodie/.temp` points to a home folder, a cleanup
would delete files there. So each folder is opened from its parent, starting at the root, and a link
on the way is refused (only the root itself may be a link). All later operations use the open
folder, so no link can be inserted in between.

**Caveats**: if the kernel or the file system has no `renameat2(RENAME_NOREPLACE)`, a rename first
checks whether the name exists. Another engine could create it in between; writers of this library
cannot, since they hold the table's lock.
"""

import ctypes
import errno
import filecmp
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import BinaryIO

from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage.storage import Entry

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_REPLACE = 1
Place = tuple[int, str]  # an open folder and a name in it


@contextmanager
def folder_beneath(
    root: str, parts: Sequence[str], *, make: bool = False, below: int = 0
) -> Iterator[int]:
    """Open a folder of the table without following links; InvalidTable if there is a link.

    Yields its descriptor; `make` creates missing folders, but not the root and the first `below`
    parts.
    """
    if make and not below:
        os.makedirs(root, exist_ok=True)
    folder = os.open(root, _FOLDER)
    try:
        for depth, part in enumerate(parts):
            try:
                inner = _opened(folder, part, make and depth >= below)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR) and is_link((folder, part)):
                    raise link_refused(root, "/".join(parts[: depth + 1])) from None
                raise OSError(error.errno, error.strerror, os.path.join(root, *parts)) from None
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _opened(folder: int, name: str, make: bool) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # created in the meantime, or a dangling link
        os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def is_link(place: Place) -> bool:
    """Whether a name in an open folder is a symbolic link."""
    folder, name = place
    return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def link_refused(root: str, path: str) -> InvalidTable:
    """Return the error for a link inside the table."""
    return InvalidTable(
        f"{path!r} is a link and may point outside the table at {root}, where nothing may be "
        "listed, written or deleted: delete the link, or replace it by the folder or file itself"
    )


def rename_new(source: Place, target: Place) -> None:
    """Rename a file within its file system; FileExistsError if the new name is taken."""
    old_folder, old = source
    new_folder, new = target
    rename = getattr(_LIBC, "renameat2", None)
    if rename is not None:
        names = (old_folder, os.fsencode(old), new_folder, os.fsencode(new))
        if rename(*names, _NO_REPLACE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):  # these two mean: not supported
            raise OSError(number, os.strerror(number), old, None, new)
    try:
        os.stat(new, dir_fd=new_folder, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(old, new, src_dir_fd=old_folder, dst_dir_fd=new_folder)
    else:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)


def entries_of(found: "Iterable[os.DirEntry[str]]") -> Iterator[Entry]:
    """Yield the directory entries, without those that have been deleted in the meantime."""
    for each in found:
        with suppress(FileNotFoundError):
            yield _entry(each.name, each.stat(follow_symlinks=False), each.stat)


def names_of(found: "Iterable[os.DirEntry[str]]") -> list[str]:
    """Return the names of all entries except folders, without examining any file."""
    return [each.name for each in found if not each.is_dir(follow_symlinks=False)]


def entry_at(path: str) -> Entry | None:
    """Return the file or folder at a path; None if it does not exist."""
    try:
        return _entry(os.path.basename(path), os.lstat(path), partial(os.stat, path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _entry(name: str, own: os.stat_result, target: Callable[[], os.stat_result]) -> Entry:
    is_link = stat.S_ISLNK(own.st_mode)
    status = own
    if is_link:
        with suppress(OSError):  # a dangling or circular link
            status = target()
    changed = status.st_mtime_ns // 1_000_000
    return Entry(name, stat.S_ISDIR(own.st_mode), status.st_size, changed, is_link)


def create_new(folder: int, name: str, path: str) -> BinaryIO:
    """Open a new file in an open folder; `path` is its name in errors (FileExistsError)."""

    def opener(_: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=folder)

    return open(path, "xb", opener=opener)


def same_content(first: str, second: str) -> bool:
    """Whether two files have the same bytes."""
    filecmp.clear_cache()  # a file may be damaged without a change of its time
    return filecmp.cmp(first, second, shallow=False)
