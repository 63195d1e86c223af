"""What pytest makes of a folder of tests."""

from pathlib import Path

import pytest

from graph.cassettes.tests_root import TestsRoot, library_of, tests_root as root_of
from nodes.records import ToolError, ToolErrorCode


@pytest.mark.parametrize("name", ["pytest.ini", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg", "setup.py"])
def test_the_nearest_folder_that_is_set_up_is_the_root(tmp_path: Path, name: str) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a" / name).touch()
    assert root_of(str(tmp_path / "a/b/c"), str(tmp_path)) == TestsRoot(str(tmp_path / "a"), configured=True)


def test_without_a_file_it_is_the_workspace_or_the_folder_outside_of_it(tmp_path: Path) -> None:
    work = str(tmp_path / "work")
    assert root_of(f"{work}/tests", work) == TestsRoot(work, configured=False)
    assert root_of(f"{tmp_path}/tests", work) == TestsRoot(f"{tmp_path}/tests", configured=False)


@pytest.mark.parametrize(
    ("files", "library"),
    [
        ({}, "cassettes"),
        ({"pytest.ini": "[pytest]\nmendgraph_cassettes = kept/here/\n"}, "kept/here"),
        ({"pytest.ini": "[pytest]\naddopts = -q\n"}, "cassettes"),
        ({".pytest.ini": "", "tox.ini": "[pytest]\nmendgraph_cassettes = a\n"}, "cassettes"),
        ({"pytest.toml": "[pytest]\nmendgraph_cassettes = 'a'\n"}, "a"),
        ({"pyproject.toml": "[tool.pytest.ini_options]\nmendgraph_cassettes = 'a'\n"}, "a"),
        ({"pyproject.toml": "[tool.pytest]\nmendgraph_cassettes = 'a'\n"}, "a"),
        ({"pyproject.toml": "tool = 1\n", "setup.cfg": "[tool:pytest]\nmendgraph_cassettes = ./a%b\n"}, "a%b"),
        (
            {"pyproject.toml": "[tool.pytest.ini_options]\n", "tox.ini": "[pytest]\nmendgraph_cassettes = a"},
            "cassettes",
        ),
    ],
    ids=str,
)
def test_the_library_is_what_the_option_says(tmp_path: Path, files: dict[str, str], library: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert library_of(str(tmp_path)) == library


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("pytest.ini", b"[pytest]\nmendgraph_cassettes = ../kept\n", "is '../kept', which is no folder below it: name"),
        ("pytest.ini", b"[pytest]\nmendgraph_cassettes\n", "is None, which is no folder below it: name one there"),
        ("pyproject.toml", b"[tool.pytest]\nmendgraph_cassettes = '/kept'\n", "is '/kept', which is no folder below"),
        ("pyproject.toml", b"[tool.pytest]\nmendgraph_cassettes = 5\n", "is 5, which is no folder below it: name one"),
        ("pyproject.toml", b"[", "cannot be read, so pytest would not start: "),
        ("tox.ini", b"no section", "cannot be read, so pytest would not start: File contains no section headers."),
        ("tox.ini", b"\xff", "cannot be read, so pytest would not start: "),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(tmp_path: Path, name: str, data: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(data)
    found = library_of(str(tmp_path))
    assert isinstance(found, ToolError)
    assert found.code is ToolErrorCode.INVALID_ARGUMENT
    assert told in found.message
    assert f"{tmp_path}/{name}" in found.message


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "tox.ini").open("wb") as file:
        file.truncate(10_000_001)
    assert isinstance(library_of(str(tmp_path)), ToolError)
