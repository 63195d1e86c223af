"""`run_task` takes the fields of `AgentContext` as typed keyword arguments: their types are written from its fields."""

import ast
from pathlib import Path

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.context_fields import ContextFields
from mendgraph.graph.machine.options import SessionOptions
from tests.architecture.product import ROOT, text_of
from tests.snapshots import Snapshots

FILE = ROOT / "graph/configuration/context_fields.py"
HEADER = '''"""The fields of `AgentContext` as keyword arguments. Written by `tests/contract`; do not edit."""

from typing import Any, Literal, TypedDict

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from mendgraph.nodes.workspace.files.sandbox import StrPath


class ContextFields(TypedDict, total=False):
    """The fields of a run's context beside the options of a session; `AgentContext` describes them."""

'''


def declarations() -> str:
    """Return the module as it follows from `AgentContext` and `SessionOptions`."""
    [model] = [
        node
        for node in ast.parse(text_of("graph/configuration/context.py")).body
        if isinstance(node, ast.ClassDef) and node.name == "AgentContext"
    ]
    lines = []
    for node in model.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = ast.unparse(node.annotation).replace("FolderName", "StrPath").replace("'", '"')
            if node.target.id not in SessionOptions.__annotations__:
                lines.append(f"    {node.target.id}: {kind}\n")

    return HEADER + "".join(lines)


def test_keyword_arguments_are_the_fields_of_the_context(snapshots: Snapshots) -> None:
    snapshots.check(FILE, declarations())
    names = ContextFields.__annotations__.keys() | SessionOptions.__annotations__.keys()
    assert AgentContext.model_fields.keys() <= names
    assert Path(FILE).is_file()
