"""Every cassette is played by a test, says where it comes from, and holds nothing that is not for everyone's eyes."""

import ast
from pathlib import Path

import pytest
import yaml

from tests.architecture.house import ROOT, sources, walk
from tests.cassette_format import lint, recorded_from
from tests.cassettes import LIBRARY, REQUEST_HEADERS, RESPONSE_HEADERS, Origin, cassette_path

FILES = sorted(path for path in LIBRARY.rglob("*") if path.is_file() and path.name != ".gitkeep")


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_cassette_is_named_by_a_test() -> None:
    """By a literal `"scenario/case"`, so that whoever greps for a cassette finds the test that plays it."""
    words = {node.value for path in sources("tests") for node in walk(path) if isinstance(node, ast.Constant)}
    named = {cassette_path(word) for word in words if isinstance(word, str) and _is_name(word)}
    assert [shown(path) for path in FILES if path not in named] == []


def _is_name(word: str) -> bool:
    try:
        cassette_path(word)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_cassette_is_fit_to_be_read_by_anyone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert lint(text) == []
    assert recorded_from(path) in set(Origin)
    for exchange in yaml.load(text, Loader=yaml.CSafeLoader)["interactions"]:
        assert exchange["request"]["uri"].startswith("http://llm.test/")
        assert set(exchange["request"]["headers"]) <= REQUEST_HEADERS
        assert set(exchange["response"]["headers"]) <= RESPONSE_HEADERS
