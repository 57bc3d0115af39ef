"""Files that this user may not read, and partitions on other file systems."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tables import schema_of, without_meta

from hoodie_nb import Table

SCHEMA = schema_of()
FILES = {
    "commit": ".hoodie/*.commit",
    "properties": ".hoodie/hoodie.properties",
    "rules": ".hoodie/.hoodie_nb/rules.json",
    "lock": ".hoodie/.hoodie_nb/lock",
    "base file": "x/*.parquet",
}
USES = """
import os, sys
import pyarrow as pa
import hoodie_nb.api.tables, hoodie_nb.checks.fsck
from hoodie_nb.errors import InvalidTable

rows = pa.table({"id": ["b"], "p": ["x"], "ts": pa.array([1]), "v": pa.array([1])})
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for path in sys.argv[1:]:
    try:
        found = [f"{f.what} {f.fix}" for f in hoodie_nb.checks.fsck.fsck(path)]
    except InvalidTable as error:
        found = [str(error)]
    try:
        hoodie_nb.api.tables.Table.open(path).upsert(rows)
    except InvalidTable as error:
        found.append(str(error))
    print("; ".join(found))
"""
MOUNTED = """
import shutil, subprocess, sys
import pyarrow as pa
from hoodie_nb import Table

path = sys.argv[1]
shutil.copytree(path + "/x", path + "/copy")
if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path + "/x"]).returncode:
    sys.exit(77)
shutil.copytree(path + "/copy", path + "/x", dirs_exist_ok=True)
shutil.rmtree(path + "/copy")
table = Table.open(path)
rows = pa.table({"id": ["b"], "p": ["x"], "ts": pa.array([1]), "v": pa.array([1])})
table.upsert(rows)
left = [name for name in __import__("os").listdir(path + "/x") if name.endswith(".tmp")]
print(table.fsck(), sorted(row["id"] for row in table.to_arrow().to_pylist()), left)
"""


def made(path: Path) -> Table:
    """Return a table of one row."""
    table = Table.create(path, schema=SCHEMA, record_key="id", partition_by="p", ordering="ts")
    table.upsert(pa.Table.from_pylist([{"id": "a", "p": "x", "ts": 1, "v": 1}], SCHEMA))
    return table


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    """Each file of a table that this user may not read is named by fsck or by a write."""
    for kind, pattern in FILES.items():
        table = made(tmp_path / kind)
        (file,) = Path(table.path).glob(pattern)
        file.chmod(0)
        if os.getuid() == 0:
            for path in (tmp_path / kind).rglob("*"):
                shutil.chown(path, 65534, 65534)
    for folder in (tmp_path, tmp_path.parent):
        folder.chmod(0o711)
    paths = [str(tmp_path / kind) for kind in FILES]
    run = [sys.executable, "-c", USES, *paths]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
    for line, pattern in zip(said, FILES.values(), strict=True):
        name = Path(pattern).name.strip("*")
        assert name in line and "let this user read it" in line, line
        assert "delete" not in line


def test_a_partition_on_another_file_system_is_written(tmp_path: Path) -> None:
    """Neither links nor renames lead there: files get their names from a copy beside them."""
    table = made(tmp_path / "t")
    run = ["unshare", "--mount", sys.executable, "-c", MOUNTED, table.path]
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing")
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this user may not mount")
    assert done.stdout == "[] ['a', 'b'] []\n", done.stderr


def test_a_checksum_file_of_java_does_not_outlive_its_file(tmp_path: Path) -> None:
    """Java refuses a file whose `.crc` is of another content: it goes when a file is put."""
    table = made(tmp_path / "t")
    root = Path(table.path)
    metadata, properties = root / "x/.hoodie_partition_metadata", root / ".hoodie/hoodie.properties"
    for file in (metadata, properties):
        file.with_name(f".{file.name}.crc").write_bytes(b"crc\0")
    metadata.unlink()
    shutil.copy(properties, f"{properties}.backup")
    properties.write_text("# torn\n")
    before = without_meta(table.to_arrow())
    Table.open(table.path).upsert(table.to_arrow(meta=False))
    assert [str(path) for path in root.rglob("*.crc")] == []
    assert metadata.exists() and "torn" not in properties.read_text()
    assert without_meta(Table.open(table.path).to_arrow()) == before
