"""`from graph import ...` gives the public names, and loads nothing before they are used."""

import subprocess
import sys
from importlib import import_module

import pytest

import graph

HEAVY = ("langgraph", "langchain_core", "langchain_openai", "openai", "pydantic")


@pytest.mark.parametrize("name", graph.__all__)
def test_a_public_name_is_the_one_of_its_home(name: str) -> None:
    assert getattr(graph, name) is getattr(import_module(graph._HOMES[name]), name)


def test_the_public_names() -> None:
    of_tools = ["Effect", "ToolContext", "ToolError", "ToolOutput", "default_tools", "tool"]
    of_runs = ["list_runs", "get_run", "steps_of", "open_run", "resume_run", "prune_runs", "undo_run", "fork_run"]
    of_runs += ["Session", "RunResult", "ListedRun", "RunState", "RunStep", "Pruned", "Forked", "Restored"]
    assert sorted(graph.__all__) == sorted(
        [
            "AgentContext",
            "Outcome",
            "arun_task",
            "build_graph",
            "run_task",
            *of_tools,
            *of_runs,
            "load_mcp_tools",
            "load_mcp_tools_sync",
        ]
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'graph' has no attribute 'run_tusk'"):
        _ = graph.run_tusk
    assert not hasattr(graph, "__wrapped__")


def test_importing_the_package_costs_nothing() -> None:
    program = f"import sys, graph; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
