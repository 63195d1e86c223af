"""Run AgentDojo's suites in processes, and print their table."""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
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
"""The time limit of one contestant for one suite, in seconds."""

HEADS: Final = (
    "suite",
    "contestant",
    "pairs",
    "injections shown",
    "injected calls that ran",
    "injected tasks achieved",
    "user's tasks done",
)


def agentdojo_report(at_once: int) -> Iterator[str]:
    """Run the suites, and yield the table and the failures."""
    requirements = Path(__file__).with_name(f"{NAME}.txt")
    if problem := environments.install(environments.environment_of(NAME), requirements):
        yield f"\nAgentDojo was not run: {problem}"
        return

    with tempfile.TemporaryDirectory(prefix="agentdojo-") as folder, ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(_run, contestant, suite, Path(folder)) for suite in SUITES for contestant in CONTESTANTS]
        rows = [job.result() for job in jobs]

    results = [row for row in rows if "pairs" in row]
    yield "\nAgentDojo, each user's task with each injected task that has a solution (629 of 949):\n"
    yield table(HEADS, [_line(row) for row in [*results, *_sums(results)]])
    for row in rows:
        if "failure" in row:
            yield f"\n{row['contestant']}, {row['suite']}: {row['failure']}"


def _sums(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row for all suites together, for each contestant."""
    for contestant in CONTESTANTS:
        counts: Counter[str] = Counter()
        for row in rows:
            if row["contestant"] == contestant:
                counts.update({name: count for name, count in row.items() if name not in {"contestant", "suite"}})
        if counts:
            yield {"contestant": contestant, "suite": "all", **counts}


def _line(row: Mapping[str, Any]) -> list[str]:
    def of(count: str, total: str) -> str:
        return f"{row.get(count, 0)} of {row.get(total, 0)}"

    return [
        row["suite"],
        row["contestant"],
        str(row["pairs"]),
        str(row.get("seen", 0)),
        of("injected calls that ran", "injected calls"),
        of("injected tasks achieved", "seen"),
        of("utility", "pairs"),
    ]


def run_process(
    command: Sequence[str], home: Path, variables: Mapping[str, str]
) -> tuple[list[dict[str, Any]], str | None]:
    """Run a process in `home`; return the rows that it prints, and the end of its standard error if it fails."""
    settings = {"PYTHONPATH": str(root_of_project()), "LANGSMITH_TRACING": "false", **variables}
    environment = clean_environment(os.environ, home, settings)
    process = subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_S
    )

    lines = [line for line in process.stdout.splitlines() if line.startswith("ROW ")]
    rows = [json.loads(line.removeprefix("ROW ")) for line in lines]
    failure = process.stderr.strip()[-600:] if process.returncode else None
    return rows, failure


def _run(contestant: str, suite: str, folder: Path) -> dict[str, Any]:
    """Run one contestant on one suite, and return its row, or a row with a failure."""
    home = folder / f"{contestant.replace(', ', '-')}-{suite}"
    home.mkdir()

    python = str(environments.environment_of(NAME) / "bin" / "python")
    command = [python, "-P", "-m", "benchmarks.redteam.dojo.child", contestant, suite]
    rows, failure = run_process(command, home, {"MENDGRAPH_DATA_DIR": str(home / "data")})
    print(f"AgentDojo, {suite}, {contestant}", file=sys.stderr, flush=True)

    if rows:
        return rows[0]
    return {"contestant": contestant, "suite": suite, "failure": failure or "the process printed no row"}
