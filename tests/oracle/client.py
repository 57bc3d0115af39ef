"""How a test talks to the judge, and the Hudi options that it uses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_PATIENCE_SECONDS = 180
_WRITE = "hoodie.datasource.write."
OPERATION = f"{_WRITE}operation"
KEEP = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
NO_METADATA = KEEP | {"hoodie.metadata.enable": "false"}
BLOOM = NO_METADATA | {"hoodie.index.type": "BLOOM"}
BROKEN = {  # a validator that always fails: Java stops after the data files, before the commit
    "hoodie.precommit.validators": (
        "org.apache.hudi.client.validator.SqlQuerySingleResultPreCommitValidator"
    ),
    "hoodie.precommit.validators.single.value.sql.queries": "select count(*) from <TABLE_NAME>#-1",
}
# Java needs it for old dates and times in files of its own upserts, which have no Spark version
AS_STORED = {"spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED"}
TIDY = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.cleaner.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}


class JavaError(Exception):
    """Java refused a request."""


class Judge:
    """Java Hudi in a separate process; one request at a time."""

    def __init__(self, home: Mapping[str, str], scratch: Path) -> None:
        self._scratch = scratch
        self.log = scratch / "judge.log"
        program = [home["python"], str(Path(__file__).with_name("judge.py"))]
        environment = os.environ | {"JAVA_HOME": home["java_home"], "TZ": "UTC"}
        for name in ("SPARK_HOME", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS"):
            environment.pop(name, None)  # they may name another Spark
        self._process = subprocess.Popen(
            [*program, home["jar"], str(self.log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # so that its JVM can be ended with it
        )
        self._answer()

    def read(self, path: str | os.PathLike[str], **options: str) -> pa.Table:
        """Return the rows that Java reads with these options, or `spark.*` settings."""
        into = self._scratch / uuid.uuid4().hex
        self._ask({"do": "read", "path": str(path), "options": options, "into": str(into)})
        return pq.read_table(into)

    def write(
        self,
        path: str | os.PathLike[str],
        rows: pa.Table,
        options: Mapping[str, str],
        mode: str = "append",
    ) -> None:
        """Let Java write `rows` to the table at `path`, named as its folder; raises JavaError."""
        file = self._scratch / f"{uuid.uuid4().hex}.parquet"
        pq.write_table(rows, file, coerce_timestamps="us")
        request = {"do": "write", "path": str(path), "rows": str(file), "mode": mode}
        self._ask(request | {"options": {"hoodie.table.name": Path(path).name, **options}})

    def rollback(
        self, path: str | os.PathLike[str], instant: str, options: Mapping[str, str]
    ) -> None:
        """Let Java roll back a commit, completed or not; raises JavaError."""
        request = {"do": "rollback", "path": str(path), "instant": instant}
        assert self._ask(request | {"options": {"hoodie.table.name": Path(path).name, **options}})

    def sql(self, text: str) -> list[list[str]]:
        """Run a statement of Spark SQL, such as a procedure of Hudi's; raises JavaError."""
        found: list[list[str]] = self._ask({"do": "sql", "text": text})
        return found

    def close(self) -> None:
        """End the process and its JVM."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, request: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        watch = threading.Timer(_PATIENCE_SECONDS, self._kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            raise JavaError(f"the judge died; its log ends: {self.log.read_text()[-2000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"])
        return answer["ok"]

    def _kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
