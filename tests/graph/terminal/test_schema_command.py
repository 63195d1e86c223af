"""`mendgraph schema` prints what is published."""

import json

import pytest

from graph.cli import main
from graph.terminal.json_output import line_schema, object_schema
from nodes.records import JsonMap


@pytest.mark.parametrize(
    ("words", "schema"),
    [([], object_schema()), (["json"], object_schema()), (["json-lines"], line_schema())],
)
def test_it_prints_the_schema(words: list[str], schema: JsonMap, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", *words]) == 0
    assert json.loads(capsys.readouterr().out) == schema


def test_another_word_is_an_error_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "xml"]) == 2
    assert "'xml'" in capsys.readouterr().err
