"""What is wrong with the cassettes of a folder."""

import json
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange, parse, render
from mendgraph.graph.cassettes.cassette_lint import RECORD_AGAIN, LintFinding, drift, lint_cassettes, orphans
from mendgraph.graph.langchain.openai_chat import EndpointChat
from mendgraph.nodes.execute_tools.registry import ActionRegistry
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode, ToolSpec
from tests.architecture.product import ROOT

KEY = "sk-" + "a1B2" * 8
OURS = (ROOT / "cassettes/bug_repaired/text.yaml").read_text(encoding="utf-8")


def exchange(said: str = "hello", answered: str = "hi", status: int = 200) -> Exchange:
    return Exchange(
        method="POST",
        path="/v1/chat/completions",
        request=f'{{"said": "{said}"}}'.encode(),
        status=status,
        headers={},
        response=answered.encode(),
    )


def text(*exchanges: Exchange) -> str:
    return render(CassetteFile(recorded_from="a test", exchanges=exchanges))


def found(root: Path, content: str, name: str = "tests/test_a/test_it.yaml") -> list[LintFinding]:
    """The findings of one cassette, whose test there is."""
    (root / "tests").mkdir()
    (root / "tests/test_a.py").write_text("def test_it(): ...\n", encoding="utf-8")
    path = root / "cassettes" / name
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    findings = lint_cassettes("cassettes", str(root))
    assert not isinstance(findings, ToolError), findings
    assert all(each.path == f"cassettes/{name}" for each in findings)
    return list(findings)


def test_a_good_cassette_has_no_finding(tmp_path: Path) -> None:
    assert found(tmp_path, text(exchange())) == []


def test_a_file_that_is_no_text_is_a_finding(tmp_path: Path) -> None:
    assert found(tmp_path, text(exchange())) == []
    (tmp_path / "cassettes/tests/test_a/test_it.yaml").write_bytes(b"\xff\xfe")
    findings = lint_cassettes("cassettes", str(tmp_path))
    assert not isinstance(findings, ToolError)
    remedy = f"{RECORD_AGAIN}, or take it back from version control"
    path = "cassettes/tests/test_a/test_it.yaml"
    assert findings == (LintFinding(path, 1, "is not UTF-8 text (line 1)", remedy),)


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (text(exchange(said=KEY)), 8, "holds a secret"),
        (text(exchange(said="/home/me/x")), 8, "holds a home directory"),
        ("recorded_from: [", 1, "is not YAML (line 2, column 1)"),
        ("a: 1\n", 1, "is no cassette of version 1"),
    ],
)
def test_a_finding_has_its_line_and_its_remedy(tmp_path: Path, content: str, line: int, what: str) -> None:
    (finding,) = found(tmp_path, content)
    assert (finding.line, finding.what[: len(what)]) == (line, what)
    assert finding.remedy
    assert KEY not in repr(finding)


@pytest.mark.parametrize(
    ("before", "after", "whats"),
    [
        ("settings:", "settings:\n  protocol: foo", ["has settings.protocol that no run can have (Input should be "]),
        ('"model"', '"tools": [5],\n        "model"', []),
        ('"messages": [', '"messages": [5, ', []),
    ],
    ids=["protocol", "tools", "messages"],
)
def test_what_somebody_made_of_a_cassette_by_hand_is_no_crash(
    tmp_path: Path, before: str, after: str, whats: list[str]
) -> None:
    content = OURS.replace("interactions:", "settings:\n  model: m\ninteractions:", 1)
    content = content.replace(f"{before}", after, 1)
    findings = found(tmp_path, content)
    assert [each.what[: len(what)] for each, what in zip(findings, whats, strict=True)] == whats
    assert all(each.remedy.startswith(RECORD_AGAIN) for each in findings)


def test_a_value_of_the_environment_is_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "plum-42-orchard-7")
    monkeypatch.setenv("SOME_API_KEY", "correct-horse-battery")
    (finding,) = found(tmp_path, text(exchange(said="correct-horse-battery")))
    assert finding.what == "holds a secret of this environment"


def test_drift_is_told_at_the_first_exchange(tmp_path: Path) -> None:
    assert found(tmp_path / "", OURS) == []
    (path,) = (tmp_path / "cassettes").rglob("*.yaml")
    path.write_text(OURS.replace("Read a file before", "Look at a file before"), encoding="utf-8")
    findings = lint_cassettes("cassettes", str(tmp_path))
    assert not isinstance(findings, ToolError)
    assert [(each.line, each.what.partition(":")[0]) for each in findings] == [(3, "this version sends something else")]


