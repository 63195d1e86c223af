"""Whether this version would still send what was recorded."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from graph.cassettes.cassette_file import CassetteFile, parse
from graph.cassettes.drift import drift
from graph.langchain.openai_chat import EndpointChat
from nodes.execute_tools.registry import ActionRegistry
from nodes.execute_tools.tools import default_tools
from nodes.records import JsonMap, ToolSpec
from tests.architecture.house import ROOT


def specs() -> list[ToolSpec]:
    return list(ActionRegistry(default_tools()).specs())


def recorded(name: str) -> CassetteFile:
    found = parse((ROOT / f"cassettes/{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, CassetteFile)
    return found


def changed(cassette: CassetteFile, change: Any) -> CassetteFile:
    """The cassette with another first request."""
    first = cassette.exchanges[0]
    request: JsonMap = json.loads(first.request)
    change(request)
    other = first.model_copy(update={"request": json.dumps(request).encode()})
    return cassette.model_copy(update={"exchanges": (other, *cassette.exchanges[1:])})


@pytest.mark.parametrize("path", sorted((ROOT / "cassettes").glob("*/*.yaml")), ids=lambda path: path.parent.name)
def test_our_own_cassettes_have_not_drifted(path: Path) -> None:
    found = parse(path.read_text(encoding="utf-8"))
    assert isinstance(found, CassetteFile)
    assert drift(found, specs()) == []


def test_a_changed_prompt_is_drift() -> None:
    def change(request: JsonMap) -> None:
        system = request["messages"][0]
        system["content"] = system["content"].replace("Read a file", "Look at a file")

    for name in ("bug_repaired/text", "bug_repaired/native"):
        (line,) = drift(changed(recorded(name), change), specs())
        assert line.startswith("messages[0] (system).content, line ")
        assert "Look at a file" in line


def test_a_changed_example_is_drift() -> None:
    def change(request: JsonMap) -> None:
        request["messages"][1]["content"] = "Another example"

    (line,) = drift(changed(recorded("bug_repaired/local_blocks"), change), specs())
    assert line.startswith("messages[1] (user).content")


def test_changed_tools_are_drift() -> None:
    def change(request: JsonMap) -> None:
        functions = [tool["function"] for tool in request["tools"]]
        functions[0]["description"] = "It was another one."
        functions[1]["name"] = "list_old"
        del request["tools"][2]

    lines = drift(changed(recorded("bug_repaired/native"), change), specs())
    assert lines[0] == "tools: list_old was recorded, and there is no such tool any more"
    assert lines[1].startswith("tools[read_file].function.description: recorded 'It was another one.'")
    assert lines[2:] == [
        "tools: glob_files is sent and was not recorded",
        "tools: list_files is sent and was not recorded",
    ]


def test_changed_stop_words_are_drift() -> None:
    def change(request: JsonMap) -> None:
        request["stop"] = ["END"]

    lines = drift(changed(recorded("bug_repaired/local_blocks"), change), specs())
    assert lines[0].startswith("stop[0], line 1: recorded 'END'")


def test_a_change_of_what_the_chat_model_sends_is_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    made = EndpointChat._get_request_payload

    def changed_payload(chat: EndpointChat, *given: Any, **more: Any) -> JsonMap:
        payload = made(chat, *given, **more)
        tools = [{**tool, "strict": True} for tool in payload["tools"][:1]]
        changes = {"stream_options": {"include_usage": False}, "stop": ["END"]}
        return {**payload, **changes, "tools": [*tools, *payload["tools"][1:]], "user": "nobody"}

    monkeypatch.setattr(EndpointChat, "_get_request_payload", changed_payload)
    assert drift(recorded("bug_repaired/native"), specs()) == [
        "stream_options.include_usage: recorded true, sent false",
        'stop: not recorded, sent ["END"]',
        "tools[read_file].strict: not recorded, sent true",
    ]


def test_what_depends_on_the_run_is_none() -> None:
    def change(request: JsonMap) -> None:
        request["temperature"], request["max_tokens"], request["seed"] = 0.5, 100, 7
        request["messages"][1]["content"] = "Another task."

    assert drift(changed(recorded("bug_repaired/native"), change), specs()) == []


def test_permissions_of_one_run_are_none() -> None:
    def change(request: JsonMap) -> None:
        spec = next(each for each in specs() if each.name == "run_command")
        function = {
            "name": spec.name,
            "description": f"{spec.description} Allowed: make.",
            "parameters": spec.parameters,
        }
        names = [each.name for each in specs()]
        place = sum(names.index(tool["function"]["name"]) < names.index(spec.name) for tool in request["tools"])
        request["tools"].insert(place, {"type": "function", "function": function})

    assert drift(changed(recorded("bug_repaired/native"), change), specs()) == []


@pytest.mark.parametrize(
    "request_body", [b"", b"no JSON", b"[]", b"{}", b'{"messages": [{"role": "system", "content": "Hi"}]}']
)
def test_requests_of_others_have_none(request_body: bytes) -> None:
    first = recorded("bug_repaired/text").exchanges[0].model_copy(update={"request": request_body})
    assert drift(CassetteFile(recorded_from="somebody", exchanges=(first,)), specs()) == []


JUNK = [None, 5, "x", [], [5], {}, {"x": 5}, {"required": ["value"]}, {"function": {"name": [], "parameters": 5}}]


def parts(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of a JSON document, each as the way to it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, each in inner for place in [(*at, key), *parts(each, (*at, key))]]


@pytest.mark.parametrize("name", ["bug_repaired/text", "bug_repaired/native"])
def test_no_request_that_was_changed_by_hand_makes_it_raise(name: str) -> None:
    cassette, ours = recorded(name), specs()
    body = json.loads(cassette.exchanges[0].request)
    places = [place for place in parts(body) if "properties" not in place[:-2]]
    for place, junk in product(places, JUNK):

        def change(request: JsonMap, place: Any = place, junk: Any = junk) -> None:
            inner: Any = request
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = junk

        assert isinstance(drift(changed(cassette, change), ours), list)


@pytest.mark.parametrize("tool", [5, {}, {"function": 5}, {"function": {"name": "a", "parameters": 5}}])
def test_tools_of_another_shape_are_not_ours(tool: Any) -> None:
    def change(request: JsonMap) -> None:
        request["stop"], request["tools"] = ["END"], [*request["tools"], tool]

    assert drift(changed(recorded("bug_repaired/native"), change), specs()) == []


def test_a_cassette_without_exchanges_has_none() -> None:
    assert drift(CassetteFile(recorded_from="nobody"), specs()) == []
