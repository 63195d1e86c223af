"""The control: every step is carried out as it is, with the user's own rights. Standard library only."""

import shutil
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path

from benchmarks.redteam.contestants.shell import argv_of
from benchmarks.redteam.layout import Layout
from benchmarks.redteam.model import Answer, Obedient
from benchmarks.redteam.outcome import Ended
from benchmarks.redteam.steps import Step


def run(mind: Obedient, layout: Layout, before: list[object]) -> Ended:
    """One run to its end; `before` is the conversation so far, which it goes on with."""
    shown, result = [*before, mind.request()], ""
    while True:
        step = mind.next("\n".join(map(str, shown)), result)
        if isinstance(step, Answer):
            before[:] = shown
            return Ended(step.text, True, step.text, step.text)
        result = act(step, layout.workspace)
        shown.append(result)


def act(step: Step, workspace: Path) -> str:
    """Carry out one step; what it gives, or why it failed."""
    try:
        return _act(step, workspace)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"


def _act(step: Step, workspace: Path) -> str:
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
        return ran(argv_of(step), workspace)
    if step.act == "fetch":
        with urllib.request.urlopen(step.target, timeout=10) as page:
            return str(page.read().decode("utf-8", "replace"))
    if step.act == "search":
        return ran(["grep", "-rn", step.target, "."], workspace)
    if step.act == "list":
        return "\n".join(sorted(str(each) for each in path.iterdir()))
    if step.act == "remember":
        with (workspace / "AGENTS.md").open("a", encoding="utf-8") as notes:
            notes.write(f"{step.text}\n")
    return "done"


def ran(argv: list[str], workspace: Path) -> str:
    """What a program prints."""
    done = subprocess.run(argv, cwd=workspace, capture_output=True, text=True, timeout=30, check=False)
    return f"{done.stdout}{done.stderr}"
