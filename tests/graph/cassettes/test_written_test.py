"""The text of a test that replays a run."""

import ast
from typing import Any

import pytest

from graph.cassettes.pinned import context_on
from graph.cassettes.written_test import TestedRun, render_test as text_of, settings_in_test
from graph.context import AgentContext
from nodes.records import Outcome, OutcomeKind, StopReason

OUTCOME = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.")
PINNED = {"model": "m", "protocol": "text", "edit_form": "replace", "mendgraph": "0.1.0"}


def run_of(**changed: Any) -> TestedRun:
    usual: dict[str, Any] = {
        "name": "mended",
        "run_id": "0123456789",
        "given": {},
        "requests": ("Mend add.",),
        "outcome": OUTCOME,
        "has_files": True,
        "left": ("calc.py",),
        "gone": ("notes.txt",),
    }
    return TestedRun(**{**usual, **changed})


def test_a_test_is_what_a_person_would_write() -> None:
    assert (
        text_of(run_of())
        == '''\
"""The run 01234567 once more, on what its model said."""

import shutil
from pathlib import Path

import pytest

from graph import Session


@pytest.mark.mendgraph_cassette("mended")
def test_mended(mendgraph_cassette, tmp_path):
    files = Path(mendgraph_cassette.path).parent / "files"
    shutil.copytree(files / "before", tmp_path, dirs_exist_ok=True)
    with Session(mendgraph_cassette.context(tmp_path)) as session:
        session.work("Mend add.")
        outcome = session.result().outcome
    assert (outcome.kind, outcome.reason) == ("FINISHED", "answered")
    for path in ["calc.py"]:
        assert (tmp_path / path).read_bytes() == (files / "after" / path).read_bytes()
    for path in ["notes.txt"]:
        assert not (tmp_path / path).exists()
'''
    )


def test_a_run_without_files_needs_none() -> None:
    text = text_of(run_of(has_files=False, left=(), gone=()))
    assert "shutil" not in text
    assert "Path" not in text
    assert text.endswith('== ("FINISHED", "answered")\n')


@pytest.mark.parametrize("request_text", ['Say "hi".', "back\\slash", "two\nlines", "x'''y", "snow \u2603", "\x1b[0m"])
def test_any_request_is_a_literal(request_text: str) -> None:
    tree = ast.parse(text_of(run_of(requests=(request_text,))))
    assert request_text in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def test_many_settings_have_a_line_each() -> None:
    given = {
        "max_steps": 3,
        "mode": "read-only",
        "allowed_programs": ("make", "git"),
        "answer_schema": {"type": "string"},
    }
    text = text_of(run_of(given=given))
    assert "        mode=\"read-only\",\n        allowed_programs=('make', 'git'),\n" in text
    ast.parse(text)


def test_only_what_the_fixture_does_not_give_is_said() -> None:
    context = AgentContext(
        workspace="/w", base_url="http://u/v1", model="m", protocol="text", edit_form="replace", max_steps=3
    )
    given = settings_in_test(context, PINNED)
    assert given == {"evidence": True, "max_steps": 3}
    assert context_on(PINNED, given, "/w", "http://u/v1") == context


def test_what_was_pinned_may_be_told_otherwise() -> None:
    context = AgentContext(workspace="/w", base_url="http://u/v1", model="m", evidence=False)
    given = settings_in_test(context, PINNED)
    assert given == {"protocol": "auto", "edit_form": "auto"}
    assert context_on(PINNED, given, "/w", "http://u/v1") == context
