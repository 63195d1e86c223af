"""The results of an evaluation on the disk: `results.jsonl`, one line for each run, and `summary.json`.

A line is on the disk before the next run begins, so that an evaluation which is ended goes on where it was.
"""

import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from benchmarks.real_model.record import RunRecord, line_of, read_records
from mendgraph.nodes.records import JsonMap

Place = tuple[str, str, str]


class Results:
    """The folder that an evaluation writes into; made when it is not there."""

    def __init__(self, folder: Path) -> None:
        """Read what earlier evaluations have left."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lines, self._summary = folder / "results.jsonl", folder / "summary.json"
        text = self._lines.read_text("utf-8") if self._lines.exists() else ""
        self._records = {record.place: record for record in read_records(text)}
        if text and not text.endswith("\n"):  # a kill cut the last line off
            self._write(self._records.values())

    def records(self, digests: dict[str, str]) -> list[RunRecord]:
        """The results of the tasks named in `digests`, where they are of this very text."""
        return [record for record in self._records.values() if digests.get(record.task) == record.digest]

    def add(self, record: RunRecord) -> None:
        """Append a result; it is on the disk when this returns."""
        self._records.pop(record.place, None)
        self._records[record.place] = record
        with self._lines.open("a", encoding="utf-8") as file:
            file.write(line_of(record))
            file.flush()
            os.fsync(file.fileno())

    def forget(self, places: Collection[Place]) -> None:
        """Drop the results of these runs, so that they are made again."""
        if dropped := self._records.keys() & set(places):
            self._records = {place: record for place, record in self._records.items() if place not in dropped}
            self._write(self._records.values())

    def summarize(self, summary: JsonMap) -> Path:
        """Write the summary; where it is."""
        self._summary.write_text(json.dumps(summary, ensure_ascii=False, indent=2) + "\n", "utf-8")
        return self._summary

    def _write(self, records: Iterable[RunRecord]) -> None:
        draft = self._lines.with_suffix(".draft")
        draft.write_text("".join(map(line_of, records)), "utf-8")
        draft.replace(self._lines)
