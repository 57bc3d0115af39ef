"""Histories that Java judges, or in which it takes steps as well."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from core.tables import without_meta
from oracle.client import Judge
from services.history import ServiceHistory, arrow

from hoodie_nb import Table
from hoodie_nb.errors import InvalidConfig, InvalidTable

_WRITE = "hoodie.datasource.write."
_FILES_ONLY = "hoodie.metadata.enable=false"
_DUE = "hoodie.compact.inline.max.delta.commits=1"
_APPENDS = {f"{_WRITE}table.type": "MERGE_ON_READ", "hoodie.compact.inline": "false"}


class JudgedHistory(ServiceHistory):
    """A history that Java reads at its end."""

    def __init__(self, folder: Path, seed: int, judge: Judge) -> None:
        self.judge = judge
        super().__init__(folder, seed)

    def finish(self) -> None:
        """End with a read by Java, too."""
        super().finish()
        assert without_meta(self.judge.read(self.path)) == self.model.snapshot(), "Java"


class JavaServices(JudgedHistory):
    """A history in which Java takes steps, too; it also finds what our crashes have left."""

    weights: ClassVar[dict[str, int]] = {
        **ServiceHistory.weights,
        **{"java_upsert": 4, "java_clean": 2, "java_cluster": 2, "java_archive": 2},
        "java_rollback": 2,
    }
    log_weights: ClassVar[dict[str, int]] = {"fold": 3, "java_compact": 2}

    def gaps(self) -> list[str]:
        """Return the keys that the index misses; none beside Java's logs, unknown to it."""
        try:
            return super().gaps()
        except InvalidTable as error:
            assert "call Table.compact" in str(error)
            return []

    def act(self, name: str, table: Table) -> None:
        """Act; if it is refused beside Java's logs, compact first, as the error says."""
        try:
            super().act(name, table)
        except InvalidTable as error:
            assert "call Table.compact" in str(error)
            self.write(lambda model: None, table.compact)
            super().act(name, table)

    def doom(self, name: str, table: Table) -> str:
        """Let only our actions die."""
        return "" if name.startswith("java") else super().doom(name, table)

    def options(self) -> dict[str, str]:
        """Return Java's options for this table: it cleans and archives as we do."""
        shape = self.shape
        options = {name: str(word).lower() for name, word in shape.options.items()}
        options["hoodie.cleaner.commits.retained"] = str(shape.retained)
        return (
            options
            | {
                "hoodie.write.table.version": str(shape.version),
                "hoodie.write.auto.upgrade": "false",
                "hoodie.metadata.enable": "false",
                "hoodie.index.type": "BLOOM",
                f"{_WRITE}recordkey.field": "id",
                f"{_WRITE}partitionpath.field": "p" if shape.partitioned else "",
                f"{_WRITE}hive_style_partitioning": str(shape.hive_style).lower(),
            }
            | ({f"{_WRITE}precombine.field": shape.ordering} if shape.ordering else {})
            | (_APPENDS if shape.merge_on_read else {})
        )

    def java_upsert(self, table: Table) -> None:
        """Let Java upsert rows, each key once."""
        rows = self.rows(self.some())
        self.write(
            lambda model: model.upsert(rows),
            lambda: self.judge.write(self.path, arrow(rows), self.options()),
        )

    def java_compact(self, table: Table) -> None:
        """Let Java merge all logs into base files, which changes no row."""
        self.recovered()
        given = {"op": "scheduleAndExecute", "options": f"{_FILES_ONLY},{_DUE}"}
        self.write(
            lambda model: None, lambda: self.call("run_compaction", path=str(self.path), **given)
        )

    def recovered(self) -> None:
        """Recover what a crash of ours has left."""
        if self.dirty:
            self.recover(self.tables[0])
            self.dirty, self.between = False, []

    def java_rollback(self, table: Table) -> None:
        """Let Java roll back the newest commit, if we would: Java does not look for lost files."""
        self.recovered()
        try:
            newest = table.rollback(dry_run=True).commit.requested_time
        except InvalidConfig:
            return
        self.judge.rollback(self.path, newest, self.options())
        self.undo(newest)

    def call(self, procedure: str, **more: object) -> None:
        """Call one of Java's procedures on the table."""
        words = {name: f"'{w}'" if isinstance(w, str) else str(w) for name, w in more.items()}
        given = ", ".join(f"{name} => {word}" for name, word in words.items())
        self.judge.sql(f"call {procedure}({given})")

    def java_clean(self, table: Table) -> None:
        """Let Java clean."""
        name = f"services_{self.path.name}"
        self.judge.sql(f"create table if not exists {name} using hudi location '{self.path}'")
        retained = self.draw.randint(1, 4)
        self.call("run_clean", table=name, retain_commits=retained, options=_FILES_ONLY)

    def java_archive(self, table: Table) -> None:
        """Let Java archive."""
        least, retained = self.shape.options["hoodie.keep.min.commits"], self.shape.retained
        numbers = {"min_commits": least, "max_commits": int(str(least)) + 1}
        given = {**numbers, "retain_commits": retained, "enable_metadata": False}
        self.call("archive_commits", path=str(self.path), **given)

    def java_cluster(self, table: Table) -> None:
        """Let Java merge small files by clustering, which changes no row.

        It does so beside a pending commit of a writer that died, which Java then refuses to roll
        back ("Found commits after time"), whoever that writer was. Our next write does it.
        """
        given = {"op": "scheduleAndExecute", "options": _FILES_ONLY}
        self.write(
            lambda model: None,
            lambda: self.call("run_clustering", path=str(self.path), **given),
        )
        if self.dirty:
            self.recover(table)
            self.dirty = False
