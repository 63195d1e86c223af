"""Spec 4 as a user meets it: names and defaults, its examples as they stand there, its checklists line by line.

What its code does with each setting, action and argument is compared in `test_spec_4_oracle.py`.
"""

import dataclasses
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.runs.agent_language import AgentLanguage
from mendgraph.nodes.execute_tools.call_policy import BreakerConfig, CallRules, RateLimit
from mendgraph.nodes.execute_tools.environment import Environment, ExecResult
from mendgraph.nodes.execute_tools.registry import ActionRegistry, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.records import Effect, JsonMap
from tests.specs import document_4

SHAPE = ["ok", "action", "args", "data", "error", "ms", "retries", "error_type"]
"""The fields of spec 4's ExecResult in its order, and behind them the error's type that it proposes to add."""


class Action:
    """What spec 4 assumes of an action: a name, and `execute(**arguments)`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self._function, self.tries = name, function, 0

    def execute(self, **arguments: Any) -> Any:
        self.tries += 1
        return self._function(**arguments)


def echo(**arguments: Any) -> JsonMap:
    return arguments


def fail(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


# --- Names, order, defaults --------------------------------------------------------------------------------------


def test_exec_result_has_the_fields_of_the_document_in_its_order() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(ExecResult)}
    missing = dataclasses.MISSING
    assert list(fields) == SHAPE
    assert list(fields.values()) == [missing, missing, missing, None, None, 0, 0, None]
    theirs = [(field.name, field.default) for field in dataclasses.fields(document_4.ExecResult)]
    assert list(fields.items())[:-1] == theirs
    assert list(inspect.signature(ExecResult).parameters) == SHAPE


def test_exec_result_can_be_filled_by_position_and_changed() -> None:
    result = ExecResult(True, "add", {"a": 1}, 3, None, 12, 1)
    result.ms = 13
    assert result.to_dict() == {
        "ok": True, "action": "add", "args": {"a": 1}, "data": 3, "error": None, "ms": 13, "retries": 1,
        "error_type": None,
    }  # fmt: skip
    assert list(result.to_dict()) == SHAPE


DEFAULTS: JsonMap = {
    "base_dir": None,
    "allowed_exts": (".txt", ".md"),
    "allow_net": False,
    "allowed_domains": None,
    "timeout_s": 10.0,
    "max_retries": 1,
    "retry_backoff_s": 0.5,
    "retry_exceptions": (TimeoutError,),
    "arg_validators": None,
    "logger": None,
}


@pytest.mark.parametrize(("setting", "default"), DEFAULTS.items())
def test_each_setting_has_its_default_and_is_given_by_name(setting: str, default: Any) -> None:
    parameter = inspect.signature(Environment).parameters[setting]
    assert (parameter.default, parameter.kind) == (default, inspect.Parameter.KEYWORD_ONLY)


def test_settings_come_in_the_documents_order() -> None:
    assert list(inspect.signature(Environment).parameters)[: len(DEFAULTS)] == list(DEFAULTS)
    assert list(DEFAULTS) == list(inspect.signature(document_4.Environment).parameters)


def test_execute_action_takes_an_action_and_its_arguments() -> None:
    assert list(inspect.signature(Environment.execute_action).parameters)[:3] == ["self", "action", "args"]


@pytest.mark.parametrize(
    "hook",
    [
        "_prepare_args", "_run_with_retries", "_run_with_timeout", "_safe_path", "_check_extension", "_check_domain",
        "_log", "_redact",
    ],
)  # fmt: skip
def test_each_method_for_subclasses_has_the_documents_parameters(hook: str) -> None:
    ours, theirs = (inspect.signature(getattr(made, hook)).parameters for made in (Environment, document_4.Environment))
    assert list(ours) == list(theirs)


@pytest.mark.parametrize(
    "key", ["password", "client_secret", "session_token", "api_key", "apikey", "API_KEY", "Authorization", "BEARER"]
)
def test_names_whose_values_are_redacted(key: str) -> None:
    assert Environment._REDACT_KEYS.search(key)
    assert not Environment._REDACT_KEYS.search("user")


STORED: list[tuple[JsonMap, str, Any]] = [
    ({}, "base_dir", None),
    ({"base_dir": "docs/../docs"}, "base_dir", "docs"),
    ({}, "allowed_exts", {".txt", ".md"}),
    ({"allowed_exts": None}, "allowed_exts", set()),
    ({"allowed_exts": []}, "allowed_exts", set()),
    ({"allowed_exts": (".py", ".py")}, "allowed_exts", {".py"}),
    ({}, "allow_net", False),
    ({"allow_net": True}, "allow_net", True),
    ({}, "allowed_domains", set()),
    ({"allowed_domains": ["api.example.com"]}, "allowed_domains", {"api.example.com"}),
    ({"timeout_s": 5}, "timeout_s", 5.0),
    ({"max_retries": 2.0}, "max_retries", 2),
    ({"retry_backoff_s": 1}, "retry_backoff_s", 1.0),
    ({"retry_exceptions": (TimeoutError, ConnectionError)}, "retry_exceptions", (TimeoutError, ConnectionError)),
    ({}, "arg_validators", {}),
    ({"arg_validators": {"x": echo}}, "arg_validators", {"x": echo}),
    ({}, "logger", None),
    ({"logger": print}, "logger", print),
]


@pytest.mark.parametrize(("settings", "attribute", "value"), STORED)
def test_what_the_constructor_stores(settings: JsonMap, attribute: str, value: Any) -> None:
    stored = getattr(Environment(**settings), attribute)
    expected = os.path.abspath(value) if attribute == "base_dir" and value else value
    assert (stored, type(stored)) == (expected, type(expected))


# --- The examples, as they stand in the document -----------------------------------------------------------------


def test_skeleton() -> None:
    environment = Environment()
    good = environment.execute_action(Action("add", lambda a, b: a + b), {"a": 1, "b": 2})
    bad = environment.execute_action(Action("add", fail(ValueError("b is missing"))), {"a": 1})
    assert list(good) == list(bad) == SHAPE
    assert {**good, "ms": 0} == ExecResult(True, "add", {"a": 1, "b": 2}, data=3).to_dict()
    assert {**bad, "ms": 0} == ExecResult(
        False, "add", {"a": 1}, error="b is missing", error_type="ValueError"
    ).to_dict()
    assert isinstance(good["ms"], int)


def test_tiny_flow(tmp_path: Path) -> None:
    """LLM: {"tool": "read_file", "args": {"file_name": "notes.txt"}}; the Environment: {ok: true, data: {...}}."""
    (tmp_path / "notes.txt").write_text("vector DB")
    read = Action("read_file", lambda file_name: {"content": Path(file_name).read_text()})
    result = Environment(base_dir=str(tmp_path)).execute_action(read, {"file_name": "notes.txt"})
    assert (result["ok"], result["data"]) == (True, {"content": "vector DB"})


def test_read_only_files_text_only() -> None:
    env = Environment(base_dir="/content/docs", allowed_exts={".txt", ".md"})
    read = Action("read_file", lambda file_name: file_name)
    assert env.execute_action(read, {"file_name": "notes.txt"})["data"] == "/content/docs/notes.txt"
    assert env.execute_action(read, {"file_name": "a.py"})["error"] == "Extension '.py' not allowed."
    assert env.execute_action(read, {"file_name": "../x.txt"})["error"] == "Path traversal blocked."


def test_web_calls_but_only_to_a_safe_host_with_a_short_timeout() -> None:
    env = Environment(allow_net=True, allowed_domains={"api.example.com"}, timeout_s=5.0)
    get = Action("http_get", echo)
    assert env.execute_action(get, {"url": "https://api.example.com/x"})["ok"]
    assert env.execute_action(get, {"url": "https://evil.com"})["error"] == "Domain 'evil.com' not allowed."
    assert env.timeout_s == 5.0


def test_semantic_validator_for_a_write_tool() -> None:
    def validate_write(args: JsonMap) -> JsonMap:
        if not args.get("content"):
            raise ValueError("content must be non-empty")
        return args

    env = Environment(arg_validators={"write_file": validate_write})
    write = Action("write_file", echo)
    empty = env.execute_action(write, {"file_name": "a.txt", "content": ""})
    assert (empty["ok"], empty["error"], write.tries) == (False, "content must be non-empty", 0)
    assert env.execute_action(write, {"file_name": "a.txt", "content": "x"})["ok"]


def test_retry_only_on_timeouts_once_with_a_short_backoff() -> None:
    env = Environment(max_retries=1, retry_backoff_s=0.3, retry_exceptions=(TimeoutError,))
    assert (env.max_retries, env.retry_backoff_s, env.retry_exceptions) == (1, 0.3, (TimeoutError,))
    env.retry_backoff_s = 0
    late, broken = Action("late", fail(TimeoutError("late"))), Action("broken", fail(ConnectionError("reset")))
    assert (env.execute_action(late, {})["retries"], late.tries) == (1, 2)
    assert (env.execute_action(broken, {})["retries"], broken.tries) == (0, 1)


def test_model_and_policy_are_apart_so_a_fake_environment_does() -> None:
    """It shares nothing with ours but the document's form of a result."""

    class Fake:
        def execute_action(self, action: Action, args: JsonMap) -> JsonMap:
            return document_4.ExecResult(True, action.name, args, data={"content": "canned"}).to_dict()

    language, read = AgentLanguage(ActionRegistry([read_file])), Action("read_file", fail(AssertionError()))
    understood = language.parse('tool: read_file({"path": "notes.txt"})')
    results = [Fake().execute_action(read, each.args) for each in understood.invocations]
    assert '"data":{"content":"canned"}' in str(language.exchange(understood, results)[-1].content)


