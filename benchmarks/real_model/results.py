"""The result files of an evaluation: `results.jsonl` with one line for each run, and `summary.json`.

Each line is on the disk before the next run begins, so that an interrupted evaluation can be resumed.
"""

import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from benchmarks.real_model.record import RunRecord, line_of, read_records
from mendgraph.nodes.records import JsonMap

Place = tuple[str, str, str]


class Results:
    """The folder of the results, which is created if needed."""

    def __init__(self, folder: Path) -> None:
        """Read the results of earlier evaluations."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lines = folder / "results.jsonl"
        self._summary = folder / "summary.json"
        text = self._lines.read_text("utf-8") if self._lines.exists() else ""
        self._records = {record.place: record for record in read_records(text)}
        if text and not text.endswith("\n"):  # a kill interrupted the last write
            self._write(self._records.values())

    def records(self, digests: dict[str, str]) -> list[RunRecord]:
        """Return the results of the tasks in `digests`, if their digests match."""
        return [record for record in self._records.values() if digests.get(record.task) == record.digest]

    def add(self, record: RunRecord) -> None:
        """Append a result and flush it to the disk."""
        self._records.pop(record.place, None)
        self._records[record.place] = record
        with self._lines.open("a", encoding="utf-8") as file:
            file.write(line_of(record))
            file.flush()
            os.fsync(file.fileno())

    def remove(self, places: Collection[Place]) -> None:
        """Remove the results of these runs, so that the runs are repeated."""
        if self._records.keys() & set(places):
            self._records = {place: record for place, record in self._records.items() if place not in places}
            self._write(self._records.values())

    def write_summary(self, summary: JsonMap) -> Path:
        """Write the summary and return its path."""
        self._summary.write_text(json.dumps(summary, ensure_ascii=False, indent=2) + "\n", "utf-8")
        return self._summary

    def _write(self, records: Iterable[RunRecord]) -> None:
        draft = self._lines.with_suffix(".draft")
        draft.write_text("".join(map(line_of, records)), "utf-8")
        draft.replace(self._lines)
