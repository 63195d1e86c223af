"""The environments of the contestants, which uv creates on first use.

They lack development dependencies, because some packages import others, such as trio, if they are installed. mendgraph
and the loops share `.tools/rivals/mendgraph`. LangChain's agents share `.tools/rivals/langchain`, whose versions
`langchain.txt` pins. pydantic-ai shares the environment of `make eval`.
"""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.real_model.child import root_of_project
from benchmarks.real_model.rivals import environments as rivals

DEVELOPMENT = ""
"""The environment of the project, with its development dependencies."""
MENDGRAPH = "mendgraph"
LANGCHAIN = "langchain"
PYDANTIC_AI = "pydantic-ai"


def python_of(name: str) -> str:
    """Return the Python interpreter of an existing environment."""
    if name == DEVELOPMENT:
        return sys.executable
    return str(rivals.environment_of(name) / "bin" / "python")


def prepare(name: str) -> str | None:
    """Create the environment if it does not exist; return None, or the problem."""
    if name == DEVELOPMENT:
        return None
    if name == MENDGRAPH:
        return _install_project(rivals.environment_of(MENDGRAPH))
    if name == LANGCHAIN:
        requirements = Path(__file__).with_name("langchain.txt")
        return rivals.install(rivals.environment_of(LANGCHAIN), requirements, "--compile-bytecode")
    return rivals.prepare(name)


def _install_project(environment: Path) -> str | None:
    """Install the project without development dependencies, at the locked versions; return None, or the problem."""
    uv = rivals.find_uv()
    if uv is None:
        return "uv is needed to create it: `make setup` installs one"

    command = [uv, "sync", "--quiet", "--frozen", "--no-dev", "--compile-bytecode", "--python", sys.executable]
    variables = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(environment)}
    process = subprocess.run(command, cwd=root_of_project(), env=variables, capture_output=True, text=True, check=False)
    if process.returncode:
        return f"`uv sync` failed: {process.stderr.strip()[-600:]}"
    return None
