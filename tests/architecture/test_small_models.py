"""Code for small models is in one package, which a run of another model does not load."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.product import module_name, sources, text_of
from tests.doubles.scripted_server import Calls, Say, ScriptedServer

SMALL_MODEL: Final = "mendgraph.nodes.small_model"
TOOLS: Final = "mendgraph.nodes.execute_tools.tools."
"""Tools declare the forms in which they are offered."""

RUN: Final = f"""
import sys
from mendgraph import AgentContext, run_task
context = AgentContext(workspace=sys.argv[1], model=sys.argv[2], base_url=sys.argv[3])
print(run_task("Replace 1 by 2 in calc.py.", context).answer)
print(*(name for name in sys.modules if name.startswith({SMALL_MODEL!r})))
"""


def test_only_tools_and_the_small_model_package_know_the_block_form() -> None:
    modules = set()
    for path in sources("nodes"):
        attributes = {node.attr for node in ast.walk(ast.parse(text_of(path))) if isinstance(node, ast.Attribute)}
        if "BLOCKS" in attributes:
            modules.add(module_name(path))

    assert {name for name in modules if not name.startswith((TOOLS, SMALL_MODEL))} == set()
    assert modules  # else the attribute has another name


@pytest.mark.parametrize(("model", "small"), [("gpt-5", False), ("qwen2.5-coder-1.5b", True)])
def test_only_a_run_of_a_small_model_loads_the_small_model_package(tmp_path: Path, model: str, small: bool) -> None:
    (tmp_path / "calc.py").write_text("x = 1\n", encoding="utf-8")
    script: list[Say | Calls]
    if small:
        script = [Say("calc.py\n```python\nx = 2\n```\nIt is replaced.")]
    else:
        edit = {"path": "calc.py", "old_str": "1", "new_str": "2"}
        read = ("read_file", json.dumps({"path": "calc.py"}))
        script = [Calls([read]), Calls([("edit_file", json.dumps(edit))]), Say("It is replaced.")]

    with ScriptedServer(script) as server:
        command = [sys.executable, "-c", RUN, str(tmp_path), model, server.base_url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)

    answer, modules = done.stdout.split("\n", maxsplit=1)
    assert (answer, bool(modules.strip())) == ("It is replaced.", small)
    assert (tmp_path / "calc.py").read_text(encoding="utf-8") == "x = 2\n"