# --- Checklists --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["launch_rocket", "http_get"])
def test_tool_name_is_whitelisted(name: str) -> None:
    """Before the arguments are looked at, of which http_get lacks one."""
    environment = Environment(rules=CallRules(allowed=frozenset({"read_file"})))
    rocket = Action(name, echo)
    result = environment.execute_action(rocket, {})
    assert result["error"] == f"The tool {name} is not allowed in this run. Allowed are: read_file."
    assert (result["error_type"], rocket.tries) == ("PermissionError", 0)


def test_registry_knows_tools_by_name_description_and_schema() -> None:
    @tool(effect=Effect.READ)
    def peek(file_name: str) -> ToolOutput:
        """Look at a file."""
        return ToolOutput.ok(file_name=file_name)

    registry = ActionRegistry([peek])
    [spec] = registry.specs()
    assert (spec.name, spec.description, spec.parameters["required"]) == ("peek", "Look at a file.", ["file_name"])
    assert (registry.get("peek"), registry.get("poke")) == (peek, None)


@pytest.fixture
def hanging() -> Iterator[Action]:
    """An action that does not end before the test does."""
    over = threading.Event()
    yield Action("sleepy", lambda: over.wait(30))
    over.set()


@pytest.mark.parametrize(("seconds", "shown"), [(0.1, "0.1"), (0.06, "0.1")])
def test_timeout_stops_waiting_and_is_told_with_its_seconds(hanging: Action, seconds: float, shown: str) -> None:
    result = Environment(timeout_s=seconds, max_retries=0).execute_action(hanging, {})
    assert (result["error"], result["error_type"]) == (f"Action 'sleepy' timed out after {shown}s", "TimeoutError")


