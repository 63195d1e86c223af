"""The cost of imports: CPU seconds of a new Python process in the environment of the package."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.overhead.environments import LANGCHAIN, MENDGRAPH, PYDANTIC_AI, python_of
from benchmarks.real_model.child import clean_environment, root_of_project

IMPORTS = (
    ("python itself", MENDGRAPH, "pass"),
    ("import mendgraph", MENDGRAPH, "import mendgraph"),
    (
        "import mendgraph; mendgraph.run_task, when a run starts",
        MENDGRAPH,
        "import mendgraph; mendgraph.run_task; mendgraph.build_graph",
    ),
    ("import openai", MENDGRAPH, "import openai; openai.OpenAI"),
    ("import langgraph.graph", MENDGRAPH, "import langgraph.graph"),
    ("import langchain.agents", LANGCHAIN, "import langchain.agents"),
    ("import langchain.agents, langchain_openai", LANGCHAIN, "import langchain.agents, langchain_openai"),
    ("import deepagents", LANGCHAIN, "import deepagents"),
    ("import pydantic_ai", PYDANTIC_AI, "import pydantic_ai"),
)
HELP = "mendgraph --help"


def import_costs(rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each import, by round. The first round, which writes the byte code, is not counted."""
    commands: dict[str, Sequence[str]] = {}
    for name, environment, code in IMPORTS:
        commands[name] = [python_of(environment), "-P", "-c", code]

    console_script = Path(python_of(MENDGRAPH)).with_name("mendgraph")
    commands[HELP] = [str(console_script), "--help"]

    costs: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, command in commands.items():
            cost = _cpu_s(command)
            if turn:
                costs[name].append(cost)
    return costs


def _cpu_s(command: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as home:
        environment = clean_environment(os.environ, Path(home), {"PYTHONPATH": str(root_of_project())})
        process = subprocess.Popen(command, env=environment, cwd=home, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)

    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime
