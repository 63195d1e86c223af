"""A request gets less than its user may have, never more."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError

from mendgraph.graph import agent
from mendgraph.graph.configuration.context import SETTINGS, AgentContext
from mendgraph.graph.configuration.loading import CONFIG_VARIABLE, widening
from mendgraph.graph.configuration.narrowing import (
    ROOT_VARIABLE,
    Admission,
    client_context,
    given_context,
    narrowed,
    operator_allowance,
    refusal,
    run_id_of,
    too_wide,
)
from mendgraph.graph.fleet.serving.tenants import Tenant
from mendgraph.graph.machine.build import build_graph, build_machine
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.records import StopCause, StopReason
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_server import ScriptedServer

BASE = AgentContext(
    account="ann",
    model="m",
    base_url="http://models/v1",
    mode="ask",
    max_steps=9,
    max_cost_usd=1.5,
    allowed_programs=("make", "pytest"),
    tool_quotas={"read_file": 5},
)
ANN = Tenant("ann", (), BASE, ("m", "n", "o @ https://other/v1")).allowance


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        ({"max_steps": 400}, {"max_steps": 9}),
        ({"max_steps": None, "max_cost_usd": None}, {}),
        ({"model": "n"}, {"model": "n"}),
        ({"model": "m", "base_url": "http://models/v1", "account": "ann"}, {}),
        ({"fallback_models": ["n", "o @ https://other/v1"]}, {"fallback_models": ("n", "o @ https://other/v1")}),
        ({"allowed_programs": ["make"]}, {"allowed_programs": ("make",)}),
        ({"response_format": {"type": "string"}}, {"response_format": {"type": "string"}}),
        ({"system_prompt": "Be terse."}, {"system_prompt": "Be terse."}),
    ],
)
def test_less_is_had_for_the_asking(asked: dict[str, Any], held: dict[str, Any]) -> None:
    assert narrowed(asked, ANN, "/w") == BASE.model_copy(update={**held, "workspace": "/w"})


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"mode": "auto"}, "mode"),
        ({"model": "dear"}, "model"),
        ({"fallback_models": ["n @ https://elsewhere/v1"]}, "fallback_models"),
        ({"base_url": "http://elsewhere/v1"}, "base_url"),
        ({"allowed_programs": ["make", "sh"]}, "allowed_programs"),
        ({"audit": False}, "audit"),
    ],
)
def test_more_is_refused_by_name(asked: dict[str, Any], named: str) -> None:
    said = f"This server does not allow ann what the request sets: {named}. Leave it out."
    assert narrowed(asked, ANN, "/w") == StopCause(reason=StopReason.INVALID_REQUEST, message=said)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_steps": 0}, "max_steps: Input should be greater than or equal to 1."),
        ({"usd_per_million_input": 1}, "context: usd_per_million_input and usd_per_million_output are given together."),
    ],
)
def test_what_does_not_fit_is_refused(asked: dict[str, Any], said: str) -> None:
    assert narrowed(asked, ANN, "/w") == refusal(f"The request's context does not fit: {said}")


NAMES = sorted(AgentContext.model_fields.keys() - {"workspace"})
VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(-1, 2**54), st.floats(0, 1e6), st.sampled_from(["auto", "m", "few"])),
    st.lists(st.sampled_from(["make", "sh", "example.com", "n"]), max_size=2),
)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": "object", "properties": {"a": {"items": [{"pattern": "a"}]}}},
        {"patternProperties": {"(a+)+$": {}}},
    ],
)
def test_answers_schema_has_no_patterns(schema: dict[str, Any]) -> None:
    """One match of such a pattern with what the model says would hold the whole server."""
    said = "response_format may have no `pattern` or `patternProperties` on this server: leave them out."
    assert narrowed({"response_format": schema}, ANN, "/w") == refusal(said)
    its = ANN._replace(context=BASE.model_copy(update={"response_format": schema}))
    assert isinstance(narrowed({"response_format": schema}, its, "/w"), AgentContext)

    named = {"properties": {"pattern": {"type": "string"}}}
    assert isinstance(narrowed({"response_format": named}, ANN, "/w"), AgentContext)


def test_operators_words_for_the_system_prompt_stay() -> None:
    its = ANN._replace(context=BASE.model_copy(update={"system_prompt": "Be kind."}))
    refused, kept = narrowed({"system_prompt": "Be terse."}, its, "/w"), narrowed({}, its, "/w")
    assert (isinstance(refused, StopCause), getattr(kept, "system_prompt", "")) == (True, "Be kind.")


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_nothing_that_is_asked_widens_what_is_allowed(asked: dict[str, Any]) -> None:
    found = narrowed(asked, ANN, "/w")
    if isinstance(found, AgentContext):
        assert (found.account, found.base_url, found.workspace) == ("ann", BASE.base_url, "/w")
        assert too_wide(found, ANN) == ()
        limits = {name: getattr(found, name) for name, each in SETTINGS.items() if each.trust == "less"}
        assert widening(limits, BASE) == ()


pytestmark = pytest.mark.usefixtures("folder")

ELSEWHERE = "http://elsewhere.test/v1"
OURS = "http://models.test/v1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a server, whose operator has set nothing; `site` lies in it."""
    root = tmp_path / "server"
    (root / "site").mkdir(parents=True)
    (root / "out").symlink_to(tmp_path)
    monkeypatch.chdir(root)
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    operator_allowance.cache_clear()
    yield root
    operator_allowance.cache_clear()


