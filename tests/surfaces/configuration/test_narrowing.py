"""A request can narrow what its user is allowed, never widen it."""

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


LESS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"max_steps": 400}, {"max_steps": 9}),
    ({"max_steps": None, "max_cost_usd": None}, {}),
    ({"model": "n"}, {"model": "n"}),
    ({"model": "m", "base_url": "http://models/v1", "account": "ann"}, {}),
    ({"fallback_models": ["n", "o @ https://other/v1"]}, {"fallback_models": ("n", "o @ https://other/v1")}),
    ({"allowed_programs": ["make"]}, {"allowed_programs": ("make",)}),
    ({"response_format": {"type": "string"}}, {"response_format": {"type": "string"}}),
    ({"response_format": {"properties": {"pattern": {}}}}, {"response_format": {"properties": {"pattern": {}}}}),
    ({"system_prompt": "Be terse."}, {"system_prompt": "Be terse."}),
)
NOT_ALLOWED = "This server does not allow ann what the request sets: {}. Leave it out."
NO_FIT = "The request's context does not fit: {}"
NO_PATTERN = "response_format may have no `pattern` or `patternProperties` on this server: leave them out."
MORE: tuple[tuple[dict[str, Any], str], ...] = (
    ({"mode": "auto"}, NOT_ALLOWED.format("mode")),
    ({"model": "dear"}, NOT_ALLOWED.format("model")),
    ({"fallback_models": ["n @ https://elsewhere/v1"]}, NOT_ALLOWED.format("fallback_models")),
    ({"base_url": "http://elsewhere/v1"}, NOT_ALLOWED.format("base_url")),
    ({"allowed_programs": ["make", "sh"]}, NOT_ALLOWED.format("allowed_programs")),
    ({"audit": False}, NOT_ALLOWED.format("audit")),
    ({"max_steps": 0}, NO_FIT.format("max_steps: must be at least 1.")),
    (
        {"usd_per_million_input": 1},
        NO_FIT.format("context: usd_per_million_input and usd_per_million_output are given together."),
    ),
    # One match of such a pattern with a reply would block the whole server.
    ({"response_format": {"type": "string", "pattern": "^(a+)+$"}}, NO_PATTERN),
    ({"response_format": {"properties": {"a": {"items": [{"pattern": "a"}]}}}}, NO_PATTERN),
    ({"response_format": {"patternProperties": {"(a+)+$": {}}}}, NO_PATTERN),
)


def test_request_can_narrow_the_settings_and_is_refused_by_name_if_it_widens_them() -> None:
    for settings, expected in LESS:
        assert narrowed(settings, ANN, "/w") == BASE.model_copy(update={**expected, "workspace": "/w"})
    for settings, message in MORE:
        assert narrowed(settings, ANN, "/w") == StopCause(reason=StopReason.INVALID_REQUEST, message=message)
    users_own = {"response_format": {"type": "string", "pattern": "a"}, "system_prompt": "Be kind."}
    its = ANN._replace(context=BASE.model_copy(update=users_own))
    accepted, refused = narrowed({}, its, "/w"), narrowed({"system_prompt": "Be terse."}, its, "/w")
    assert (isinstance(refused, StopCause), getattr(accepted, "system_prompt", "")) == (True, "Be kind.")
    assert isinstance(narrowed({"response_format": users_own["response_format"]}, its, "/w"), AgentContext)


NAMES = sorted(AgentContext.model_fields.keys() - {"workspace"})
VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(-1, 2**54), st.floats(0, 1e6), st.sampled_from(["auto", "m", "few"])),
    st.lists(st.sampled_from(["make", "sh", "example.com", "n"]), max_size=2),
)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_no_request_widens_the_allowed_settings(settings: dict[str, Any]) -> None:
    result = narrowed(settings, ANN, "/w")
    if isinstance(result, AgentContext):
        assert (result.account, result.base_url, result.workspace) == ("ann", BASE.base_url, "/w")
        assert too_wide(result, ANN) == ()
        limits = {name: getattr(result, name) for name, setting in SETTINGS.items() if setting.trust == "less"}
        assert widening(limits, BASE) == ()


pytestmark = pytest.mark.usefixtures("folder")

ELSEWHERE = "http://elsewhere.test/v1"
OURS = "http://models.test/v1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a server without settings; `site` is in it."""
    root = tmp_path / "server"
    (root / "site").mkdir(parents=True)
    (root / "out").symlink_to(tmp_path)
    monkeypatch.chdir(root)
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    operator_allowance.cache_clear()
    yield root
    operator_allowance.cache_clear()