def test_logs_include_action_elapsed_ms_and_outcome() -> None:
    records: list[JsonMap] = []
    environment = Environment(logger=records.append)
    environment.execute_action(
        Action("login", lambda **_: threading.Event().wait(0.02) or {"token": "t0p"}), {"password": "hunter2"}
    )
    environment.execute_action(Action("login", fail(RuntimeError("refused"))), {"password": "hunter2"})
    assert all(isinstance(record["ms"], int) for record in records)
    assert records[0]["ms"] >= 10
    shared: JsonMap = {"action": "login", "args": {"password": "***"}, "ms": 0, "retries": 0}
    assert [{**record, "ms": 0} for record in records] == [
        {"event": "action_ok", "ok": True, "data": {"token": "***"}, "error": None, "error_type": None, **shared},
        {
            "event": "action_error",
            "ok": False,
            "data": None,
            "error": "refused",
            "error_type": "RuntimeError",
            **shared,
        },
    ]
    assert list(records[0]) == ["event", *SHAPE]


def test_sensitive_values_are_redacted_at_any_depth_and_the_action_gets_them() -> None:
    args = {"password": "hunter2", "nested": {"list": [{"password": "p", "n": 1}], "secret": ["deep"]}}
    seen: list[JsonMap] = []
    result = Environment().execute_action(Action("login", lambda **given: seen.append(given)), args)
    assert (result["args"]["password"], result["args"]["nested"]["list"]) == ("***", [{"password": "***", "n": 1}])
    assert "deep" not in str(result["args"])
    assert seen == [args]