def configured(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Let the operator allow this."""
    path = folder.parent / "config.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    operator_allowance.cache_clear()


def had(**asked: Any) -> Any:
    return client_context(AgentContext(**asked), None)


def refused(**asked: Any) -> str:
    """Why there is no context for this."""
    found = had(**asked)
    assert isinstance(found, StopCause), found
    assert found.reason is StopReason.INVALID_REQUEST
    return found.message


@pytest.mark.parametrize(
    "asked",
    [
        {"base_url": ELSEWHERE},
        {"fallback_models": ("m @ http://elsewhere.test/v1",)},
        {"allowed_programs": ("sh",)},
        {"model_kwargs": {"service_tier": "priority"}},
        {"tool_timeouts_s": {"run_command": 3_000.0}},
        {"window_tokens": 9_000_000},
    ],
    ids=str,
)
def test_what_widens_is_refused_by_name_with_the_remedy(asked: dict[str, Any]) -> None:
    said = refused(**asked)
    assert "This server does not allow its clients what the request sets: " in said
    assert set(said.partition("sets: ")[2].partition(".")[0].split(", ")) <= set(asked)
    assert "in a file that MENDGRAPH_CONFIG names and start the server again" in said


@pytest.mark.parametrize("workspace", ["site/../..", "/", "out", "../server-2"])
def test_workspace_lies_in_the_servers_folder(folder: Path, workspace: str) -> None:
    (folder.parent / "server-2").mkdir()
    assert f"is outside '{folder}', the folder of this server" in refused(workspace=workspace)
    assert ROOT_VARIABLE in refused(workspace=workspace)


def test_what_the_operator_allows_holds_and_may_be_narrowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = "max_calls_per_turn = 40\nmax_cost_usd_per_day = 5.0\n"
    configured(monkeypatch, folder, f'base_url = "{OURS}"\nallowed_programs = ["make"]\nmode = "ask"\n{limits}')
    base = had()
    assert (base.base_url, base.allowed_programs, base.mode, base.max_calls_per_turn) == (OURS, ("make",), "ask", 40)
    asked = had(allowed_programs=(), mode="read-only", max_calls_per_turn=3, max_cost_usd_per_day=99.0, model="any")
    assert (asked.allowed_programs, asked.mode, asked.max_calls_per_turn) == ((), "read-only", 3)
    assert (asked.max_cost_usd_per_day, asked.model, asked.base_url) == (5.0, "any", OURS)
    assert "allowed_programs. Leave it out, or allow it in '" in refused(allowed_programs=("make", "sh"))


def test_form_may_be_sent_as_it_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all its defaults, some of which the operator has set to something else."""
    configured(monkeypatch, folder, f'base_url = "{OURS}"\nmodel = "m"\nmode = "ask"\nmax_seconds = 60.0\n')
    shown = {name: field.get_default(call_default_factory=True) for name, field in AgentContext.model_fields.items()}
    assert had(**shown) == had()


def test_endpoint_of_the_environment_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{OURS}/")
    assert had(base_url=OURS, model="m").base_url is None
    assert "base_url" in refused(base_url=f"{OURS}/../other")


@pytest.mark.parametrize(
    ("own", "asked", "allowed"),
    [
        ("", "anthropic:claude-sonnet-4-6", True),
        ("", "local", True),
        (f'base_url = "{OURS}"', "anthropic:claude-sonnet-4-6", False),
        (f'base_url = "{OURS}"\nmodel = "anthropic:c"', "anthropic:d", True),
        (f'base_url = "{OURS}"\nmodel = "anthropic:c"', "gpt-5", False),
    ],
)
def test_model_is_chosen_where_its_key_goes_to_its_own_endpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, own: str, asked: str, allowed: bool
) -> None:
    configured(monkeypatch, folder, own)
    assert isinstance(had(model=asked), AgentContext) is allowed