def configure_operator(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Let the operator allow this."""
    path = folder.parent / "config.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    operator_allowance.cache_clear()


def context_of_client(**settings: Any) -> Any:
    return client_context(AgentContext(**settings), None)


def refusal_of(**settings: Any) -> str:
    """Why there is no context for this."""
    result = context_of_client(**settings)
    assert isinstance(result, StopCause), result
    assert result.reason is StopReason.INVALID_REQUEST
    return result.message


WIDER: tuple[dict[str, Any], ...] = (
    {"base_url": ELSEWHERE},
    {"fallback_models": ("m @ http://elsewhere.test/v1",)},
    {"allowed_programs": ("sh",)},
    {"model_kwargs": {"service_tier": "priority"}},
    {"tool_timeouts_s": {"run_command": 3_000.0}},
    {"window_tokens": 9_000_000},
)


def test_request_for_more_is_refused_by_name_with_the_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in WIDER:
        message = refusal_of(**settings)
        assert "This server does not allow its clients what the request sets: " in message
        assert set(message.partition("sets: ")[2].partition(".")[0].split(", ")) <= set(settings)
        assert "in a file that MENDGRAPH_CONFIG names and start the server again" in message
    configure_operator(monkeypatch, folder, 'mode = "root"')
    assert "This server's settings are wrong: " in refusal_of()


def test_workspace_must_be_in_the_servers_folder(folder: Path) -> None:
    (folder.parent / "server-2").mkdir()
    for workspace in ("site/../..", "/", "out", "../server-2"):
        message = refusal_of(workspace=workspace)
        assert f"is outside '{folder}', the folder of this server" in message
        assert ROOT_VARIABLE in message


MODELS = (
    ("", "anthropic:claude-sonnet-4-6", True),
    ("", "local", True),
    (f'base_url = "{OURS}"', "anthropic:claude-sonnet-4-6", False),
    (f'base_url = "{OURS}"\nmodel = "anthropic:c"', "anthropic:d", True),
    (f'base_url = "{OURS}"\nmodel = "anthropic:c"', "gpt-5", False),
)


def test_client_can_choose_the_model_only_if_the_key_goes_to_its_own_endpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for operator_settings, model, allowed in MODELS:
        configure_operator(monkeypatch, folder, operator_settings)
        assert isinstance(context_of_client(model=model), AgentContext) is allowed, (operator_settings, model)


def test_operators_settings_apply_and_can_be_narrowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = "max_calls_per_turn = 40\nmax_cost_usd_per_day = 5.0\n"
    configure_operator(monkeypatch, folder, f'base_url = "{OURS}"\nallowed_programs = ["make"]\nmode = "ask"\n{limits}')
    base = context_of_client()
    assert (base.base_url, base.allowed_programs, base.mode, base.max_calls_per_turn) == (OURS, ("make",), "ask", 40)
    narrower = context_of_client(
        allowed_programs=(), mode="read-only", max_calls_per_turn=3, max_cost_usd_per_day=99.0, model="any"
    )
    assert (narrower.allowed_programs, narrower.mode, narrower.max_calls_per_turn) == ((), "read-only", 3)
    assert (narrower.max_cost_usd_per_day, narrower.model, narrower.base_url) == (5.0, "any", OURS)
    assert "allowed_programs. Leave it out, or allow it in '" in refusal_of(allowed_programs=("make", "sh"))


def test_form_can_be_submitted_with_its_defaults(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the operator has changed some of the defaults."""
    configure_operator(monkeypatch, folder, f'base_url = "{OURS}"\nmodel = "m"\nmode = "ask"\nmax_seconds = 60.0\n')
    defaults = {name: field.get_default(call_default_factory=True) for name, field in AgentContext.model_fields.items()}
    assert context_of_client(**defaults) == context_of_client()


def test_endpoint_in_the_environment_belongs_to_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{OURS}/")
    assert context_of_client(base_url=OURS, model="m").base_url is None
    assert "base_url" in refusal_of(base_url=f"{OURS}/../other")


def test_context_of_build_graph_is_the_limit_for_clients(folder: Path) -> None:
    bound = AgentContext(workspace="site", allowed_programs=("make",))
    context: Any = client_context(AgentContext(allowed_programs=("make",)), bound)
    assert (context.allowed_programs, context.workspace) == (("make",), str(folder / "site"))
    refusal: Any = client_context(AgentContext(allowed_programs=("sh",)), bound)
    assert refusal.message.endswith(
        "allowed_programs. Leave it out, or allow it in build_graph(context=AgentContext(...))."
    )
    assert client_context({"user": "ada"}, bound) == {"user": "ada"}


TOLD: Any = {"messages": [("user", "Hi.")]}
BY_SERVER: Any = {"configurable": {"thread_id": "t", "graph_id": "mendgraph", "assistant_id": "a"}}


@pytest.mark.parametrize("served", ["by any server", "as its server says"])
def test_key_and_request_are_not_sent_to_an_endpoint_of_the_client(
    monkeypatch: pytest.MonkeyPatch, served: str
) -> None:
    """In Python the same context is the operator's own."""
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
        result: Any = build_graph().invoke(TOLD, context=context)
        assert (result["outcome"].answer, len(theirs.requests)) == ("Hello.", 1)


def test_client_cannot_update_the_context_of_a_thread() -> None:
    graph, _ = build_machine(InMemorySaver(), model=None, tools=None, rules=DEFAULT_GUARDRAIL_RULES, served=True)
    config: Any = {"configurable": {"thread_id": "t"}}
    with pytest.raises(InvalidUpdateError, match="send another one with the next request"):
        graph.update_state(config, {"context": {"allowed_programs": ["sh"]}}, as_node="begin_turn")


def test_refused_turn_stores_no_context(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure_operator(monkeypatch, folder, 'mode = "read-only"\n')
    call = Calls([("write_file", '{"path": "a.txt", "content": "x"}')])
    with ScriptedServer([call, Say("Done.")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        graph, _ = build_machine(InMemorySaver(), model=None, tools=None, rules=DEFAULT_GUARDRAIL_RULES, served=True)
        config: Any = {"configurable": {"thread_id": "t"}}
        turn_input = {"messages": [("user", "Write a.txt.")]}
        refused_one: Any = graph.invoke(cast("Any", turn_input), config, context=cast("Any", {"base_url": ELSEWHERE}))
        assert refused_one["outcome"].reason is StopReason.INVALID_REQUEST
        graph.update_state(config, {**turn_input, "stop": None}, as_node="begin_turn")
        with suppress(KeyError):  # there is no context
            graph.invoke(None, config)
        assert not (folder / "a.txt").exists()
        assert not server.requests


# --- The context of a turn

BOUND, STORED = AgentContext(workspace="bound"), AgentContext(workspace="stored")
GIVEN = AgentContext(workspace="given")


@dataclass
class Mine:
    user: str = "ada"


FOREIGN: tuple[tuple[object, str], ...] = (
    (Mine(), "context of the run has the type Mine, which is not an AgentContext"),
    ({"user": "ada"}, "not an AgentContext (user: there is no such setting"),
    ({"base_url": "https://a:secret-password@b/v1"}, "(base_url: base_url must not contain"),
)


def test_context_of_the_run_precedes_the_graphs_and_the_stored_one() -> None:
    refused = StopCause(reason=StopReason.INVALID_REQUEST, message="No.")
    for bound in (BOUND, None):
        for stored in (STORED, None):
            assert given_context(GIVEN, bound, stored) is GIVEN
            assert given_context(None, bound, stored) == (bound or stored or AgentContext())
    assert given_context(Admission(GIVEN, "ada"), BOUND, STORED) is GIVEN
    assert given_context(Admission(refused, "ada"), BOUND, STORED) is refused
    for foreign, words in FOREIGN:  # treated as none, it would let the agent work in the folder of the process
        cause = given_context(foreign, None, STORED)
        assert isinstance(cause, StopCause)
        assert (words in cause.message, "build_graph(context=AgentContext(...))" in cause.message) == (True, True)
        assert "secret-password" not in cause.message
        assert given_context(foreign, BOUND, STORED) is BOUND


def test_run_id_consists_of_its_thread_and_its_owner() -> None:
    refused = Admission(StopCause(reason=StopReason.WORKSPACE_BUSY, message="Later."), "ann")
    assert refused.run_id("t1") == "ann/t1"
    runs: tuple[tuple[str | None, str, object, str], ...] = (
        (None, "", None, ""),
        ("t1", "begin_turn:1", AgentContext(), "t1"),
        ("t1", "a:1|begin_turn:2", AgentContext(), "t1|a:1"),
        ("t1", "begin_turn:1", refused, "ann/t1"),
    )
    for thread, place, context, run_id in runs:
        info = SimpleNamespace(thread_id=thread, checkpoint_ns=place)
        assert run_id_of(cast("Any", SimpleNamespace(execution_info=info, context=context))) == run_id
    assert run_id_of(cast("Any", SimpleNamespace(execution_info=None, context=None))) == ""
