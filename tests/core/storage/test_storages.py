"""The storage interface, on a local disk and on an object store: the same behaviour."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import S3Server

from hoodie_nb.errors import InvalidConfig, InvalidTable
from hoodie_nb.storage.addresses import storage_at
from hoodie_nb.storage.local_copies import local_copies
from hoodie_nb.storage.local_storage import LocalStorage
from hoodie_nb.storage.object_storage import ObjectStorage
from hoodie_nb.storage.storage import META, Storage, create_empty, read_bytes


@pytest.fixture(params=["local", "object"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """An empty folder, on a disk or an object store."""
    if request.param == "local":
        folder = tmp_path / "t"
        folder.mkdir()
        yield LocalStorage(folder)
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        yield ObjectStorage(server.new_root(), server.options)


def names(storage: Storage, folder: str) -> list[tuple[str, bool]]:
    """Return the names in a folder, and whether each is a folder; without the scratch folder."""
    found = [(entry.name, entry.is_folder) for entry in storage.list_folder(folder)]
    return [each for each in found if each[0] not in (META, ".hoodie_nb")]


def test_a_new_file_never_replaces_another(storage: Storage) -> None:
    """`put(new=True)` creates a file or raises FileExistsError; without `new` it replaces."""
    storage.make_folder("a")
    storage.put("a/x", b"one", new=True)
    with pytest.raises(FileExistsError):
        storage.put("a/x", b"two", new=True)
    assert read_bytes(storage, "a/x") == b"one"
    storage.put("a/x", b"three")
    assert read_bytes(storage, "a/x") == b"three"
    storage.put("b/c/d", b"")
    assert read_bytes(storage, "b/c/d") == b""


def test_of_many_writers_of_a_new_file_one_succeeds(storage: Storage) -> None:
    """Threads that create one name at the same time: exactly one has no error."""
    storage.make_folder("a")
    won: list[tuple[int, int]] = []

    def create(number: int) -> None:
        for name in range(10):
            start.wait()
            try:
                storage.put(f"a/{name}", str(number).encode(), new=True)
            except FileExistsError:
                continue
            won.append((name, number))

    start = threading.Barrier(4)
    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for name, _ in won) == [*range(10)]
    assert all(read_bytes(storage, f"a/{name}") == str(number).encode() for name, number in won)


def test_a_folder_lists_its_files_and_folders_in_order(storage: Storage) -> None:
    """Names and sizes are right, folders are entries, and what does not exist is empty."""
    for path in ("p/b=2/f2", "p/b=2/f1", "p/a c/x", "p/z", "pq"):
        storage.put(path, path.encode())
    assert names(storage, "") == [("p", True), ("pq", False)]
    assert names(storage, "p") == [("a c", True), ("b=2", True), ("z", False)]
    assert [(e.name, e.size_bytes) for e in storage.list_folder("p/b=2")] == [("f1", 8), ("f2", 8)]
    assert storage.file_names("p") == ["z"]
    assert storage.list_folder("none") == [] == storage.file_names("none/at/all")


def test_long_folders_are_listed_whole(storage: Storage) -> None:
    """A folder with more names than a page of the store's answer is complete."""
    for number in range(1100):
        create_empty(storage, f"many/{number:05}")
    assert storage.file_names("many") == [f"{number:05}" for number in range(1100)]


def test_an_entry_is_a_file_a_folder_or_nothing(storage: Storage) -> None:
    """`entry` has the size of a file; a prefix of a name is nothing."""
    storage.put("par/file", b"12345")
    found, folder = storage.entry("par/file"), storage.entry("par")
    assert found is not None and (found.name, found.size_bytes) == ("file", 5)
    assert not found.is_folder and found.modified_ms > 1_600_000_000_000
    assert folder is not None and folder.is_folder and folder.name == "par"
    assert storage.entry("pa") is None and storage.entry("par/file2") is None
    root = storage.entry("")
    assert root is not None and root.is_folder


