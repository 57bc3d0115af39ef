"""Storage on S3, Google or Azure: conditional puts, publish by copy, listing.

| method | requests |
| --- | --- |
| put(new=True), create_empty, small files | a PUT that fails if the name exists |
| larger files | an upload in parts, from a local file; the object appears with the last request |
| publish | a copy inside the store that fails if the name exists (S3: a copy in parts) |
| fetch | a GET that returns nothing if the local copy is of the same version |
| list_folder | a LIST per 1,000 names; folders are only parts of names |

A write is durable when the request returns. A request that fails is repeated. If only the response
to a PUT was lost, the repeated PUT finds its own object, by the writer's random mark in it.

*Security*: the options, with the credentials, are only in memory and in what is sent to the tasks.
They are in no file of the table, event, error or `repr`; texts of the client are not passed on.

**Caveats**: a store needs conditional requests, and a rule that deletes interrupted uploads, which
have no name but take up space. Tried on S3 only.
"""

import errno
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import obstore
from obstore import exceptions as of

from hoodie_nb.errors import ConcurrentWriter, HoodieError, InvalidTable
from hoodie_nb.storage.fences import check_fence, doubt
from hoodie_nb.storage.local_copies import local_copies
from hoodie_nb.storage.object_file import ObjectFile
from hoodie_nb.storage.object_requests import (
    Version,
    all_below,
    client_of,
    delete,
    digest_of,
    download,
    entry_of,
    first_below,
    is_answer,
    object_root,
    repeated,
    server_of,
    versioned,
)
from hoodie_nb.storage.storage import META, OURS, PROPERTIES, Entry

_TRIES = 4
_RECORDS = f"{OURS}/prepared/"  # whose names are used once
_CHANGES = 10
_PART_BYTES = 8 << 20
_MARK = "hoodienbwriter"
_DOUBT_S = 1.0


