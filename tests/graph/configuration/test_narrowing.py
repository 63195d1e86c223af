"""A request gets less than its user may have, never more."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import START, MessagesState, StateGraph

from mendgraph.graph import agent
from mendgraph.graph.configuration.context import SETTINGS, AgentContext
from mendgraph.graph.configuration.loading import CONFIG_VARIABLE, widening
from mendgraph.graph.configuration.narrowing import (
    ROOT_VARIABLE,
    client_context,
    narrowed,
    operator_allowance,
    refusal,
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


def test_where_nothing_is_asked_all_that_is_allowed_holds() -> None:
    assert narrowed({"workspace": "website"}, ANN, "/srv/ann/website") == BASE.model_copy(
        update={"workspace": "/srv/ann/website"}
    )


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        ({"max_steps": 4}, {"max_steps": 4}),
        ({"max_steps": 400}, {"max_steps": 9}),
        ({"max_steps": None, "max_cost_usd": None}, {}),
        ({"max_seconds": 5}, {"max_seconds": 5}),
        ({"mode": "read-only"}, {"mode": "read-only"}),
        ({"model": "n"}, {"model": "n"}),
        ({"model": "m", "base_url": "http://models/v1", "account": "ann"}, {}),
        ({"fallback_models": ["n", "o @ https://other/v1"]}, {"fallback_models": ("n", "o @ https://other/v1")}),
        ({"allowed_programs": ["make"]}, {"allowed_programs": ("make",)}),
        ({"role": "reader", "temperature": 1}, {"role": "reader", "temperature": 1}),
        ({"answer_schema": {"type": "string"}}, {"answer_schema": {"type": "string"}}),
        ({"tool_quotas": {"read_file": 2}}, {"tool_quotas": {"read_file": 2}}),
    ],
)
def test_less_is_had_for_the_asking(asked: dict[str, Any], held: dict[str, Any]) -> None:
    assert narrowed(asked, ANN, "/w") == BASE.model_copy(update={**held, "workspace": "/w"})


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"mode": "auto"}, "mode"),
        ({"model": "dear"}, "model"),
        ({"model": None}, "model"),
        ({"fallback_models": ["n @ https://elsewhere/v1"]}, "fallback_models"),
        ({"base_url": "http://elsewhere/v1"}, "base_url"),
        ({"allowed_programs": ["make", "sh"]}, "allowed_programs"),
        ({"allowed_hosts": ["example.com"]}, "allowed_hosts"),
        ({"readable_folders": ["/etc"]}, "readable_folders"),
        ({"account": "bob"}, "account"),
        ({"usd_per_million_input": 0, "usd_per_million_output": 0}, "usd_per_million_input, usd_per_million_output"),
        ({"checks": ["true"]}, "checks"),
        ({"audit": False}, "audit"),
        ({"tool_quotas": {}}, "tool_quotas"),
    ],
)
def test_more_is_refused_by_name(asked: dict[str, Any], named: str) -> None:
    said = f"This server does not allow ann what the request sets: {named}. Leave it out."
    assert narrowed(asked, ANN, "/w") == StopCause(reason=StopReason.INVALID_REQUEST, message=said)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_steps": 0}, "max_steps: Input should be greater than or equal to 1."),
        ({"nothing": 1}, "nothing: Extra inputs are not permitted."),
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
def test_an_answers_schema_has_no_patterns(schema: dict[str, Any]) -> None:
    """One match of such a pattern with what the model says would hold the whole server."""
    said = "answer_schema may have no `pattern` or `patternProperties` on this server: leave them out."
    assert narrowed({"answer_schema": schema}, ANN, "/w") == refusal(said)
    its = ANN._replace(context=BASE.model_copy(update={"answer_schema": schema}))
    assert isinstance(narrowed({"answer_schema": schema}, its, "/w"), AgentContext)
    named = {"properties": {"pattern": {"type": "string"}}}
    assert isinstance(narrowed({"answer_schema": named}, ANN, "/w"), AgentContext)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_nothing_that_is_asked_widens_what_is_allowed(asked: dict[str, Any]) -> None:
    found = narrowed(asked, ANN, "/w")
    if isinstance(found, AgentContext):
        assert (found.account, found.base_url, found.workspace) == ("ann", BASE.base_url, "/w")
        assert too_wide(found, ANN) == ()
        limits = {name: getattr(found, name) for name, each in SETTINGS.items() if each.trust == "less"}
        assert widening(limits, BASE) == ()


def test_a_context_from_before_may_be_too_wide_now() -> None:
    before = BASE.model_copy(update={"max_steps": 50, "mode": "auto", "workspace": "/elsewhere", "model": "n"})
    assert too_wide(before, ANN) == ("max_steps", "mode")


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
        {"base_url": ELSEWHERE, "model": "anthropic:claude-sonnet-4-6"},
        {"base_url": "http://169.254.169.254/v1", "model": "m"},
        {"fallback_models": ("m @ http://elsewhere.test/v1",)},
        {"fallback_models": ("local", "m @ http://elsewhere.test/v1")},
        {"allowed_programs": ("sh",)},
        {"allowed_hosts": ("elsewhere.test",)},
        {"allowed_private_hosts": ("169.254.169.254",)},
        {"readable_folders": ("/etc",)},
        {"checks": ("sh -c true",)},
        {"model_kwargs": {"service_tier": "priority"}},
        {"audit": False},
        {"account": "somebody"},
        {"usd_per_million_input": 0.0, "usd_per_million_output": 0.0},
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


@pytest.mark.parametrize("workspace", ["..", "site/../..", "/", "/etc", "out", "out/server/../..", "../server-2"])
def test_a_workspace_lies_in_the_servers_folder(folder: Path, workspace: str) -> None:
    (folder.parent / "server-2").mkdir()
    assert f"is outside '{folder}', the folder of this server" in refused(workspace=workspace)
    assert ROOT_VARIABLE in refused(workspace=workspace)


@pytest.mark.parametrize("workspace", [".", "site", "site/..", "out/server/site"])
def test_a_workspace_may_be_any_folder_in_it(folder: Path, workspace: str) -> None:
    assert had(workspace=workspace).workspace == str((folder / workspace).resolve())


def test_the_operator_may_name_another_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(folder.parent))
    operator_allowance.cache_clear()
    assert had().workspace == str(folder.parent)
    assert had(workspace="server/site").workspace == had(workspace=str(folder / "site")).workspace == f"{folder}/site"


def test_what_the_operator_allows_holds_and_may_be_narrowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = "max_calls_per_turn = 40\nmax_cost_usd_per_day = 5.0\n"
    configured(monkeypatch, folder, f'base_url = "{OURS}"\nallowed_programs = ["make"]\nmode = "ask"\n{limits}')
    base = had()
    assert (base.base_url, base.allowed_programs, base.mode, base.max_calls_per_turn) == (OURS, ("make",), "ask", 40)
    asked = had(allowed_programs=(), mode="read-only", max_calls_per_turn=3, max_cost_usd_per_day=99.0, model="any")
    assert (asked.allowed_programs, asked.mode, asked.max_calls_per_turn) == ((), "read-only", 3)
    assert (asked.max_cost_usd_per_day, asked.model, asked.base_url) == (5.0, "any", OURS)
    assert "allowed_programs. Leave it out, or allow it in '" in refused(allowed_programs=("make", "sh"))


def test_a_form_may_be_sent_as_it_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all its defaults, some of which the operator has set to something else."""
    configured(monkeypatch, folder, f'base_url = "{OURS}"\nmodel = "m"\nmode = "ask"\nmax_seconds = 60.0\n')
    shown = {name: field.get_default(call_default_factory=True) for name, field in AgentContext.model_fields.items()}
    assert had(**shown) == had()


