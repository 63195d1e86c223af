"""The rivals that there are, and an environment for each: made by uv on first use, from pinned requirements.

An environment lies in `.tools/rivals/<name>`, beside our own uv, and is made again when its requirements change.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.real_model.child import root_of_project

RIVALS = {
    "plain": "run_plain",
    "create_agent": "run_create_agent",
    "pydantic-ai": "run_pydantic_ai",
    "aider": "run_aider",
}
"""The adapter of each rival; its requirements are in `<name>.txt`."""

SETTINGS = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""What keeps the rivals' libraries from looking things up on the network."""


def prepare(name: str, folder: Path | None = None) -> str | None:
    """Make the rival's environment if it is not there yet; None, or why it cannot be made."""
    return made(environment_of(name, folder), Path(__file__).parent / f"{name}.txt")


def made(place: Path, requirements: Path, *more: str) -> str | None:
    """Make an environment of these requirements if it is not there yet; None, or why it cannot be made.

    `more` are further arguments of `uv pip install`.
    """
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    mark = place / ".requirements"
    if mark.is_file() and mark.read_text("utf-8") == wanted:
        return None
    uv = find_uv()
    if uv is None:
        return "uv is needed to make it: `make setup` brings one"
    steps = (
        [uv, "venv", "--clear", "--no-project", "--python", sys.executable, str(place)],
        [uv, "pip", "install", "--python", str(place / "bin" / "python"), "-r", str(requirements), *more],
    )
    for step in steps:
        done = subprocess.run([*step, "--quiet"], capture_output=True, text=True, check=False)
        if done.returncode:
            return f"`uv {step[1]}` failed: {done.stderr.strip()[-600:]}"
    mark.write_text(wanted, "utf-8")
    return None


def command(name: str, folder: Path | None = None) -> list[str]:
    """How the rival is started. The caller puts our root on PYTHONPATH: the adapters are modules of ours."""
    adapter = f"benchmarks.real_model.rivals.{RIVALS[name]}"
    return [str(environment_of(name, folder) / "bin" / "python"), "-P", "-m", adapter]


def environment_of(name: str, folder: Path | None = None) -> Path:
    """Where the rival's environment belongs."""
    return (folder or root_of_project() / ".tools" / "rivals") / name


def find_uv() -> str | None:
    """The uv on the path, or the one that `make` has installed."""
    own = root_of_project() / ".tools" / "uv" / "bin" / "uv"
    return shutil.which("uv") or (str(own) if own.is_file() else None)
