"""The environments of the contestants, created by uv on first use.

None has development dependencies: some packages import others, such as trio, only if these are installed. mendgraph and
the loops share `.tools/rivals/mendgraph`; LangChain's agents share `.tools/rivals/langchain`, whose exact versions are
in `langchain.txt`; pydantic-ai has the one that `make eval` uses.
"""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.real_model.child import root_of_project
from benchmarks.real_model.rivals import environments as measured_rivals

OWN = ""
"""The environment of the project itself, with its development dependencies."""
MENDGRAPH = "mendgraph"
LANGCHAIN = "langchain"
PYDANTIC_AI = "pydantic-ai"


def python_of(name: str) -> str:
    """The Python of an environment that is there."""
    return sys.executable if name == OWN else str(measured_rivals.environment_of(name) / "bin" / "python")


def prepare(name: str) -> str | None:
    """Make the environment if it is not there yet; None, or why it cannot be made."""
    if name == OWN:
        return None
    if name == MENDGRAPH:
        return _install_project(measured_rivals.environment_of(MENDGRAPH))
    if name == LANGCHAIN:
        place = measured_rivals.environment_of(LANGCHAIN)
        return measured_rivals.made(place, Path(__file__).with_name("langchain.txt"), "--compile-bytecode")
    return measured_rivals.prepare(name)


def _install_project(place: Path) -> str | None:
    """Install the project as its users do, with the locked versions; None, or why that fails."""
    uv = measured_rivals.find_uv()
    if uv is None:
        return "uv is needed to create it: `make setup` installs one"

    command = [uv, "sync", "--quiet", "--frozen", "--no-dev", "--compile-bytecode", "--python", sys.executable]
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(place)}
    done = subprocess.run(command, cwd=root_of_project(), env=environment, capture_output=True, text=True, check=False)
    return f"`uv sync` failed: {done.stderr.strip()[-600:]}" if done.returncode else None
