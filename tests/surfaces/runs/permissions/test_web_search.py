"""The tool `web_search` in runs: who may search, what needs an approval, and what a result allows."""

import json
from pathlib import Path
from typing import Any

import pytest

from mendgraph import AgentContext, Ended, Session, Traced
from mendgraph.graph.configuration.loading import CONFIG_VARIABLE, load_context
from mendgraph.graph.configuration.permissions import list_permissions
from mendgraph.nodes.execute_tools.registry import tool
from mendgraph.nodes.records import Effect, ToolError
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.search_services import KEY, SearchServer
from tests.row_tables import rows
from tests.surfaces.conftest import Command
from tests.surfaces.runs.approval_play import last, requested_calls, session
from tests.vocabulary import JsonMap

PAGE = {"title": "asyncio", "url": "http://127.0.0.1:9/asyncio", "snippet": "Coroutines"}
SEARCH = f"tool: web_search({json.dumps({'query': 'asyncio'})})"
GET = f"tool: http_get({json.dumps({'url': PAGE['url']})})"
AUTO: JsonMap = {"mode": "auto", "web_search": "searxng"}


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    for variable in ("SEARXNG_URL", "BRAVE_API_KEY", "TAVILY_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    with SearchServer("searxng", [PAGE]) as double:
        monkeypatch.setenv("SEARXNG_URL", double.url)
        yield double


def results(now: Session) -> list[JsonMap]:
    texts = [message.text for message in now.result().messages if "tool_result(" in message.text]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("tool_result(")]
    return [json.loads(line.removeprefix("tool_result(").removesuffix(")")) for line in lines]


def offered_tools(context: AgentContext) -> dict[str, JsonMap]:
    """The tools of the first request by name."""
    model = ScriptedModel([Say("Done.")])
    with Session(context, model=model, thread_id="t") as now:
        last(now.stream("Look"))
    return {entry["function"]["name"]: entry for entry in model.calls[0].prompt.tools}


def test_search_returns_results_and_allows_none_of_their_hosts(tmp_path: Path, server: SearchServer) -> None:
    with session(tmp_path / "work", SEARCH, GET, "Done.", **AUTO) as now:
        assert isinstance(last(now.stream("Look")), Ended)
        search, refused = results(now)
    assert search["data"] == {"results": [PAGE]}
    assert refused["error"]["code"] == "permission_denied"
    assert server.queries == ["asyncio"]


def test_lone_surrogate_in_a_result_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SearchServer("searxng", [{**PAGE, "title": "async\ud83d"}]) as double:
        monkeypatch.setenv("SEARXNG_URL", double.url)
        with session(tmp_path / "work", SEARCH, "Done.", **AUTO) as now:
            last(now.stream("Look"))
            [search] = results(now)
    assert search["data"] == {"results": [{**PAGE, "title": "async?"}]}


def test_error_of_an_unreachable_service_names_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARXNG_URL", "http://127.0.0.1:9/private-path")
    with session(tmp_path / "work", SEARCH, "Done.", **AUTO) as now:
        last(now.stream("Look"))
        [failed] = results(now)
    assert "the user must check SEARXNG_URL" in failed["error"]["message"]
    assert "private-path" not in failed["error"]["message"]


def test_each_search_is_asked_about_until_the_service_is_allowed(tmp_path: Path, server: SearchServer) -> None:
    root = tmp_path / "work"
    with session(root, SEARCH, SEARCH, "Done.", web_search="searxng") as now:
        (call,) = requested_calls(now.stream("Look"))
        assert (call["rule"], call["arguments"]) == ("ask_before_network", {"query": "asyncio"})
        assert server.queries == []
        assert isinstance(last(now.answer("approve_for_run")), Ended)
    assert server.queries == ["asyncio", "asyncio"]


def test_permission_for_a_service_is_stored_for_its_host(tmp_path: Path, server: SearchServer) -> None:
    root = tmp_path / "work"
    root.mkdir()
    context = AgentContext(
        workspace=str(root), mode="ask", protocol="text", evidence=False, read_ahead=False, web_search="searxng"
    )
    model = ScriptedModel([Say(SEARCH), Say("Done.")])
    with Session(context, model=model, thread_id="t", kept_permissions=True) as now:
        requested_calls(now.stream("Look"))
        last(now.answer("approve_always"))
    permissions = list_permissions(str(root))
    assert not isinstance(permissions, ToolError)
    assert [permission.allows for permission in permissions] == [f"web_search from the host {server.url}"]


@rows(("off", "Web search is off in this run"), ("brave", "brave needs BRAVE_API_KEY"))
def test_search_that_would_fail_is_refused_without_an_approval_request(service: str, part: str, tmp_path: Path) -> None:
    with session(tmp_path / f"work{service}", SEARCH, "Done.", web_search=service) as now:
        events = list(now.stream("Look"))
        assert isinstance(events[-1], Ended)
        [refused] = results(now)
    lacks = [event.payload["reason"] for event in events if isinstance(event, Traced) and "web_search" in event.name]
    assert part in refused["error"]["message"]
    assert [part in reason for reason in lacks] == ([] if service == "off" else [True])


def test_web_search_is_offered_only_if_its_service_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "work"
    root.mkdir()
    without = offered_tools(AgentContext(workspace=str(root)))
    assert offered_tools(AgentContext(workspace=str(root), web_search="tavily")) == without
    monkeypatch.setenv("TAVILY_API_KEY", KEY)
    added = offered_tools(AgentContext(workspace=str(root), web_search="tavily"))
    assert added.keys() - without.keys() == {"web_search"}
    assert len(json.dumps(added["web_search"])) < 300


@tool(effect=Effect.NONE)
def web_search(query: str) -> str:
    """Search a folder of notes."""
    return query.upper()


def test_users_tool_named_web_search_is_kept(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    context = AgentContext(workspace=str(tmp_path / "work"), protocol="text", evidence=False, read_ahead=False)
    model = ScriptedModel([Say(SEARCH), Say("Done.")])
    with Session(context, model=model, tools=[web_search], thread_id="t") as now:
        last(now.stream("Look"))
        [search] = results(now)
    assert "ASYNCIO" in json.dumps(search["data"])


@rows(("", "brave", False), ("brave", "tavily", False), ("brave", "off", True), ("brave", "brave", True))
def test_workspace_settings_can_only_turn_the_search_off(
    user: str, workspace: str, allowed: bool, tmp_path: Path
) -> None:
    folder = tmp_path / f"{user}-{workspace}"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONFIG_VARIABLE, str(folder / "user.toml"))
        (folder / "user.toml").write_text(f'web_search = "{user}"\n' if user else "")
        (folder / ".mendgraph.toml").write_text(f'web_search = "{workspace}"\n')
        context = load_context(str(folder))
    if not allowed:
        assert isinstance(context, ToolError)
        assert "web_search needs your trust" in context.message
        return
    assert isinstance(context, AgentContext)
    assert context.web_search == workspace


def test_command_can_search_and_no_record_has_the_key(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: SearchServer
) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("BRAVE_API_KEY", KEY)
    echo = f"tool: web_search({json.dumps({'query': f'what is {KEY}'})})"
    says = (SEARCH, echo, "Found it.")
    code, out, err = command("--web-search", "searxng", "--protocol", "text", "Search the web", says=says)
    assert (code, "Found it." in out, "web_search 'asyncio'" in out + err) == (0, True, True)
    assert server.queries[0] == "asyncio"
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert KEY.encode() not in stored
