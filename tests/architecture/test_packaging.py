"""The top-level names `graph` and `nodes` are generic: these tests say that they are ours, and how they are reached."""

import importlib
import json
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.architecture.house import PACKAGES, ROOT, text_of


@pytest.mark.parametrize("package", PACKAGES)
def test_the_packages_are_ours(package: str) -> None:
    file = importlib.import_module(package).__file__
    assert file is not None
    assert Path(file) == ROOT / package / "__init__.py"
    assert (ROOT / package / "py.typed").is_file()


def test_nobody_else_provides_our_names() -> None:
    providers = metadata.packages_distributions()
    assert {name: set(providers.get(name, [])) - {"mendgraph"} for name in (*PACKAGES, "tests")} == {
        "graph": set(),
        "nodes": set(),
        "tests": set(),
    }


def test_the_agent_is_run_by_its_console_script() -> None:
    scripts = metadata.distribution("mendgraph").entry_points.select(group="console_scripts")
    assert [(script.name, script.value) for script in scripts] == [("mendgraph", "mendgraph.graph.start:main")]
    assert (Path(sys.executable).parent / "mendgraph").is_file()


def test_studio_loads_the_graph_as_a_module() -> None:
    config = json.loads(text_of("langgraph.json"))
    assert (config["dependencies"], config["graphs"]) == (["."], {"mendgraph": "mendgraph.graph.agent:graph"})


def test_no_document_teaches_to_run_a_module() -> None:
    documents = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")]
    told = {path.name: re.findall(r"python\S* -m (?:graph|nodes)\S*", path.read_text("utf-8")) for path in documents}
    assert {name: lines for name, lines in told.items() if lines} == {}
