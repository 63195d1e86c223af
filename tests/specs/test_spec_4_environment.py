"""Spec 4 as a user sees it: names and defaults, its examples verbatim, its checklists line by line.

What its code does with each setting, action and argument is compared in `test_spec_4_oracle.py`.
"""

import dataclasses
import inspect
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mendgraph import Effect, ToolOutput, default_tools, tool
from mendgraph.documents import ActionRegistry, AgentLanguage, Environment, ExecResult
from mendgraph.nodes.execute_tools.call_policy import BreakerConfig, CallRules, RateLimit
from tests.specs import document_4

SHAPE = ["ok", "action", "args", "data", "error", "ms", "retries", "error_type"]
"""The fields of spec 4's ExecResult in its order, and behind them the error's type that it proposes to add."""

Arguments = dict[str, Any]


class Action:
    """What spec 4 assumes of an action: a name, and `execute(**arguments)`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self._function, self.tries = name, function, 0

    def execute(self, **arguments: Any) -> Any:
        self.tries += 1
        return self._function(**arguments)


def echo(**arguments: Any) -> Arguments:
    return arguments


def fail(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


# --- Names, order, defaults


def test_exec_result_has_the_fields_of_the_document_in_order() -> None:
    fields = [(field.name, field.default) for field in dataclasses.fields(ExecResult)]
    theirs = [(field.name, field.default) for field in dataclasses.fields(document_4.ExecResult)]
    assert fields == [*theirs, ("error_type", None)]
    result = ExecResult(True, "add", {"a": 1}, 3, None, 12, 1)
    result.ms = 13
    values = (True, "add", {"a": 1}, 3, None, 13, 1, None)
    assert list(result.to_dict().items()) == list(zip(SHAPE, values, strict=True))


def test_settings_and_hooks_have_the_documents_parameters() -> None:
    theirs = inspect.signature(document_4.Environment).parameters
    ours = dict(list(inspect.signature(Environment).parameters.items())[: len(theirs)])
    assert [(name, parameter.default, parameter.kind) for name, parameter in ours.items()] == [
        (name, parameter.default, parameter.kind) for name, parameter in theirs.items()
    ]
    hooks = [name for name in vars(document_4.Environment) if inspect.isfunction(getattr(Environment, name, None))]
    assert len(hooks) == 10
    for hook in set(hooks) - {"__init__", "execute_action"}:
        parameters = [
            list(inspect.signature(getattr(environment, hook)).parameters)
            for environment in (Environment, document_4.Environment)
        ]
        assert parameters[0] == parameters[1]
    assert list(inspect.signature(Environment.execute_action).parameters)[:3] == ["self", "action", "args"]


def test_setting_is_stored_as_in_the_document() -> None:
    stored: list[tuple[Arguments, str, Any]] = [
        ({}, "base_dir", None),
        ({"base_dir": "docs/../docs"}, "base_dir", os.path.abspath("docs")),
        ({}, "allowed_exts", {".txt", ".md"}),
        ({"allowed_exts": None}, "allowed_exts", set()),
        ({"allowed_exts": (".py", ".py")}, "allowed_exts", {".py"}),
        ({}, "allow_net", False),
        ({}, "allowed_domains", set()),
        ({"allowed_domains": ["api.example.com"]}, "allowed_domains", {"api.example.com"}),
        ({"timeout_s": 5}, "timeout_s", 5.0),
        ({"max_retries": 2.0}, "max_retries", 2),
        ({"retry_backoff_s": 1}, "retry_backoff_s", 1.0),
        ({"retry_exceptions": (TimeoutError, ConnectionError)}, "retry_exceptions", (TimeoutError, ConnectionError)),
        ({}, "arg_validators", {}),
        ({"arg_validators": {"x": echo}}, "arg_validators", {"x": echo}),
        ({"logger": print}, "logger", print),
    ]
    for settings, attribute, expected in stored:
        ours, theirs = (
            getattr(environment(**settings), attribute) for environment in (Environment, document_4.Environment)
        )
        assert (ours, type(ours)) == (theirs, type(theirs)) == (expected, type(expected)), attribute


# --- The examples, as they stand in the document


def test_skeleton_of_the_document_works() -> None:
    environment = Environment()
    good = environment.execute_action(Action("add", lambda a, b: a + b), {"a": 1, "b": 2})
    bad = environment.execute_action(Action("add", fail(ValueError("b is missing"))), {"a": 1})
    assert list(good) == list(bad) == SHAPE
    assert {**good, "ms": 0} == ExecResult(True, "add", {"a": 1, "b": 2}, data=3).to_dict()
    refused = ExecResult(False, "add", {"a": 1}, error="b is missing", error_type="ValueError")
    assert {**bad, "ms": 0} == refused.to_dict()
    assert isinstance(good["ms"], int)


def test_tiny_flow_of_the_document_works(tmp_path: Path) -> None:
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
    def validate_write(args: Arguments) -> Arguments:
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
    env.retry_backoff_s = 0
    late, broken = Action("late", fail(TimeoutError("late"))), Action("broken", fail(ConnectionError("reset")))
    assert (env.execute_action(late, {})["retries"], late.tries) == (1, 2)
    assert (env.execute_action(broken, {})["retries"], broken.tries) == (0, 1)


def test_model_and_policy_are_separate_so_a_fake_environment_works() -> None:
    """It shares nothing with ours but the document's form of a result."""

    class Fake:
        def execute_action(self, action: Action, args: Arguments) -> Arguments:
            return document_4.ExecResult(True, action.name, args, data={"content": "canned"}).to_dict()

    language, read = AgentLanguage(ActionRegistry(default_tools())), Action("read_file", fail(AssertionError()))
    understood = language.parse('tool: read_file({"path": "notes.txt"})')
    results = [Fake().execute_action(read, invocation.args) for invocation in understood.invocations]
    assert '"data":{"content":"canned"}' in str(language.exchange(understood, results)[-1].content)