def test_graph_that_is_built_with_a_context_allows_that(folder: Path) -> None:
    bound = AgentContext(workspace="site", allowed_programs=("make",))
    found: Any = client_context(AgentContext(allowed_programs=("make",)), bound)
    assert (found.allowed_programs, found.workspace) == (("make",), str(folder / "site"))
    said: Any = client_context(AgentContext(allowed_programs=("sh",)), bound)
    assert said.message.endswith(
        "allowed_programs. Leave it out, or allow it in build_graph(context=AgentContext(...))."
    )
    assert client_context({"user": "ada"}, bound) == {"user": "ada"}


TOLD: Any = {"messages": [("user", "Hi.")]}
BY_SERVER: Any = {"configurable": {"thread_id": "t", "graph_id": "mendgraph", "assistant_id": "a"}}


@pytest.mark.parametrize("served", ["by any server", "as its server says"])
def test_no_key_and_no_request_leaves_for_an_endpoint_of_the_clients(
    monkeypatch: pytest.MonkeyPatch, served: str
) -> None:
    """The same context, given in Python, is the operator's own."""
    monkeypatch.setenv("OPENAI_API_KEY", "the-key-of-the-operator-0123")
    with ScriptedServer([Say("Hello.")]) as theirs:
        context = AgentContext(base_url=theirs.base_url, model="m", read_ahead=False, evidence=False)
        machine = agent.graph if served == "by any server" else build_graph(InMemorySaver())
        config: Any = {} if served == "by any server" else BY_SERVER
        ended: Any = machine.invoke(TOLD, config, context=context)
        outcome = ended["outcome"]
        assert (outcome.kind.value, outcome.reason.value) == ("SYSTEM_ERROR", "invalid_request")
        assert "base_url" in outcome.message
        assert theirs.requests == []
        own: Any = build_graph().invoke(TOLD, context=context)
        assert (own["outcome"].answer, len(theirs.requests)) == ("Hello.", 1)


def test_threads_context_is_no_clients_to_write() -> None:
    graph, _ = build_machine(InMemorySaver(), model=None, tools=None, rules=DEFAULT_GUARDRAIL_RULES, served=True)
    config: Any = {"configurable": {"thread_id": "t"}}
    with pytest.raises(InvalidUpdateError, match="send another one with the next request"):
        graph.update_state(config, {"context": {"allowed_programs": ["sh"]}}, as_node="begin_turn")


