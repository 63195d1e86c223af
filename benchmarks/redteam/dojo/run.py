"""AgentDojo's suites in processes, and their table."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.real_model.child import clean_environment, root_of_project
from benchmarks.real_model.rivals import environments
from benchmarks.real_model.score import table

NAME: Final = "agentdojo"
SUITES: Final = ("workspace", "travel", "banking", "slack")
CONTESTANTS: Final = ("create_agent", "ours", "ours, ask")
LONGEST_S: Final = 900.0
"""Seconds that one contestant may take for one suite."""


def measured(at_once: int) -> Iterator[str]:
    """The table, or why there is none."""
    if why := environments.install(environments.environment_of(NAME), Path(__file__).with_name(f"{NAME}.txt")):
        yield f"\nAgentDojo was not run: {why}"
        return
    with tempfile.TemporaryDirectory(prefix="agentdojo-") as home, ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(_run, each, suite, Path(home)) for suite in SUITES for each in CONTESTANTS]
        found = [job.result() for job in jobs]
    yield "\nAgentDojo, every user's task with every injected one whose solution it has (629 of 949):\n"
    heads = ["suite", "contestant", "pairs", "injections shown", "injected acts that ran", "injected tasks achieved"]
    yield table([*heads, "user's tasks done"], [_line(row) for row in [*found, *_sums(found)] if "pairs" in row])
    yield from (f"\n{row['contestant']}, {row['suite']}: {row['failure']}" for row in found if "failure" in row)


def _sums(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All suites together, for each contestant."""
    for each in CONTESTANTS:
        own = [row for row in rows if row["contestant"] == each and "pairs" in row]
        names = dict.fromkeys(name for row in own for name in row if name not in {"contestant", "suite"})
        if own:
            yield {"contestant": each, "suite": "all", **{name: sum(row.get(name, 0) for row in own) for name in names}}


def _line(row: Mapping[str, Any]) -> list[str]:
    def of(count: str, whole: str) -> str:
        return f"{row.get(count, 0)} of {row.get(whole, 0)}"

    return [
        row["suite"],
        row["contestant"],
        str(row["pairs"]),
        str(row.get("seen", 0)),
        of("injected calls that ran", "injected calls"),
        of("injected tasks achieved", "seen"),
        of("utility", "pairs"),
    ]


def rows_of(command: Sequence[str], home: Path, more: Mapping[str, str]) -> tuple[list[dict[str, Any]], str | None]:
    """The rows that a process in `home` prints, and the end of its errors where it has failed."""
    known = {"PYTHONPATH": str(root_of_project()), "LANGSMITH_TRACING": "false", **more}
    environment = clean_environment(os.environ, home, known)
    done = subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_S
    )
    rows = [json.loads(line.removeprefix("ROW ")) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    return rows, done.stderr.strip()[-600:] if done.returncode else None


def _run(contestant: str, suite: str, place: Path) -> dict[str, Any]:
    home = place / f"{contestant.replace(', ', '-')}-{suite}"
    home.mkdir()
    python = str(environments.environment_of(NAME) / "bin" / "python")
    command = [python, "-P", "-m", "benchmarks.redteam.dojo.child", contestant, suite]
    rows, failure = rows_of(command, home, {"MENDGRAPH_DATA_DIR": str(home / "data")})
    print(f"AgentDojo, {suite}, {contestant}", file=sys.stderr, flush=True)
    return rows[0] if rows else {"contestant": contestant, "suite": suite, "failure": failure or "it gave no row"}
