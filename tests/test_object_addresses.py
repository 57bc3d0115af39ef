"""Addresses of a store: in the records of a table, in errors, and of stores that do not answer."""

from __future__ import annotations

import obstore
import pyarrow as pa
import pytest
from s3_server import SECRET, S3Server, free_port, options_of

import hoodie_nb as hn
from hoodie_nb.storage.object_requests import client_of, repeated, server_of
from hoodie_nb.storage.storage import java_path, read_bytes
from hoodie_nb.types.avro_file import decode

SCHEMA = pa.schema({"id": pa.string(), "v": pa.int64()})


def test_plans_name_files_as_java_does(s3_server: S3Server) -> None:
    """Plans of cleans and rollbacks have the full address of each file, on the store."""
    keys = {"record_key": "id", "storage_options": s3_server.options}
    keys["options"] = {"hoodie.clean.commits.retained": 1}
    table = hn.Table.create(s3_server.new_root(), schema=SCHEMA, **keys)
    for v in range(4):
        table.upsert([{"id": "a", "v": v}])
    table.rollback()
    storage, cleaned, undone = table._handle.storage, list[str](), list[str]()
    for name in storage.file_names(".hoodie"):
        if name.endswith((".clean.requested", ".rollback.requested")):
            plan = decode(read_bytes(storage, f".hoodie/{name}"))
            folders = (plan.get("filePathsToBeDeletedPerPartition") or {}).values()
            cleaned += [file["filePath"] for files in folders for file in files]
            for request in plan.get("RollbackRequests") or []:
                undone += request["filesToBeDeleted"]
    assert len(cleaned) >= 2 and len(undone) == 1
    for path in (*cleaned, *undone):
        assert path.startswith(f"{table.path}/") and path.endswith(".parquet")
    assert table.fsck() == []


def test_a_local_file_is_named_with_its_scheme() -> None:
    """Java's records have `file:` before a local path, and a store's address as it is."""
    assert java_path("/t", "p/f.parquet") == "file:/t/p/f.parquet"
    assert java_path("s3://b/t", "p/f.parquet") == "s3://b/t/p/f.parquet"


def test_a_store_that_does_not_answer_is_named_without_secrets() -> None:
    """A wrong endpoint is an error of this library that names host, port and remedy, no more."""
    port, root = free_port(), "s3://tables/t"
    options = options_of(f"http://user:{SECRET}@127.0.0.1:{port}/?sig={SECRET}")
    assert server_of(root, options) == f"127.0.0.1:{port}"
    store = client_of(root, options_of(f"http://127.0.0.1:{port}"), limit_s=5)
    with pytest.raises(hn.StoreFailed, match="check the endpoint") as caught:
        repeated(lambda: obstore.head(store, "x"), f"{root}/x", 1, server_of(root, options))
    assert f"127.0.0.1:{port} has failed" in str(caught.value) and SECRET not in str(caught.value)
    assert isinstance(caught.value, hn.HoodieError) and isinstance(caught.value, OSError)


def test_a_table_at_a_wrong_endpoint_is_one_error() -> None:
    """Opening a table says so, with the reason, after some seconds of trying."""
    options = options_of(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(hn.StoreFailed, match="connection error"):
        hn.Table.open("s3://tables/t", storage_options=options)
