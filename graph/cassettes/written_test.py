"""The pytest file that plays a run's cassette again: what a person would have written. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graph.cassettes.pinned import context_on
from graph.context import AgentContext
from nodes.records import JsonMap, Outcome

_ROOM = 55
"""Characters for further arguments on the line of the session."""


@dataclass(frozen=True)
class TestedRun:
    """What the test says: settings, each turn's request, the last end, the files that the run left, or took away."""

    __test__ = False

    name: str
    run_id: str
    given: JsonMap
    requests: tuple[str, ...]
    outcome: Outcome
    has_files: bool
    left: tuple[str, ...]
    gone: tuple[str, ...]


def settings_in_test(context: AgentContext, pinned: Mapping[str, str]) -> JsonMap:
    """The settings of a run that the fixture does not give by itself, in the order of the form."""
    usual = context_on(pinned, {}, context.workspace, context.base_url or "")
    return {
        name: value for name in AgentContext.model_fields if (value := getattr(context, name)) != getattr(usual, name)
    }


def render_test(run: TestedRun) -> str:
    """The text of the test file."""
    lines = [
        f'"""The run {run.run_id[:8]} once more, on what its model said."""',
        "",
        *(["import shutil"] if run.has_files else []),
        *(["from pathlib import Path"] if run.has_files or run.left else []),
        *([""] if run.has_files or run.left else []),
        "import pytest",
        "",
        "from graph import Session",
        "",
        "",
        f'@pytest.mark.mendgraph_cassette("{run.name}")',
        f"def test_{run.name}(mendgraph_cassette, tmp_path):",
        *(['    files = Path(mendgraph_cassette.path).parent / "files"'] if run.has_files or run.left else []),
        *(['    shutil.copytree(files / "before", tmp_path, dirs_exist_ok=True)'] if run.has_files else []),
        f"    with Session(mendgraph_cassette.context(tmp_path{_arguments(run.given)})) as session:",
        *(f"        session.work({_text(request)})" for request in run.requests),
        "        outcome = session.result().outcome",
        f'    assert (outcome.kind, outcome.reason) == ("{run.outcome.kind.value}", "{run.outcome.reason.value}")',
        *_asserted(run.left, 'assert (tmp_path / path).read_bytes() == (files / "after" / path).read_bytes()'),
        *_asserted(run.gone, "assert not (tmp_path / path).exists()"),
    ]
    return "\n".join(lines) + "\n"


def _asserted(paths: Sequence[str], line: str) -> list[str]:
    return [f"    for path in [{', '.join(map(_text, paths))}]:", f"        {line}"] if paths else []


def _arguments(given: JsonMap) -> str:
    """Further arguments of a call that has one already: on its line, or each on a line of its own."""
    arguments = [f"{name}={_literal(value)}" for name, value in given.items()]
    line = "".join(f", {each}" for each in arguments)
    if len(line) <= _ROOM:
        return line
    return ",\n" + "".join(f"        {each},\n" for each in arguments) + "    "


def _literal(value: Any) -> str:
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    """A literal in double quotes where it can be one; whatever is not printable is escaped."""
    plain = text.isprintable() and not {'"', "\\"} & {*text}
    return f'"{text}"' if plain else repr(text)
