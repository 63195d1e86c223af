"""A harness in a child process, which reads a request and prints its result as JSON.

The result is the last line of standard output. Earlier lines are output of libraries and are ignored.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.real_model.checking import is_tool_file
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
ERROR_CHARACTERS = 600
"""The number of characters of a failed child's standard error in its result."""


def clean_environment(environment: Mapping[str, str], home: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a harness, with a separate home and without variables that would configure it."""
    excluded = (*PLACES, *PROXIES, *DEFAULT_MODELS)
    result = {
        name: value
        for name, value in environment.items()
        if not name.upper().startswith(FOREIGN_SETTINGS) and name.upper() not in excluded
    }
    result["HOME"] = str(home)
    result["XDG_CACHE_HOME"] = str(home / "cache")
    result["XDG_DATA_HOME"] = str(home / "data")
    result["NO_PROXY"] = "127.0.0.1"
    return {**result, **variables}


def run_child(
    command: Sequence[str], request: JsonMap, cwd: Path, environment: Mapping[str, str], timeout_s: float
) -> RunEnd:
    """Run the program with a request, and return its result, also after a failure or the time limit.

    The process group is killed at the end, also after an interrupt of this process.
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
        output, errors = process.communicate(json.dumps(request), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return RunEnd(ended=LIMIT_TIME, reason=f"killed after {timeout_s:g} s", seconds=timeout_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return read_end(output, errors, process.returncode)


def read_end(output: str, errors: str, code: int) -> RunEnd:
    """Read the result of a child process."""
    with suppress(ValueError, IndexError):
        return RunEnd.model_validate_json(output.strip().splitlines()[-1])

    reason = f"exit code {code}" if code else "it ended without an answer"
    return RunEnd(ended=FAILED, reason=reason, error=errors.strip()[-ERROR_CHARACTERS:])


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below `folder` by relative path, without the files of tools."""
    contents: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(map(is_tool_file, parts)):
            contents["/".join(parts)] = path.read_bytes()
    return contents


def root_of_project() -> Path:
    """Return the folder of `graph`, `nodes` and `benchmarks`."""
    return Path(__file__).parent.parent.parent
