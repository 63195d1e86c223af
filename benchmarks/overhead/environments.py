"""The environments of the contestants that are not made of our own dependencies: made by uv on first use.

LangChain's agents share one, `.tools/rivals/langchain`, whose exact versions are in `langchain.txt`; pydantic-ai has
the one that `make eval` uses.
"""

import sys
from pathlib import Path

from benchmarks.real_model.rivals import environments as measured_rivals

OWN = ""
"""The environment of the project itself."""
LANGCHAIN = "langchain"
PYDANTIC_AI = "pydantic-ai"


def python_of(name: str) -> str:
    """The Python of an environment that is there."""
    return sys.executable if name == OWN else str(measured_rivals.environment_of(name) / "bin" / "python")


def prepare(name: str) -> str | None:
    """Make the environment if it is not there yet; None, or why it cannot be made."""
    if name == OWN:
        return None
    if name == LANGCHAIN:
        place = measured_rivals.environment_of(LANGCHAIN)
        return measured_rivals.made(place, Path(__file__).with_name("langchain.txt"), "--compile-bytecode")
    return measured_rivals.prepare(name)