@pytest.mark.parametrize("size", [0, 10, (8 << 20) + 1, 20 << 20], ids=["0", "10", "8 MB", "20 MB"])
def test_an_opened_file_is_there_when_it_is_closed(storage: Storage, size: int) -> None:
    """What was written in pieces is the content; the name cannot be opened again."""
    storage.make_folder("a")
    content = bytes(range(256)) * (size // 256 + 1)
    with storage.open_new("a/big") as file:
        file.write(memoryview(content)[: size // 2])
        file.write(memoryview(content)[size // 2 : size])
    assert read_bytes(storage, "a/big") == content[:size]
    with pytest.raises(FileExistsError), storage.open_new("a/big") as file:
        file.write(content[:size])
    assert read_bytes(storage, "a/big") == content[:size]


def test_creating_an_empty_file_is_idempotent(storage: Storage) -> None:
    """`create_empty` of a file that exists keeps it."""
    storage.put("m/x", b"content")
    create_empty(storage, "m/x")
    create_empty(storage, "m/y")
    assert read_bytes(storage, "m/x") == b"content" and read_bytes(storage, "m/y") == b""


@pytest.mark.parametrize("size", [0, 100, 9 << 20])
def test_publishing_never_replaces_a_file(storage: Storage, size: int) -> None:
    """A staged file appears under its name; again it is fine; another content is refused."""
    content = b"x" * size
    storage.put("s/one", content)
    storage.put("s/equal", content)
    storage.put("s/other", content[:-1] + b"y")
    storage.make_folder("p")
    storage.publish("s/one", "p/f")
    storage.publish("s/one", "p/f")
    storage.publish("s/equal", "p/f")
    with pytest.raises(FileExistsError):
        storage.publish("s/other", "p/f")
    assert read_bytes(storage, "p/f") == content
    with pytest.raises(FileNotFoundError):
        storage.publish("s/gone", "p/g")
    assert storage.entry("p/g") is None


def test_removing_deletes_files_and_trees(storage: Storage) -> None:
    """A file is deleted once; a tree only below `.hoodie`, with all that is in it."""
    storage.put(f"{META}/a/b/c", b"1")
    storage.put(f"{META}/a/d", b"2")
    storage.put(f"{META}/ab", b"3")
    storage.put("p/f", b"4")
    assert storage.remove("p/f") and not storage.remove("p/f")
    with pytest.raises(InvalidTable, match="not below"):
        storage.remove("p", tree=True)
    assert storage.remove(f"{META}/a", tree=True)
    assert not storage.remove(f"{META}/a", tree=True)
    assert names(storage, META) == [("ab", False)]


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "a/\0"])
def test_a_path_outside_the_table_is_refused(storage: Storage, path: str) -> None:
    """Such a path is an error, whatever is to be done with it."""
    for act in (storage.fetch, storage.list_folder, storage.entry, storage.remove):
        with pytest.raises(InvalidTable, match="outside the table"):
            act(path)
    with pytest.raises(InvalidTable, match="outside the table"):
        storage.put(path, b"")


@pytest.mark.parametrize("name", ["a b", "ü", "x=%2F", "a#?&", "plus+", "tilde~", "*[1]", "'\""])
def test_names_may_have_any_character(storage: Storage, name: str) -> None:
    """A partition's folder is named by a value, and keeps that name."""
    storage.put(f"p/{name}/f", b"1")
    storage.publish(f"p/{name}/f", f"p/{name}/g")
    assert names(storage, "p") == [(name, True)]
    assert storage.file_names(f"p/{name}") == ["f", "g"]
    assert read_bytes(storage, f"p/{name}/g") == b"1"


def test_what_is_fetched_is_the_object_of_now(storage: Storage) -> None:
    """A local copy is not used if the object was replaced or deleted, by anybody."""
    other = pickle.loads(pickle.dumps(storage))
    storage.put("x", b"one")
    path = storage.fetch("x")
    assert Path(path).read_bytes() == b"one" and Path(path).name == "x"
    other.put("x", b"two")
    assert read_bytes(storage, "x") == b"two"
    other.remove("x")
    with pytest.raises(FileNotFoundError):
        read_bytes(storage, "x")


def test_an_open_file_outlives_its_object(storage: Storage) -> None:
    """A reader that has opened a file reads it to the end, although it was deleted since."""
    storage.put("x", b"one")
    with open(storage.fetch("x"), "rb") as file:
        storage.remove("x")
        assert file.read() == b"one"


def test_fetching_leaves_one_copy_of_each_object(s3_server: S3Server) -> None:
    """What is unchanged, missing or removed leaves no file and no folder among the copies."""
    storage = ObjectStorage(s3_server.new_root(), s3_server.options)
    storage.put("a/b", b"1")
    storage.fetch("a/b")
    folder = Path(local_copies().folder)
    before = sorted(folder.rglob("*"))
    for _ in range(3):
        assert storage.fetch("a/b") == storage.fetch("a/b")
        assert not Path(storage.fetch("a/c")).exists()
    assert sorted(folder.rglob("*")) == before
    storage.put("a/c", b"2")
    storage.fetch("a/c")
    storage.remove("a/c")
    assert sorted(folder.rglob("*")) == before


def test_an_abandoned_upload_leaves_nothing(s3_server: S3Server) -> None:
    """If an error ends the block, or nobody closes the file, no object and no local file remain."""
    storage = ObjectStorage(s3_server.new_root(), s3_server.options)
    with pytest.raises(KeyError), storage.open_new("a/x") as file:
        file.write(b"half")
        raise KeyError
    file = storage.open_new("a/y")
    file.write(b"half")
    names_of_both = (local_copies().folder, file.name)
    del file
    assert storage.list_folder("") == [] and not Path(names_of_both[1]).exists()


def test_a_missing_bucket_is_named() -> None:
    """An address without a bucket is refused before any request."""
    from hoodie_nb.errors import InvalidConfig

    for address in ("s3://bucket", "s3://", "s3://key:secret@bucket/x", "s3://b/../x", "ftp://b/x"):
        with pytest.raises(InvalidConfig) as caught:
            ObjectStorage(address, {})
        assert "secret" not in str(caught.value).replace("storage_options", "")


@pytest.mark.parametrize(
    "odd", ["#", "?sig=hidden", "%2e%2e/x", "\\..\\x", "\n", "\t", "\x7f", "\0"]
)
def test_an_address_that_clients_read_differently_is_refused(odd: str) -> None:
    """Such an address could be that of another table; what follows the character is not shown."""
    with pytest.raises(InvalidConfig, match="has the character") as caught:
        storage_at(f"s3://bucket/warehouse/board{odd}")
    assert "hidden" not in str(caught.value)
