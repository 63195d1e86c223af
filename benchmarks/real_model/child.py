"""A harness at work in a process of its own: JSON in, JSON out, nothing of it left behind.

The last line of the child's standard output is its answer; whatever it or its libraries print before is theirs.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.real_model.checking import is_left_behind
from benchmarks.real_model.record import FAILED, LIMIT_TIME, RunEnd
from mendgraph.nodes.call_model.endpoint import DEFAULT_MODELS
from mendgraph.nodes.records import JsonMap

FOREIGN_SETTINGS = (
    "OPENAI_",
    "AIDER_",
    "ANTHROPIC_",
    "LANGCHAIN_",
    "LANGSMITH_",
    "LANGGRAPH_",
    "LITELLM_",
    "MENDGRAPH_",
)
PLACES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
LAST_WORDS = 600
"""Characters of a failed child's standard error that are kept."""


def clean_environment(ours: Mapping[str, str], home: Path, added: Mapping[str, str]) -> dict[str, str]:
    """The environment of a harness: none of the variables that would steer it, a home of its own, and what is added."""
    kept = {
        name: value
        for name, value in ours.items()
        if not name.upper().startswith(FOREIGN_SETTINGS) and name.upper() not in (*PLACES, *PROXIES, *DEFAULT_MODELS)
    }
    folders = {"HOME": home, "XDG_CACHE_HOME": home / "cache", "XDG_DATA_HOME": home / "data"}
    return {**kept, **{name: str(folder) for name, folder in folders.items()}, "NO_PROXY": "127.0.0.1", **added}


def run_child(
    command: Sequence[str], request: JsonMap, cwd: Path, environment: Mapping[str, str], timeout_s: float
) -> RunEnd:
    """Give `request` to the program and return its answer; one that takes too long or fails has an end as well.

    The whole process group is killed in the end, however it ends; also when we are interrupted.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        said, complained = process.communicate(json.dumps(request), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return RunEnd(ended=LIMIT_TIME, reason=f"killed after {timeout_s:g} s", seconds=timeout_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return read_end(said, complained, process.returncode)


def read_end(said: str, complained: str, code: int) -> RunEnd:
    """What a child that ended by itself says of its run."""
    with suppress(ValueError, IndexError):
        return RunEnd.model_validate_json(said.strip().splitlines()[-1])
    reason = f"exit code {code}" if code else "it ended without an answer"
    return RunEnd(ended=FAILED, reason=reason, error=complained.strip()[-LAST_WORDS:])


def snapshot(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below `folder` by relative path, but for what tools leave behind."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(map(is_left_behind, parts)):
            found["/".join(parts)] = path.read_bytes()
    return found


def root_of_project() -> Path:
    """The folder that `graph`, `nodes` and `benchmarks` are in."""
    return Path(__file__).parent.parent.parent
