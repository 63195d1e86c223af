"""Every cassette is played by a test, says where it comes from, and holds nothing that is not for everyone's eyes."""

import ast
import re
from pathlib import Path

from mendgraph.graph.cassettes.cassette_file import (
    HOST,
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    CassetteFile,
    parse,
    render,
    secrets_in,
)
from tests.architecture.product import sources, walk
from tests.cassettes import LIBRARY, Origin, cassette_path

ONE_MACHINE = re.compile(r"(?<![\w.])/(?:(?:home|Users)/\w|root/)|/pytest-of-\w+")
"""What would make a recording play on one machine only."""

FILES = sorted(path for path in LIBRARY.rglob("*") if path.is_file() and path.name != ".gitkeep")


def test_every_cassette_is_named_by_a_test() -> None:
    """By a literal `"scenario/case"`, so that whoever greps for a cassette finds the test that plays it."""
    words = {node.value for path in sources("tests") for node in walk(path) if isinstance(node, ast.Constant)}
    named = {
        cassette_path(word) for word in words if isinstance(word, str) and re.fullmatch(r"[a-z0-9_]+/[a-z0-9_]+", word)
    }
    assert sorted({*FILES} - named) == []


def problems(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    cassette = parse(text)
    if not isinstance(cassette, CassetteFile):
        return [str(cassette)]
    found = {
        "holds secrets": secrets_in(text),
        "plays on one machine only": ONE_MACHINE.search(text),
        "is not as it is rendered": render(cassette) != text,
        "comes from nowhere": cassette.recorded_from not in set(Origin),
        "speaks to another host": not text.count(f"uri: {HOST}/v1/") == len(cassette.exchanges) > 0,
        "has other headers": any(
            {*each.request_headers} - REQUEST_HEADERS or {*each.headers} - RESPONSE_HEADERS
            for each in cassette.exchanges
        ),
    }
    return [problem for problem, is_so in found.items() if is_so]


def test_each_cassette_is_fit_to_be_read_by_anyone() -> None:
    assert {path.name: problems(path) for path in FILES if problems(path)} == {}