def test_the_endpoint_of_the_environment_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{OURS}/")
    assert had(base_url=OURS, model="m").base_url is None
    assert "base_url" in refused(base_url=f"{OURS}/../other")


@pytest.mark.parametrize(
    ("own", "asked", "allowed"),
    [
        ("", "gpt-5", True),
        ("", "anthropic:claude-sonnet-4-6", True),
        ("", "local", True),
        (f'base_url = "{OURS}"', "m", True),
        (f'base_url = "{OURS}"', "openai:m", True),
        (f'base_url = "{OURS}"', "anthropic:claude-sonnet-4-6", False),
        (f'base_url = "{OURS}"\nmodel = "anthropic:c"', "anthropic:d", True),
        (f'base_url = "{OURS}"\nmodel = "anthropic:c"', "gpt-5", False),
    ],
)
def test_a_model_is_chosen_where_its_key_goes_to_its_own_endpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, own: str, asked: str, allowed: bool
) -> None:
    configured(monkeypatch, folder, own)
    assert isinstance(had(model=asked), AgentContext) is allowed


def test_settings_that_are_wrong_allow_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, folder, 'mode = "root"')
    assert "This server's settings are wrong: " in refused()


def test_the_repositorys_own_settings_allow_nothing(folder: Path) -> None:
    (folder / ".mendgraph.toml").write_text('allowed_programs = ["sh"]\n', encoding="utf-8")
    assert had().allowed_programs == ()


def test_a_graph_that_is_built_with_a_context_allows_that(folder: Path) -> None:
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
        assert (own["outcome"].message, len(theirs.requests)) == ("Hello.", 1)


def test_an_agent_in_another_graph_of_a_server_is_capped_as_well() -> None:
    """The context of the graph around it is what the client has sent."""

    class Around(MessagesState):
        outcome: Any

    builder = StateGraph(Around, context_schema=AgentContext)
    builder.add_node("coder", cast("Any", build_graph()))
    builder.add_edge(START, "coder")
    ended: Any = builder.compile().invoke(TOLD, BY_SERVER, context=AgentContext(allowed_programs=("sh",)))
    assert "what the request sets: allowed_programs" in ended["outcome"].message


def test_a_threads_context_is_no_clients_to_write() -> None:
    graph, _ = build_machine(InMemorySaver(), model=None, tools=None, rules=DEFAULT_GUARDRAIL_RULES, served=True)
    config: Any = {"configurable": {"thread_id": "t"}}
    with pytest.raises(InvalidUpdateError, match="send another one with the next request"):
        graph.update_state(config, {"context": {"allowed_programs": ["sh"]}}, as_node="begin_turn")


def test_a_refused_turn_leaves_no_context_to_go_on_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
