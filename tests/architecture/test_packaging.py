"""`graph/` and `nodes/` at the top level are imported and installed as `mendgraph.graph` and `mendgraph.nodes`."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.product import PACKAGES, ROOT, text_of

BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE")


def run(*command: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=check, **options)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that has our wheel, but not this folder on its path."""
    folder = tmp_path_factory.mktemp("wheel")
    for path in run("git", "ls-files", *PACKAGES, "mendgraph", *BUILT_FROM, cwd=ROOT).stdout.split():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, folder / path, follow_symlinks=False)
    build = "from setuptools import build_meta as build; print(build.build_wheel('.'))"
    name = run(sys.executable, "-c", build, cwd=folder).stdout.splitlines()[-1]
    site = folder / "site"
    with zipfile.ZipFile(folder / name) as wheel:
        wheel.extractall(site)
    (packages,) = {path for path in sys.path if path.endswith("site-packages")}
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), packages)), "PYTHONDONTWRITEBYTECODE": "1"}


def test_wheel_contains_every_file_once_under_one_package(installed: dict[str, str]) -> None:
    site = Path(installed["PYTHONPATH"].partition(os.pathsep)[0])
    packaged = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    tracked = run("git", "ls-files", *PACKAGES, "mendgraph/*.py", "mendgraph/py.typed", cwd=ROOT).stdout.split()
    expected = {path if path.startswith("mendgraph/") else f"mendgraph/{path}" for path in tracked}
    assert {path for path in packaged if ".dist-info/" not in path} == expected


def test_project_with_its_own_graph_and_nodes_packages_still_works(installed: dict[str, str], tmp_path: Path) -> None:
    """Their tests pass under our plugin, and our command works in their folder."""
    files = {
        "graph.py": "from mendgraph import build_graph\n\nNAME = 'theirs'\n",
        "nodes/__init__.py": "",
        "nodes/first.py": "def first():\n    return 1\n",
        "test_graph.py": "import graph, nodes.first\n\ndef test_theirs():\n"
        "    assert (graph.NAME, nodes.first.first()) == ('theirs', 1)\n"
        "    assert graph.build_graph.__module__.startswith('mendgraph.graph.')\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    python = (sys.executable, "-S")
    tested = run(*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path, env=installed)
    assert "1 passed" in tested.stdout
    doctor = "import sys; from mendgraph.graph.start import main; sys.argv = ['mendgraph', 'doctor']; sys.exit(main())"
    looked = run(*python, "-c", doctor, cwd=tmp_path, env=installed, check=False)
    assert (looked.returncode in (0, 1), "Traceback" in looked.stderr) == (True, False), looked.stderr


def test_agent_is_started_by_its_console_script() -> None:
    scripts = metadata.distribution("mendgraph").entry_points.select(group="console_scripts")
    assert [(script.name, script.value) for script in scripts] == [("mendgraph", "mendgraph.graph.start:main")]
    assert (Path(sys.executable).parent / "mendgraph").is_file()


def test_langgraph_json_names_the_graph_as_a_file() -> None:
    """harbor takes no module. Source: `harbor.agents.installed.langgraph_runner` of harbor 0.26."""
    config = json.loads(text_of("langgraph.json"))
    assert (config["dependencies"], [*config["graphs"]]) == (["."], ["mendgraph"])
    assert config["graphs"]["mendgraph"]["path"] == "./graph/agent.py:graph"


def test_no_document_recommends_running_a_module() -> None:
    documents = [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]
    module = re.compile(r"python\S* -m (?:mendgraph|graph|nodes)\S*")
    taught = {path.name: module.findall(path.read_text("utf-8")) for path in documents}
    assert {name: lines for name, lines in taught.items() if lines} == {}
