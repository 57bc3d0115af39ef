"""Client of an object store: `storage_options`, pauses between retries, errors without secrets."""

import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import obstore
from obstore import exceptions as of
from obstore.store import from_url

from hoodie_nb.errors import InvalidConfig, InvalidTable, StoreFailed
from hoodie_nb.storage.storage import Entry, check_scheme

_CLIENT = {  # names of the HTTP client's options, as in other libraries of this kind
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "timeout", "proxy_url"),
    *("read_timeout", "root_certificate", "pool_idle_timeout", "default_headers"),
}
_RETRIES = 6
_PAUSE_S = 0.1
_LONGEST_S = 3.0


_used = False
_forked = False


def use_client() -> None:
    """Raise InvalidConfig in a forked child of a process that has used a store.

    The threads of the client are not in the child: its requests would wait forever.
    """
    global _used
    if _forked:
        raise InvalidConfig(
            "this process was forked from one that has used an object store, and cannot use one: "
            "start it with multiprocessing.get_context('spawn')"
        )
    _used = True


def _after_fork() -> None:
    global _forked
    _forked = _used


os.register_at_fork(after_in_child=_after_fork)


class Version(NamedTuple):
    """An object's content, version and modification time by the store's clock."""

    content: bytes
    version: str
    modified: datetime


def object_root(address: str) -> str:
    """Return the address of a table without a slash at its end; InvalidConfig if it has no key."""
    scheme, _, rest = address.partition("://")
    odd = next((c for c in address if c in "#?%\\" or not c.isprintable()), None)
    if odd is not None:  # the client would read another address, and what follows ? may be secret
        raise InvalidConfig(
            f"the address {address.partition(odd)[0]!r}… has the character {odd!r}: a table's "
            "address has no # ? % \\ or control characters; credentials belong in storage_options"
        )
    parts = PurePosixPath(rest).parts
    check_scheme(scheme)
    if len(parts) < 2 or {"", ".", ".."} & {*rest.rstrip("/").split("/")} or "@" in parts[0]:
        raise InvalidConfig(
            f"{scheme}:// needs a bucket and a path, as in {scheme}://bucket/warehouse/board; "
            "credentials belong in storage_options"
        )
    return f"{scheme}://{'/'.join(parts)}"


def client_of(root: str, options: Mapping[str, str], limit_s: float | None = None) -> Any:  # noqa: ANN401
    """Return the client of the store; InvalidConfig names an option, never its value.

    With `limit_s`, a request has failed after so long, and the client does not repeat it.
    """
    config = {}
    client = dict[str, Any]()
    for name, value in options.items():
        plain = re.sub("^(aws|google|azure)_", "", name)
        if plain in _CLIENT:
            client[plain] = str(value).lower() == "true" if plain.startswith("allow") else value
        else:
            config[name] = value
    if root.startswith("s3") and not {"aws_copy_if_not_exists", "copy_if_not_exists"} & {*config}:
        config["aws_copy_if_not_exists"] = "multipart"
    retries = _RETRIES
    if limit_s is not None:
        client["timeout"] = timedelta(seconds=limit_s)
        retries = 0
    retry = {"max_retries": retries}
    try:
        make: Any = from_url
        return make(root, config=config, client_options=client, retry_config=retry)
    except Exception as error:
        named = re.search(r"Configuration key: '(\w+)'", str(error))
        which = f"the option {named[1]!r}" if named else f"one of {sorted(options)}"
        raise InvalidConfig(f"storage_options: {which} is not one of {root}") from None


def server_of(root: str, options: Mapping[str, str]) -> str:
    """Return the store's host and port for errors, without what else an endpoint may have."""
    names = (f"{kind}endpoint{url}" for kind in ("aws_", "azure_", "") for url in ("", "_url"))
    given = {**{name.lower(): value for name, value in os.environ.items()}, **options}
    found = next((given[name] for name in names if given.get(name)), "")
    return urlsplit(found).netloc.rpartition("@")[2] or f"of {root.partition('://')[0]}://"