# --- Checklists


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


@pytest.mark.parametrize(("seconds", "formatted"), [(0.1, "0.1"), (0.06, "0.1")])
def test_timeout_stops_waiting_and_names_its_seconds(seconds: float, formatted: str) -> None:
    over = threading.Event()
    try:
        result = Environment(timeout_s=seconds, max_retries=0).execute_action(Action("sleepy", over.wait), {})
    finally:
        over.set()
    assert (result["error"], result["error_type"]) == (f"Action 'sleepy' timed out after {formatted}s", "TimeoutError")


def test_logs_include_action_elapsed_ms_and_outcome() -> None:
    records: list[Arguments] = []
    environment = Environment(logger=records.append)
    environment.execute_action(
        Action("login", lambda **_: threading.Event().wait(0.02) or {"token": "t0p"}), {"password": "hunter2"}
    )
    environment.execute_action(Action("login", fail(RuntimeError("refused"))), {"password": "hunter2"})
    assert all(isinstance(record["ms"], int) for record in records)
    assert records[0]["ms"] >= 10
    shared = {"action": "login", "args": {"password": "***"}, "ms": 0, "retries": 0}
    good = {"event": "action_ok", "ok": True, "data": {"token": "***"}, "error": None, "error_type": None}
    bad = {"event": "action_error", "ok": False, "data": None, "error": "refused", "error_type": "RuntimeError"}
    assert [{**record, "ms": 0} for record in records] == [{**good, **shared}, {**bad, **shared}]
    assert list(records[0]) == ["event", *SHAPE]


def test_sensitive_values_are_redacted_at_any_depth_but_the_action_gets_them() -> None:
    keys = ("password", "client_secret", "session_token", "api_key", "apikey", "API_KEY", "Authorization", "BEARER")
    args: Arguments = {"nested": {"list": [{**dict.fromkeys(keys, "hunter2"), "user": "ann"}], "secret": ["hunter2"]}}
    seen: list[Arguments] = []
    result = Environment().execute_action(Action("login", lambda **arguments: seen.append(arguments)), args)
    assert result["args"]["nested"]["list"] == [{**dict.fromkeys(keys, "***"), "user": "ann"}]
    assert "hunter2" not in str(result)
    assert seen == [args]


def test_failing_logger_does_not_break_execution() -> None:
    environment = Environment(logger=fail(OSError("disk full")))
    assert environment.execute_action(Action("add", lambda: 3), {})["data"] == 3


def test_error_is_returned_instead_of_raised() -> None:
    """Only an interrupt passes, so that Ctrl-C ends a program."""
    for error in (ValueError("v"), SystemExit("s"), MemoryError("m"), AssertionError("a")):
        result = Environment().execute_action(Action("x", fail(error)), {})
        assert (result["ok"], result["error"], result["error_type"]) == (False, str(error), type(error).__name__)
        assert "Traceback" not in str(result)
    nameless: Any = object()
    result = Environment().execute_action(nameless, {"a": 1})
    assert (result["ok"], result["action"], result["args"]) == (False, "<unknown>", {"a": 1})
    with pytest.raises(KeyboardInterrupt):
        Environment().execute_action(Action("x", fail(KeyboardInterrupt())), {})


def test_circuit_never_opens_unless_a_breaker_is_configured() -> None:
    down = Action("fetch", fail(ConnectionError("refused")))
    plain = Environment()
    assert {plain.execute_action(down, {})["error"] for _ in range(20)} == {"refused"}
    careful = Environment(breaker=BreakerConfig(failures=2, open_s=30), clock=lambda: 0.0)
    kinds = [careful.execute_action(down, {})["error_type"] for _ in range(3)]
    assert kinds == ["ConnectionError", "ConnectionError", "CircuitOpenError"]


def test_read_only_quotas_rates_and_idempotency() -> None:
    write, read, search = (Action(name, echo) for name in ("write_it", "read_file", "search_in_file"))
    rules = CallRules(read_only=True, quotas={"read_file": 2}, rate_limits={"search_in_file": RateLimit(1, 60)})
    strict = Environment(rules=rules, clock=lambda: 5.0)
    assert strict.execute_action(write, {})["error_type"] == "PermissionError"
    assert [strict.execute_action(read, {})["error_type"] for _ in range(3)] == [None, None, "QuotaError"]
    assert [strict.execute_action(search, {})["error_type"] for _ in range(2)] == [None, "RateLimitError"]
    environment = Environment()
    first = environment.execute_action(write, {"n": 1}, idempotency_key="k")
    assert environment.execute_action(write, {"n": 1}, idempotency_key="k") == first
    assert write.tries == 1