def test_what_drift_does_not_know_is_a_note(tmp_path: Path) -> None:
    asked = [exchange().model_copy(update={"path": path}) for path in ("/v1/messages", "/api/chat")]
    (finding,) = found(tmp_path, text(*asked))
    what = "drift was not looked for: it is known for /chat/completions, and this begins with POST /v1/messages"
    assert finding == LintFinding(finding.path, 3, what, "its test tells of every request that differs", note=True)


def test_headers_that_no_recording_keeps_are_found(tmp_path: Path) -> None:
    headers = {"content-type": "a", "x-api-key": "short"}
    content = text(exchange().model_copy(update={"request_headers": headers, "headers": {"set-cookie": "a"}}))
    by_hand = content.replace("x-api-key:", "X-Api-Key:").replace(
        "      set-cookie:\n      - a", "      ? set-cookie\n      : a"
    )
    findings = found(tmp_path, by_hand)
    lines = by_hand.split("\n")
    assert [(each.line, each.what) for each in findings] == [
        (1, "holds the header set-cookie"),
        (lines.index("      X-Api-Key:") + 1, "holds the header x-api-key"),
    ]
    assert all(each.remedy == f"remove it, or {RECORD_AGAIN}" for each in findings)


@pytest.mark.parametrize("key", ["sk-ant-api03-" + "a1B2c3D4e5-" * 4, "AIza" + "a1B2-" * 7, "xai-" + "a1B2" * 8])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1beta/models/m:generateContent", "/api/chat"])
def test_keys_are_found_whichever_api_it_is(tmp_path: Path, key: str, path: str) -> None:
    findings = found(tmp_path, text(exchange(answered=f"key {key}").model_copy(update={"path": path})))
    assert [each.note for each in findings] == [True, False]
    assert findings[1].what == "holds a secret"


def test_a_cassette_without_a_test_is_an_orphan(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, text(exchange()), "tests/test_a/test_gone.yaml")
    assert (finding.line, finding.what) == (1, "no test plays it")


def test_the_files_of_a_run_are_no_cassettes(tmp_path: Path) -> None:
    assert found(tmp_path, "a: 1\n", "tests/test_a/files/before/config.yaml") == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    findings = lint_cassettes("nowhere", str(tmp_path))
    assert isinstance(findings, ToolError)
    assert findings.code is ToolErrorCode.NOT_FOUND
    assert "'nowhere'" in findings.message


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


def test_changed_tools_are_drift() -> None:
    def change(request: JsonMap) -> None:
        functions = [tool["function"] for tool in request["tools"]]
        functions[0]["description"] = "It was another one."
        functions[1]["name"] = "list_old"
        del request["tools"][2]

    lines = drift(changed(recorded("bug_repaired/native"), change), specs())
    assert lines[0] == "tools: list_old was recorded, and there is no such tool any more"
    assert lines[1].startswith("tools[read_file].function.description: recorded 'It was another one.'")
    assert lines[2:] == []


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
    for place, junk in islice(product(places, JUNK), 0, None, 7):

        def change(request: JsonMap, place: Any = place, junk: Any = junk) -> None:
            inner: Any = request
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = junk

        assert isinstance(drift(changed(cassette, change), ours), list)


MODULE = """
import pytest

@pytest.mark.mendgraph_cassette("sums")
def test_adds(): ...

class TestBig:
    async def test_adds(self): ...

CASES = [f"{scenario}/text" for scenario in ("repair", "loop")]
OTHER = "whole/name"
"""


@pytest.mark.parametrize(
    ("cassette", "alone"),
    [
        ("tests/test_calc/test_adds.yaml", False),
        ("tests/test_calc/sums.yaml", False),
        ("tests/test_calc/sums-one.yaml", False),
        ("tests/test_calc/TestBig.test_adds.yaml", False),
        ("tests/test_calc/test_adds-one-two.yaml", False),
        ("tests/test_calc/test_addsup.yaml", True),
        ("tests/test_calc/test_gone.yaml", True),
        ("tests/test_gone/test_adds.yaml", True),
        ("repair/text.yaml", False),
        ("other/text.yaml", True),
        ("whole/name.yaml", False),
        ("whole/other.yaml", True),
        ("sums.yaml", False),
        ("lonely.yaml", True),
    ],
)
def test_a_cassette_is_played_by_what_names_it(cassette: str, alone: bool) -> None:
    assert orphans([cassette], {"tests/test_calc.py": MODULE}) == [cassette] * alone
