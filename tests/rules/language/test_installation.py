"""The commands that add an extra or a package to the running installation."""

import json
import sys
from pathlib import Path

import pytest

from mendgraph.nodes.language import installation
from mendgraph.nodes.language.installation import how_to_add, how_to_install

RECEIPT = """\
[tool]
requirements = [
    {{ name = "mendgraph", extras = ["local"], {source} }},
    {{ name = "langchain-anthropic" }},
]
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate environment, whose mendgraph does not run from a clone."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(installation, "_CLONE", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "place"), [('directory = "/a clone"', "/a clone"), ('specifier = ">=0.1"', "mendgraph")]
)
def test_uv_tool_is_reinstalled_with_its_extras_and_packages(environment: Path, source: str, place: str) -> None:
    (environment / "uv-receipt.toml").write_text(RECEIPT.format(source=source), "utf-8")
    assert how_to_add("acp") == (
        f"the extra `acp`: run `uv tool install '{place}[acp,local]' --with langchain-anthropic`"
    )
    assert how_to_install("langchain-xai") == (
        f"uv tool install '{place}[local]' --with langchain-anthropic --with langchain-xai"
    )


def test_clone_is_synchronized(environment: Path) -> None:
    (environment / "uv.lock").touch()
    assert how_to_add("acp") == "the extra `acp`: run `uv sync --inexact --extra acp`"


@pytest.mark.parametrize(
    ("has_pip", "command"), [(True, "{python} -m pip install"), (False, "uv pip install --python {python}")]
)
@pytest.mark.usefixtures("environment")
def test_environment_uses_its_own_installer(monkeypatch: pytest.MonkeyPatch, has_pip: bool, command: str) -> None:
    class Origin:
        def read_text(self, _: str) -> str:
            return json.dumps({"url": "file:///a%20clone", "dir_info": {}})

    monkeypatch.setattr(installation, "distribution", lambda _: Origin())
    monkeypatch.setattr(installation, "find_spec", lambda _: object() if has_pip else None)
    command = command.format(python=sys.executable)
    assert how_to_add("acp") == f"the extra `acp`: run `{command} '/a clone[acp]'`"
    assert how_to_install("langchain-xai") == f"{command} langchain-xai"