class ObjectStorage:
    """A table's folder on an object store; `options` are those of the store's client."""

    def __init__(
        self, root: str, options: Mapping[str, str] | None = None, *, lease_s: float = 60.0
    ) -> None:
        self.root = object_root(root)
        self.lease_s = lease_s
        self._options = {**(options or {})}
        self._server = server_of(self.root, self._options)
        self._store = client_of(self.root, self._options)  # it repeats requests, too
        self._timely = client_of(self.root, self._options, self.lease_s / 6)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.root, self._options, self.lease_s)

    def __repr__(self) -> str:
        return f"ObjectStorage({self.root!r})"

    def _key(self, path: str) -> str:
        parts = path.split("/") if path else []
        if path.startswith("/") or {"", ".", ".."} & {*parts} or "\0" in path:
            raise InvalidTable(f"path {path!r} points outside the table at {self.root}: refused")
        return path

    def _ask(
        self,
        call: Callable[..., Any],
        path: str,
        *args: object,
        store: object = None,
        **options: object,
    ) -> Any:  # noqa: ANN401
        """Send a request; repeat it if the store or the network failed. StoreFailed in the end."""
        send = partial(call, store or self._store, path, *args, **options)
        return repeated(send, f"{self.root}/{path}", _TRIES, self._server)

    def _change(
        self,
        call: Callable[..., Any],
        path: str,
        *args: object,
        new: bool = False,
        timely: bool = True,
        **options: object,
    ) -> Any:  # noqa: ANN401
        """Like `_ask`, and check the fence before every attempt.

        Each attempt ends within the lease that was checked, unless `timely` is false.
        """
        store = self._timely if timely else self._store

        def attempt() -> Any:  # noqa: ANN401
            check_fence(self.root, new=new)
            began = time.monotonic()
            try:
                return call(store, path, *args, **options)
            except BaseException as error:
                if time.monotonic() - began > _DOUBT_S and not is_answer(error):
                    doubt(self.root)
                raise

        where = f"{self.root}/{path}"
        return repeated(attempt, where, _CHANGES if timely else _TRIES, self._server)

    # --- reading --------------------------------------------------------------------------------

    def list_folder(self, folder: str) -> list[Entry]:
        """Return the entries of `folder` in order, [] if there are none."""
        found = self._ask(obstore.list_with_delimiter, self._key(folder))
        files = [entry_of(meta) for meta in found["objects"] if meta["path"] != folder]
        names = {entry.name for entry in files}
        folders = [PurePosixPath(path).name for path in found["common_prefixes"]]
        files += [Entry(name, True) for name in folders if name not in names]
        return sorted(files, key=lambda entry: entry.name)

    def file_names(self, folder: str) -> list[str]:
        """Return the names of the files in `folder`, in order, [] if there are none."""
        return [entry.name for entry in self.list_folder(folder) if not entry.is_folder]

    def entry(self, path: str) -> Entry | None:
        """Return a file or folder; None if it does not exist."""
        if path:
            with suppress(FileNotFoundError):
                return entry_of(self._ask(obstore.head, self._key(path)))
        below = self._ask(first_below, self._key(path))
        return Entry(PurePosixPath(path).name, True) if below else None

    def outer_table(self) -> str | None:
        """Return the address of a table in which this one is; what may not be read is none."""
        outer = self.root.rpartition("/")[0]
        while outer.count("/") > 2:  # the bucket itself is no table
            head = partial(obstore.head, client_of(outer, self._options), PROPERTIES)
            with suppress(FileNotFoundError, InvalidTable):
                repeated(head, outer, _TRIES, self._server)
                return outer
            outer = outer.rpartition("/")[0]
        return None

    def fetch(self, path: str, size_bytes: int = 0) -> str:
        """Return the path of a local copy of the object as it is now.

        If there is no such object, the path of a file that does not exist.
        """
        copies = local_copies()
        key = self._key(path)
        known = copies.known(self.root, key)
        options = {"if_none_match": known.version} if known else {}
        local = copies.place(key)
        try:
            version = self._ask(download, key, local, options)
        except of.NotModifiedError:
            copies.discard(local)
            return cast(Any, known).path  # type: ignore[no-any-return]
        except BaseException as error:
            copies.discard(local)
            if not isinstance(error, FileNotFoundError):
                raise
            copies.forget(self.root, key)
            return copies.missing(key)
        return copies.add(self.root, key, version, local)

    def local_folder(self, path: str) -> str:
        """Return a local folder for temporary files; it is deleted when this process ends."""
        return str(Path(local_copies().place(f"{self._key(path)}/x")).parent)

    # --- changing -------------------------------------------------------------------------------

    def put(self, path: str, content: bytes, *, new: bool = False, durable: bool = True) -> None:
        """Create or replace an object; FileExistsError if it must be `new` and exists.

        Raises ConcurrentWriter if the lease was over before the answer: a new object may exist,
        but no record of a prepared checkpoint, which others would take for durable. (A sealed one,
        whose name others may use again, they know themselves.)
        """
        key = self._key(path)
        try:
            if new:
                self._create(key, content, partial(self._change, new=True))
                try:
                    check_fence(self.root, new=True)  # it was ours when the store received it
                except ConcurrentWriter:
                    with suppress(HoodieError):
                        if path.startswith(_RECORDS):
                            self.mark(path, None)
                    raise
            else:
                self._put_over(key, content)
        except FileNotFoundError:
            raise InvalidTable(
                f"{self.root}/{path} cannot be written, because there is no such bucket: create "
                "it, or check the address"
            ) from None

    def _put_over(self, key: str, content: bytes) -> None:
        """Create or replace an object.

        If it is no longer the version that was read last, only after the store was asked for the
        lease: its writer may have slept, and another process has gone on from that version.
        """
        send = partial(self._change, obstore.put, key, content, use_multipart=False)
        known = local_copies().known(self.root, key)
        try:
            send(mode={"e_tag": known.version} if known else "overwrite")
        except (FileExistsError, of.PreconditionError):  # or the answer to an attempt was lost
            send(new=True)

    def _create(self, key: str, content: bytes, send: Callable[..., Any]) -> str:
        """Create an object and return its version; FileExistsError if another one exists."""
        mark = {_MARK: uuid.uuid4().hex}
        for _ in range(_TRIES):
            try:
                made = send(obstore.put, key, content, mode="create", attributes=mark)
            except FileExistsError:  # ours, if the answer to an earlier attempt was lost
                try:
                    there = self._ask(obstore.get, key, options={"head": True})
                except FileNotFoundError:  # the store refused one of two at the same time
                    continue
                if there.attributes.get(_MARK) != mark[_MARK]:
                    raise
                made = there.meta
            return str(made["e_tag"])
        raise OSError(errno.EIO, "the store reports a conflict but no object", f"{self.root}/{key}")

    def open_new(self, path: str) -> BinaryIO:
        """Open a local file that becomes the object when it is closed without an error.

        Closing it raises FileExistsError if the object exists.
        """
        key = self._key(path)
        check_fence(self.root)
        return cast(BinaryIO, ObjectFile(local_copies().place(key), lambda f: self._send(key, f)))

    def _send(self, key: str, local: str) -> None:
        if Path(local).stat().st_size <= _PART_BYTES:
            version = self._create(key, Path(local).read_bytes(), self._change)
        else:  # its name has a random part, so no other writer has the same
            check_fence(self.root)
            with suppress(FileNotFoundError):
                self._ask(obstore.head, key)
                raise FileExistsError(errno.EEXIST, "the object exists", f"{self.root}/{key}")
            options: dict[str, Any] = {"use_multipart": True, "max_concurrency": 4}
            options |= {"timely": False, "chunk_size": _PART_BYTES}
            version = self._change(obstore.put, key, Path(local), **options)["e_tag"]
        local_copies().add(self.root, key, str(version), local)

    def publish(self, staged: str, target: str) -> None:
        """Publish a staged file as `target`; an equal file there is fine, another is an error."""
        source = self._key(staged)
        key = self._key(target)
        try:
            self._change(obstore.copy, source, key, overwrite=False, new=True)  # three requests
        except FileExistsError:
            if not self._same(source, key):
                raise

    def _same(self, one: str, other: str) -> bool:
        """Whether two objects have the same content."""
        sizes = {self._ask(obstore.head, key)["size"] for key in (one, other)}
        if len(sizes) > 1:
            return False
        first, second = (self._ask(digest_of, key) for key in (one, other))
        return bool(first == second)

    def make_folder(self, path: str) -> None:
        """Do nothing: a folder exists while an object is in it."""
        self._key(path)
        check_fence(self.root)

    def sync_folder(self, path: str) -> None:
        """Do nothing: an object is durable when it is visible."""

    def remove(self, path: str, *, tree: bool = False) -> bool:
        """Delete an object; False if it did not exist. With `tree`, all objects of a folder."""
        key = self._key(path)
        if tree and not path.startswith(f"{META}/"):
            raise InvalidTable(f"{path!r} is not below {META}: not deleted")
        check_fence(self.root)
        if tree:
            keys = self._ask(all_below, key)
            for start in range(0, len(keys), 1000):
                self._change(delete, "", keys[start : start + 1000])
            if keys:
                return True
        try:
            self._ask(obstore.head, key)
        except FileNotFoundError:
            return False
        self._change(delete, "", [key])
        local_copies().forget(self.root, key)
        return True

    # --- for the lock ---------------------------------------------------------------------------

    def read_version(self, path: str) -> Version | None:
        """Return an object and its version; None if it does not exist."""
        try:
            return cast(Version, self._ask(versioned, self._key(path)))
        except FileNotFoundError:
            return None

    def mark(self, path: str, content: bytes | None) -> None:
        """Put an object, whoever has the lock; without content, delete it."""
        key = self._key(path)
        if content is None:
            self._ask(delete, "", [key], store=self._timely)
        else:
            self._ask(obstore.put, key, content, store=self._timely, use_multipart=False)

    def replace(self, path: str, content: bytes, version: str | None) -> str | None:
        """Replace that version of an object (None: create it); None if another one is there.

        `content` must be unlike any other. Returns the new version.
        """
        key = self._key(path)
        send = partial(self._ask, store=self._timely)
        if version is None:
            try:
                return self._create(key, content, send)
            except FileExistsError:
                return None
        for _ in range(_TRIES):
            try:
                return str(send(obstore.put, key, content, mode={"e_tag": version})["e_tag"])
            except (FileExistsError, of.PreconditionError):
                there = self.read_version(path)  # ours, if the answer to an attempt was lost
                if there is not None and there.content == content:
                    return there.version
                if there is None or there.version != version:
                    return None  # else the store refused one of two at the same time: once more
        return None


def _restored(root: str, options: Mapping[str, str], lease_s: float) -> ObjectStorage:
    return ObjectStorage(root, options, lease_s=lease_s)
