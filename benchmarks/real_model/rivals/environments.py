"""The rivals, and the environment of each. uv creates an environment on first use, from pinned requirements.

An environment is in `.tools/rivals/<name>`, and is created again when its requirements change.
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
"""Environment variables that keep the rivals' libraries off the network."""


def prepare(name: str, folder: Path | None = None) -> str | None:
    """Create the environment of a rival if it does not exist; return None, or the problem."""
    return install(environment_of(name, folder), Path(__file__).parent / f"{name}.txt")


def install(environment: Path, requirements: Path, *options: str) -> str | None:
    """Create an environment with these requirements if it does not exist; return None, or the problem.

    `options` are further arguments of `uv pip install`.
    """
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    digest_file = environment / ".requirements"
    if digest_file.is_file() and digest_file.read_text("utf-8") == digest:
        return None

    uv = find_uv()
    if uv is None:
        return "uv is needed to create it: `make setup` installs one"

    python = environment / "bin" / "python"
    commands = (
        [uv, "venv", "--clear", "--no-project", "--python", sys.executable, str(environment)],
        [uv, "pip", "install", "--python", str(python), "-r", str(requirements), *options],
    )
    for command in commands:
        process = subprocess.run([*command, "--quiet"], capture_output=True, text=True, check=False)
        if process.returncode:
            return f"`uv {command[1]}` failed: {process.stderr.strip()[-600:]}"

    digest_file.write_text(digest, "utf-8")
    return None


def adapter_command(name: str, folder: Path | None = None) -> list[str]:
    """Return the command that starts a rival's adapter. It needs the project's root on PYTHONPATH."""
    adapter = f"benchmarks.real_model.rivals.{RIVALS[name]}"
    return [str(environment_of(name, folder) / "bin" / "python"), "-P", "-m", adapter]


def environment_of(name: str, folder: Path | None = None) -> Path:
    """Return the directory of a rival's environment."""
    return (folder or root_of_project() / ".tools" / "rivals") / name


def find_uv() -> str | None:
    """Return the uv on the path, or the one that `make setup` installed."""
    if uv := shutil.which("uv"):
        return uv

    installed = root_of_project() / ".tools" / "uv" / "bin" / "uv"
    return str(installed) if installed.is_file() else None