def reason_of(error: Exception) -> str:
    """Return what a failed request met, in our words: the client's text may have a signature."""
    text = str(error).replace("retry_timeout", "")  # the client names it in every error
    text = text.replace("(code: AccessDenied)", "status code: 403")  # of a list of deletions
    status = re.search(r"status code: (\d{3})", text)
    if status:
        return f"status {status[1]}"
    known = ("timed out", "timeout", "connection", "dns", "certificate", "HTTP")
    found = [word for word in known if word.lower() in text.lower()]
    return f"{found[0]} error" if found else type(error).__name__


def is_answer(error: BaseException) -> bool:
    """Whether a failed request was answered, so that the store does not receive it later."""
    if isinstance(error, of.GenericError | of.JoinError):  # a gateway sends 500, 502 and 504
        return reason_of(error) in (f"status {number}" for number in (401, 403, 429, 503))
    return isinstance(error, of.BaseError | FileNotFoundError)


def repeated(attempt: Callable[[], Any], where: str, tries: int, server: str) -> Any:  # noqa: ANN401
    """Return what `attempt` returns; repeat it if the store or the network failed."""
    use_client()
    for number in range(tries):
        if number:
            time.sleep(min(_PAUSE_S * 2**number, _LONGEST_S))
        try:
            return attempt()
        except (of.PermissionDeniedError, of.UnauthenticatedError) as error:
            raise _refused(where, error) from None
        except (of.GenericError, of.JoinError) as error:
            reason = reason_of(error)
            if reason in ("status 401", "status 403"):  # of a service for credentials
                raise _refused(where, error) from None
        except of.AlreadyExistsError:
            raise FileExistsError(errno.EEXIST, "the object exists", where) from None
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such object or bucket", where) from None
    raise StoreFailed(
        f"{where}: the store {server} has failed {tries} times ({reason}): check the endpoint in "
        "storage_options or the environment, and that the store can be reached; then try again"
    )


def _refused(where: str, error: Exception) -> InvalidTable:
    key = re.search(r"DeleteObjects request failed for key (.+?): ", str(error))
    more = f" (s3:DeleteObject is missing for {key[1]})" if key else ""
    return InvalidTable(
        f"{where}: the store refuses the request: check the credentials in storage_options or the "
        f"environment, and their permissions{more}"
    )


def entry_of(meta: Mapping[str, Any]) -> Entry:
    """Return the entry of an object."""
    name = PurePosixPath(meta["path"]).name
    changed = meta["last_modified"]
    return Entry(
        name, False, meta["size"], int(changed.timestamp() * 1000), version=meta["e_tag"] or ""
    )


def first_below(store: Any, prefix: str) -> Any:  # noqa: ANN401
    """Return an object in a folder; None if there is none."""
    return next(iter(obstore.list(store, prefix or None, chunk_size=1)), None)


def all_below(store: Any, prefix: str) -> list[str]:  # noqa: ANN401
    """Return the names of all objects in a folder and its folders."""
    return [meta["path"] for some in obstore.list(store, prefix) for meta in some]


def delete(store: Any, _: str, keys: Iterable[str]) -> None:  # noqa: ANN401
    """Delete objects that may exist."""
    with suppress(FileNotFoundError):
        obstore.delete(store, [*keys])


def download(store: Any, key: str, local: str, options: Any) -> str:  # noqa: ANN401
    """Copy an object to a local file; return its version."""
    found = obstore.get(store, key, options=options)
    with open(local, "wb") as file:
        for piece in found.stream(min_chunk_size=1 << 20):
            file.write(piece)
    return str(found.meta["e_tag"])


def digest_of(store: Any, key: str) -> bytes:  # noqa: ANN401
    """Return the SHA-256 of an object's content."""
    digest = hashlib.sha256()
    for piece in obstore.get(store, key).stream():
        digest.update(piece)
    return digest.digest()


def versioned(store: Any, key: str) -> Version:  # noqa: ANN401
    """Return an object with its version."""
    found = obstore.get(store, key)
    meta = found.meta
    return Version(bytes(found.bytes()), str(meta["e_tag"]), meta["last_modified"])
