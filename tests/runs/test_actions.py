"""Spec 4's actions and validators in whole runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.runs.events import Denied, Ended
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.execute_tools.registry import Action, Validator
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import Effect, JsonMap, Protocol
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, use
from tests.runs.tool_play import DONE, PROTOCOLS, scripted, shown


class Lookup:
    """Look a word up."""

    name = "lookup"
    effect = Effect.READ

    def execute(self, word: str) -> str:
        return f"{word}: a thing"


def open_session(
    root: Path,
    model: ScriptedModel,
    protocol: Protocol = Protocol.NATIVE,
    *,
    validators: Mapping[str, Validator] | None = None,
    actions: tuple[Action, ...] = (),
) -> Session:
    context = AgentContext(workspace=str(root), protocol=protocol.value, evidence=False)
    return Session(context, model=model, arg_validators=validators or {}, tools=(*default_tools(), *actions))


def write(path: str, content: str) -> Use:
    return use(("write_file", {"path": path, "content": content}))


def capitals(args: JsonMap) -> JsonMap:
    if not args["content"]:
        raise ValueError("content must be non-empty")
    return {**args, "content": args["content"].upper()}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_validator_of_a_tool_normalises_and_its_error_goes_to_the_model(tmp_path: Path, protocol: Protocol) -> None:
    model = scripted(protocol, write("new.txt", ""), write("new.txt", "x\n"), DONE)
    with open_session(tmp_path, model, protocol, validators={"write_file": capitals}) as session:
        ended = session.work("Write new.txt.")
    assert isinstance(ended, Ended)
    assert ended.outcome.changed_files == ("new.txt",)
    assert (tmp_path / "new.txt").read_text(encoding="utf-8") == "X\n"
    assert "content must be non-empty" in str(model.calls[1].prompt.messages)


def test_file_rules_judge_the_arguments_that_a_validator_gives(tmp_path: Path) -> None:
    redirection: dict[str, Validator] = {"write_file": lambda args: {**args, "path": ".env"}}
    model = scripted(Protocol.NATIVE, write("new.txt", "x\n"), DONE)
    with open_session(tmp_path, model, validators=redirection) as session:
        events = list(session.stream("Write new.txt."))
    assert [event.verdict.rule for event in events if isinstance(event, Denied)] == ["env_file"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("validators", "error"), [({"nope": capitals}, ValueError), ({"write_file": "no function"}, TypeError)]
)
def test_validator_that_fits_no_tool_is_refused(validators: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"nope|arg_validators"):
        build_graph(arg_validators=validators)


def test_action_of_spec_4_is_a_tool_of_a_run(tmp_path: Path) -> None:
    model = scripted(Protocol.NATIVE, use(("lookup", {"word": "cart"})), DONE)
    with open_session(tmp_path, model, actions=(Lookup(),)) as session:
        session.work("What is a cart?")
    assert "cart: a thing" in shown(model)
