"""The product as the tests see it: which files there are, and which of them may have effects."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("graph", "nodes")

EFFECT_FILES = frozenset(
    {
        "graph/agent.py",
        "graph/fleet/batch/on_ray.py",
        "graph/fleet/batch/batch_folder.py",
        "graph/fleet/batch/executors.py",
        "graph/fleet/batch/tasks.py",
        "graph/cassettes/cassette_file.py",
        "graph/cli.py",
        "graph/runs/run.py",
        "graph/runs/session.py",
        "graph/start.py",
        "graph/terminal/approval.py",
        "graph/terminal/process_end.py",
        "graph/terminal/doctor.py",
        "graph/editor/agent.py",
        "graph/langchain/chat_model.py",
        "graph/langchain/chat_models.py",
        "graph/langchain/connections.py",
        "graph/langchain/endpoint_models.py",
        "graph/langchain/reply_reader.py",
        "graph/fleet/serving/engine.py",
        "nodes/call_model/services.py",
        "nodes/documents/environment.py",
        "nodes/execute_tools/evidence/checks.py",
        "nodes/execute_tools/evidence/runner.py",
        "nodes/language/installation.py",
        "nodes/execute_tools/evidence/runners.py",
        "nodes/call_model/local_model.py",
        "nodes/call_model/local_server.py",
        "nodes/call_model/weights.py",
    }
)
"""The single files that may touch the world; `EFFECT_PACKAGES` hold nothing else."""

EFFECT_PACKAGES = (
    "nodes/execute_tools/commands/",
    "nodes/execute_tools/mcp_servers/",
    "nodes/execute_tools/network/",
    "nodes/workspace/",
)

NOT_OURS = frozenset({"__pycache__", "node_modules", "stores"})
"""Folders of what was made or fetched, and of what earlier versions have written."""


def sources(*folders: str) -> list[str]:
    """Every Python file under these top-level folders, as a path from the root."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths if not NOT_OURS & {*path.parts})


def is_pure(path: str) -> bool:
    """Whether this file of `graph` or `nodes` must be without effects."""
    return path not in EFFECT_FILES and not path.startswith(EFFECT_PACKAGES)


def module_name(path: str) -> str:
    """`nodes/guard/policy.py` -> `mendgraph.nodes.guard.policy`."""
    return "mendgraph." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def walk(path: str) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(text_of(path)))
