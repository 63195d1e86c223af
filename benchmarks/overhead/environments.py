"""The environments of the contestants that are not made of our own dependencies: made by uv on first use.

LangChain's agents share one, `.tools/rivals/langchain`, whose exact versions are in `langchain.txt`; pydantic-ai has
the one that `make eval` uses.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from benchmarks.real_model.child import root_of_project
from benchmarks.real_model.rivals import environments as measured_rivals

OWN = ""
"""The environment of the project itself."""
LANGCHAIN = "langchain"
PYDANTIC_AI = "pydantic-ai"

_MARK = ".requirements"


def python_of(name: str) -> str:
    """The Python of an environment that is there."""
    return sys.executable if name == OWN else str(measured_rivals.environment_of(name) / "bin" / "python")


def prepare(name: str) -> str | None:
    """Make the environment if it is not there yet; None, or why it cannot be made."""
    if name == OWN:
        return None
    return _prepare_langchain() if name == LANGCHAIN else measured_rivals.prepare(name)


def _prepare_langchain() -> str | None:
    requirements = Path(__file__).with_name("langchain.txt")
    place = root_of_project() / ".tools" / "rivals" / LANGCHAIN
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    mark = place / _MARK
    if mark.is_file() and mark.read_text("utf-8") == wanted:
        return None
    uv = measured_rivals.find_uv()
    if uv is None:
        return "uv is needed to make it: `make setup` brings one"
    steps = (
        [uv, "venv", "--clear", "--no-project", "--python", sys.executable, str(place)],
        [uv, "pip", "install", "--compile-bytecode", "--python", python_of(LANGCHAIN), "-r", str(requirements)],
    )
    for step in steps:
        made = subprocess.run([*step, "--quiet"], capture_output=True, text=True, check=False)
        if made.returncode:
            return f"`uv {step[1]}` failed: {made.stderr.strip()[-600:]}"
    mark.write_text(wanted, "utf-8")
    return None
