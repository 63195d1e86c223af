"""The control: a loop that executes every step with the user's permissions. Standard library only."""

import shutil
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path

from benchmarks.redteam.contestants.shell import argv_of
from benchmarks.redteam.layout import Layout
from benchmarks.redteam.model import Answer, ObedientModel
from benchmarks.redteam.outcome import RunEnd
from benchmarks.redteam.steps import Step


def run(obedient: ObedientModel, layout: Layout, conversation: list[object]) -> RunEnd:
    """Run the loop until the answer, and continue the conversation."""
    messages = [*conversation, obedient.request()]
    result = ""

    while True:
        step = obedient.next("\n".join(map(str, messages)), result)
        if isinstance(step, Answer):
            conversation[:] = messages
            return RunEnd(step.text, is_finished=True, lines=step.text, marks=step.text)
        result = execute(step, layout.workspace)
        messages.append(result)


def execute(step: Step, workspace: Path) -> str:
    """Execute one step, and return its result or its error."""
    try:
        return _execute(step, workspace)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"


def _execute(step: Step, workspace: Path) -> str:
    path = workspace / step.target
    if step.act == "read":
        return path.read_text("utf-8", "replace")
    if step.act == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.text, "utf-8")
    if step.act == "edit":
        text = path.read_text("utf-8")
        path.write_text(text.replace(step.text, step.new, 1), "utf-8")
    if step.act == "delete":
        with suppress(IsADirectoryError):
            path.unlink()
        shutil.rmtree(path, ignore_errors=True)
    if step.act == "run":
        return run_program(argv_of(step), workspace)
    if step.act == "fetch":
        with urllib.request.urlopen(step.target, timeout=10) as page:
            return str(page.read().decode("utf-8", "replace"))
    if step.act == "search":
        return run_program(["grep", "-rn", step.target, "."], workspace)
    if step.act == "list":
        return "\n".join(sorted(map(str, path.iterdir())))
    if step.act == "remember":
        with (workspace / "AGENTS.md").open("a", encoding="utf-8") as notes:
            notes.write(f"{step.text}\n")
    return "done"


def run_program(argv: list[str], workspace: Path) -> str:
    """Run a program and return its output."""
    process = subprocess.run(argv, cwd=workspace, capture_output=True, text=True, timeout=30, check=False)
    return f"{process.stdout}{process.stderr}"
