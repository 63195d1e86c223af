"""Every cassette is played by a test, says where it comes from, and holds nothing that is not for everyone's eyes."""

import ast
import re
from pathlib import Path

import pytest

from mendgraph.graph.cassettes.cassette_file import (
    HOST,
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    CassetteFile,
    parse,
    render,
    secrets_in,
)
from tests.architecture.product import ROOT, sources, walk
from tests.cassettes import LIBRARY, Origin, cassette_path

ONE_MACHINE = re.compile(r"(?<![\w.])/(?:(?:home|Users)/\w|root/)|/pytest-of-\w+")
"""What would make a recording play on one machine only."""

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
def test_cassette_is_fit_to_be_read_by_anyone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert secrets_in(text) == []
    assert ONE_MACHINE.search(text) is None
    cassette = parse(text)
    assert isinstance(cassette, CassetteFile)
    assert render(cassette) == text
    assert cassette.recorded_from in set(Origin)
    assert text.count(f"uri: {HOST}/v1/") == len(cassette.exchanges) > 0
    for exchange in cassette.exchanges:
        assert set(exchange.request_headers) <= REQUEST_HEADERS
        assert set(exchange.headers) <= RESPONSE_HEADERS
