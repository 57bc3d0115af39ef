"""Which storage an address means: a local path, `s3://`, `gs://`, `az://`."""

import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TypeAlias

from hoodie_nb.errors import InvalidConfig
from hoodie_nb.extras import install_extra
from hoodie_nb.storage.local_storage import LocalStorage, local_root
from hoodie_nb.storage.storage import Storage, check_scheme, is_remote

Address: TypeAlias = str | os.PathLike[str] | Storage


def storage_at(address: Address, options: Mapping[str, str] | None = None) -> Storage:
    """Return the storage of a table; `options` are those of an object store's client.

    Raises InvalidConfig for an unknown kind of address, or options that do not belong to it.
    """
    if not isinstance(address, str | os.PathLike):
        return address
    text = os.fspath(address)
    if not is_remote(text) or text.startswith("file:"):
        if options:
            raise InvalidConfig(f"storage_options are for object stores, and {text!r} is a path")
        return LocalStorage(address)
    check_scheme(text.partition("://")[0])
    try:
        from hoodie_nb.storage.object_storage import ObjectStorage
    except ImportError:
        raise InvalidConfig(
            f"{text.partition('://')[0]}://: object stores need a package: {install_extra('s3')}"
        ) from None
    return ObjectStorage(text, options)


def folder_name(address: str | os.PathLike[str]) -> str:
    """Return the name of the table's folder."""
    text = os.fspath(address)
    remote = is_remote(text) and not text.startswith("file:")
    return PurePosixPath(text if remote else local_root(address)).name
