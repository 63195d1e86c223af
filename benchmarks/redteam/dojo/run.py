"""AgentDojo's suites in processes, and their table."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
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
    if why := environments.made(environments.environment_of(NAME), Path(__file__).with_name(f"{NAME}.txt")):
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


def _run(contestant: str, suite: str, place: Path) -> dict[str, Any]:
    home = place / f"{contestant.replace(', ', '-')}-{suite}"
    home.mkdir()
    python = str(environments.environment_of(NAME) / "bin" / "python")
    more = {
        "PYTHONPATH": str(root_of_project()),
        "MENDGRAPH_DATA_DIR": str(home / "data"),
        "LANGSMITH_TRACING": "false",
    }
    done = subprocess.run(
        [python, "-P", "-m", "benchmarks.redteam.dojo.child", contestant, suite],
        cwd=home,
        env=clean_environment(os.environ, home, more),
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    print(f"AgentDojo, {suite}, {contestant}", file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = [
        json.loads(line.removeprefix("ROW ")) for line in done.stdout.splitlines() if line.startswith("ROW ")
    ]
    return rows[0] if rows else {"contestant": contestant, "suite": suite, "failure": done.stderr.strip()[-600:]}