def test_never_let_logging_break_execution() -> None:
    environment = Environment(logger=fail(OSError("disk full")))
    assert environment.execute_action(Action("add", lambda: 3), {})["data"] == 3


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit("s"), MemoryError("m"), AssertionError("a")])
def test_it_returns_instead_of_crashing(error: BaseException) -> None:
    result = Environment().execute_action(Action("x", fail(error)), {})
    assert (result["ok"], result["error"], result["error_type"]) == (False, str(error), type(error).__name__)
    assert "Traceback" not in str(result)


def test_only_an_interrupt_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        Environment().execute_action(Action("x", fail(KeyboardInterrupt())), {})


def test_action_without_a_name_is_an_error_too() -> None:
    result = Environment().execute_action(object(), {"a": 1})  # type: ignore[arg-type]
    assert (result["ok"], result["action"], result["args"]) == (False, "<unknown>", {"a": 1})


def test_nothing_rests_after_failures_unless_a_breaker_was_asked_for() -> None:
    missing = Action("read_file", fail(FileNotFoundError("no such file")))
    down = Action("fetch", fail(ConnectionError("refused")))
    plain = Environment()
    assert {plain.execute_action(missing, {})["error"] for _ in range(20)} == {"no such file"}
    assert {plain.execute_action(down, {})["error"] for _ in range(20)} == {"refused"}
    careful = Environment(breaker=BreakerConfig(failures=2, open_s=30), clock=lambda: 0.0)
    kinds = [careful.execute_action(down, {})["error_type"] for _ in range(3)]
    assert kinds == ["ConnectionError", "ConnectionError", "CircuitOpenError"]


def test_read_only_roles_quotas_rates_and_idempotency() -> None:
    write, read = Action("write_it", echo), Action("read_file", echo)
    strict = Environment(
        rules=CallRules(read_only=True, quotas={"read_file": 2}, rate_limits={"search_in_file": RateLimit(1, 60)}),
        clock=lambda: 5.0,
    )
    assert strict.execute_action(write, {})["error_type"] == "PermissionError"
    assert [strict.execute_action(read, {})["error_type"] for _ in range(3)] == [None, None, "QuotaError"]
    search = Action("search_in_file", echo)
    assert [strict.execute_action(search, {})["error_type"] for _ in range(2)] == [None, "RateLimitError"]
    environment = Environment()
    first = environment.execute_action(write, {"n": 1}, idempotency_key="k")
    assert environment.execute_action(write, {"n": 1}, idempotency_key="k") == first
    assert write.tries == 1