def test_refused_turn_leaves_no_context_to_go_on_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, folder, 'mode = "read-only"\n')
    call = Calls([("write_file", '{"path": "a.txt", "content": "x"}')])
    with ScriptedServer([call, Say("Done.")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        graph, _ = build_machine(InMemorySaver(), model=None, tools=None, rules=DEFAULT_GUARDRAIL_RULES, served=True)
        config: Any = {"configurable": {"thread_id": "t"}}
        said = {"messages": [("user", "Write a.txt.")]}
        refused_one: Any = graph.invoke(cast("Any", said), config, context=cast("Any", {"base_url": ELSEWHERE}))
        assert refused_one["outcome"].reason is StopReason.INVALID_REQUEST
        graph.update_state(config, {**said, "stop": None}, as_node="begin_turn")
        with suppress(KeyError):  # there is no context
            graph.invoke(None, config)
        assert not (folder / "a.txt").exists()
        assert not server.requests


# --- The context of a turn

GIVEN, BOUND, STORED = (AgentContext(workspace=name) for name in ("given", "bound", "stored"))


@dataclass
class Mine:
    user: str = "ada"


@pytest.mark.parametrize("stored", [STORED, None], ids=["stored", "new"])
@pytest.mark.parametrize("bound", [BOUND, None], ids=["bound", "free"])
def test_what_comes_with_the_run_goes_first(bound: AgentContext | None, stored: AgentContext | None) -> None:
    assert given_context(GIVEN, bound, stored) is GIVEN
    assert given_context(None, bound, stored) == (bound or stored or AgentContext())


def test_what_a_server_has_decided_holds() -> None:
    refused = StopCause(reason=StopReason.INVALID_REQUEST, message="No.")
    assert given_context(Admission(GIVEN, "ada"), BOUND, STORED) is GIVEN
    assert given_context(Admission(refused, "ada"), BOUND, STORED) is refused
    assert Admission(GIVEN, "ada").run_id("t1") == "ada/t1"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Mine(), "given a context of the type Mine, which is no AgentContext"),
        ({"user": "ada"}, "no AgentContext (user: there is no such setting"),
        ({"base_url": "https://a:secret-password@b/v1"}, "(base_url: base_url may hold no"),
    ],
    ids=["type", "field", "value"],
)
def test_foreign_context_is_refused_with_the_remedy(given: object, words: str) -> None:
    """Not taken for none: the agent would work in the folder of the process."""
    said = given_context(given, None, STORED)
    assert isinstance(said, str)
    assert words in said
    assert "build_graph(context=AgentContext(...))" in said
    assert "secret-password" not in said


CAUSE = StopCause(reason=StopReason.WORKSPACE_BUSY, message="Later.")


@pytest.mark.parametrize(
    ("info", "context", "run_id"),
    [
        (None, None, ""),
        (SimpleNamespace(thread_id=None, checkpoint_ns=""), None, ""),
        (SimpleNamespace(thread_id="t1", checkpoint_ns="begin_turn:1"), AgentContext(), "t1"),
        (SimpleNamespace(thread_id="t1", checkpoint_ns="a:1|begin_turn:2"), AgentContext(), "t1|a:1"),
        (SimpleNamespace(thread_id="t1", checkpoint_ns="begin_turn:1"), Admission(CAUSE, "ann"), "ann/t1"),
    ],
)
def test_run_is_its_thread_and_its_owners(info: object, context: object, run_id: str) -> None:
    assert run_id_of(cast("Any", SimpleNamespace(execution_info=info, context=context))) == run_id


def test_settings_that_are_wrong_allow_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, folder, 'mode = "root"')
    assert "This server's settings are wrong: " in refused()


def test_agents_own_context_goes_before_another_graphs() -> None:
    assert given_context(Mine(), BOUND, STORED) is BOUND
    assert given_context({"user": "ada"}, BOUND, None) is BOUND
