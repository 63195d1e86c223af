"""Spec 4 as a user meets it: its skeleton, its configuration examples, its checklist line by line, its shapes."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.environment import Environment, ExecResult
from nodes.execute_tools.policy.call_policy import CallRules
from nodes.records import Effect, JsonMap

SHAPE = ["ok", "action", "args", "data", "error", "ms", "retries", "error_type"]
"""The fields of spec 4's ExecResult in its order, and the error's type that it proposes to add."""


class Action:
    """What spec 4 assumes of an action: a name, and `execute(**arguments)`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self._function, self.tries = name, function, 0

    def execute(self, **arguments: Any) -> Any:
        self.tries += 1
        return self._function(**arguments)


class Reading(Action):
    effect = Effect.READ


def echo(**arguments: Any) -> JsonMap:
    return arguments


def unchanged(arguments: JsonMap) -> JsonMap:
    return arguments


def fail(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def sleep(**_: Any) -> None:
    time.sleep(30)


# --- The skeleton and its shapes -------------------------------------------------------------------------------


def test_the_skeleton() -> None:
    environment = Environment()
    good = environment.execute_action(Action("add", lambda a, b: a + b), {"a": 1, "b": 2})
    bad = environment.execute_action(Action("add", fail(ValueError("b is missing"))), {"a": 1})
    assert list(good) == list(bad) == SHAPE
    assert {**good, "ms": 0} == ExecResult(True, "add", {"a": 1, "b": 2}, data=3).to_dict()
    assert {**bad, "ms": 0} == ExecResult(
        False, "add", {"a": 1}, error="b is missing", error_type="ValueError"
    ).to_dict()
    assert isinstance(good["ms"], int)
    assert good["ms"] >= 0


def test_what_the_constructor_stores() -> None:
    environment = Environment()
    stored = {
        name: getattr(environment, name)
        for name in (
            "base_dir", "allowed_exts", "allow_net", "allowed_domains", "timeout_s", "max_retries", "retry_backoff_s",
            "retry_exceptions", "arg_validators", "logger",
        )
    }  # fmt: skip
    assert stored == {
        "base_dir": None,
        "allowed_exts": {".txt", ".md"},
        "allow_net": False,
        "allowed_domains": set(),
        "timeout_s": 10.0,
        "max_retries": 1,
        "retry_backoff_s": 0.5,
        "retry_exceptions": (TimeoutError,),
        "arg_validators": {},
        "logger": None,
    }


def test_what_the_constructor_makes_of_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logger, validators = list[JsonMap]().append, {"x": unchanged}
    environment = Environment(
        base_dir="docs",
        allowed_exts=iter([".py"]),
        allow_net=True,
        allowed_domains=iter(["api.example.com"]),
        timeout_s=5,
        max_retries=2,
        retry_backoff_s=1,
        retry_exceptions=(TimeoutError, ConnectionError),
        arg_validators=validators,
        logger=logger,
    )
    assert environment.base_dir == os.path.abspath("docs")
    assert (environment.allowed_exts, environment.allowed_domains) == ({".py"}, {"api.example.com"})
    assert (environment.allow_net, environment.timeout_s) == (True, 5.0)
    assert isinstance(environment.timeout_s, float)
    assert (environment.max_retries, environment.retry_backoff_s) == (2, 1.0)
    assert environment.retry_exceptions == (TimeoutError, ConnectionError)
    assert environment.arg_validators == validators
    assert environment.logger == logger


def test_its_settings_may_be_changed(tmp_path: Path) -> None:
    records: list[JsonMap] = []
    environment, get = Environment(allowed_domains={"a.example"}), Action("http_get", echo)
    read, slow = Action("read_file", echo), Action("slow", sleep)
    environment.allow_net = True
    environment.allowed_domains.add("x.example")
    environment.allowed_exts.discard(".md")
    environment.base_dir = str(tmp_path)
    environment.timeout_s, environment.max_retries = 0.05, 0
    environment.logger = records.append
    environment.arg_validators["slow"] = fail(KeyError("when"))
    assert environment.execute_action(get, {"url": "https://x.example"})["ok"]
    assert environment.execute_action(read, {"file_name": "a.md"})["error"] == "Extension '.md' not allowed."
    assert environment.execute_action(read, {"file_name": "../a.txt"})["error"] == "Path traversal blocked."
    assert environment.execute_action(slow, {})["error_type"] == "KeyError"
    environment.arg_validators.clear()
    assert environment.execute_action(slow, {})["error"] == "Action 'slow' timed out after 0.1s"
    assert (slow.tries, len(records)) == (1, 5)


# --- Quick configuration examples ------------------------------------------------------------------------------


def test_read_only_files_text_only(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    environment = Environment(base_dir=str(tmp_path), allowed_exts={".txt", ".md"})
    read = Action("read_file", lambda file_name: Path(file_name).read_text())
    assert environment.execute_action(read, {"file_name": "notes.txt"})["data"] == "hello"
    assert environment.execute_action(read, {"file_name": "a.py"})["error"] == "Extension '.py' not allowed."


def test_web_calls_but_only_to_a_safe_host_with_a_short_timeout() -> None:
    environment = Environment(allow_net=True, allowed_domains={"api.example.com"}, timeout_s=5.0)
    get = Action("http_get", echo)
    assert environment.execute_action(get, {"url": "https://api.example.com/x"})["ok"]
    assert environment.execute_action(get, {"url": "https://evil.com"})["error"] == "Domain 'evil.com' not allowed."
    assert environment.timeout_s == 5.0


def test_a_semantic_validator_for_a_write_tool(tmp_path: Path) -> None:
    def validate_write(args: JsonMap) -> JsonMap:
        if not args.get("content"):
            raise ValueError("content must be non-empty")
        return args

    environment = Environment(base_dir=str(tmp_path), arg_validators={"write_file": validate_write})
    write = Action("write_file", echo)
    empty = environment.execute_action(write, {"file_name": "a.txt", "content": ""})
    assert (empty["ok"], empty["error"], write.tries) == (False, "content must be non-empty", 0)
    assert environment.execute_action(write, {"file_name": "a.txt", "content": "x"})["ok"]


def test_retry_only_on_timeouts_once_with_a_short_backoff() -> None:
    environment = Environment(max_retries=1, retry_backoff_s=0.3, retry_exceptions=(TimeoutError,), timeout_s=0.05)
    late, broken = Reading("late", sleep), Reading("broken", fail(ConnectionError("reset")))
    started = time.monotonic()
    result = environment.execute_action(late, {})
    assert time.monotonic() - started >= 0.3
    assert (result["retries"], late.tries) == (1, 2)
    assert (environment.execute_action(broken, {})["retries"], broken.tries) == (0, 1)


# --- Quick checklist, line by line -----------------------------------------------------------------------------


def test_tool_name_is_whitelisted() -> None:
    environment = Environment(rules=CallRules(allowed=frozenset({"read_file"})))
    rocket = Action("launch_rocket", echo)
    result = environment.execute_action(rocket, {})
    assert result["error"] == "The tool launch_rocket is not allowed in this run. Allowed are: read_file."
    assert (result["error_type"], rocket.tries) == ("PermissionError", 0)


@pytest.mark.parametrize(
    ("action", "args", "error"),
    [
        ("read_file", {"file_name": 3}, "A path must be text."),
        ("write_file", {"file_name": "a.txt"}, "Missing or invalid 'content' for write/append operation."),
        ("append_file", {"file_name": "a.txt"}, "Missing or invalid 'content' for write/append operation."),
        ("http_get", {}, "A non-empty 'url' is required."),
        ("divide", {"a": 1, "b": 0}, "b must not be 0"),
    ],
)
def test_args_pass_schema_and_semantic_validation(action: str, args: JsonMap, error: str) -> None:
    def divide(given: JsonMap) -> JsonMap:
        if given["b"] == 0:
            raise ValueError("b must not be 0")
        return given

    environment = Environment(allow_net=True, arg_validators={"divide": divide})
    run = Action(action, echo)
    assert (environment.execute_action(run, args)["error"], run.tries) == (error, 0)


@pytest.mark.parametrize("action", ["read_file", "write_file", "search_in_file", "append_file"])
def test_file_paths_stay_inside_base_dir_and_extensions_are_allowed(tmp_path: Path, action: str) -> None:
    base = tmp_path / "base"
    base.mkdir()
    environment, run = Environment(base_dir=str(base)), Action(action, lambda file_name, **_: file_name)

    def result_of(file_name: str) -> JsonMap:
        return environment.execute_action(run, {"file_name": file_name, "content": "c"})

    assert result_of("../a.txt")["error"] == "Path traversal blocked."
    assert result_of("../base-evil/a.txt")["error"] == "Path traversal blocked."
    assert result_of("a.exe")["error"] == "Extension '.exe' not allowed."
    assert result_of("a.txt")["data"] == str(base.resolve() / "a.txt")


def test_without_a_base_dir_there_is_no_restriction() -> None:
    environment = Environment(allowed_exts=None)
    names = ("../a.exe", "/etc/passwd")
    results = [environment.execute_action(Action("read_file", echo), {"file_name": name}) for name in names]
    assert [result["data"]["file_name"] for result in results] == [os.path.abspath(name) for name in names]


@pytest.mark.parametrize("action", ["http_get", "http_post", "fetch_url"])
def test_network_disabled_or_domains_allowlisted(action: str) -> None:
    args = {"url": "https://api.example.com"}
    closed = Environment(allowed_domains=["api.example.com"])
    assert (
        closed.execute_action(Action(action, echo), args)["error"] == "Network access is disabled in this Environment."
    )
    assert Environment(allow_net=True).execute_action(Action(action, echo), args)["ok"]
    elsewhere = Environment(allow_net=True, allowed_domains=["other.example.com"])
    assert elsewhere.execute_action(Action(action, echo), args)["error"] == "Domain 'api.example.com' not allowed."


def test_per_call_timeout() -> None:
    started = time.monotonic()
    result = Environment(timeout_s=0.1).execute_action(Action("sleepy", sleep), {})
    assert time.monotonic() - started < 10
    assert result["error"] == "Action 'sleepy' timed out after 0.1s"


@pytest.mark.parametrize(("max_retries", "tries"), [(0, 1), (1, 2), (3, 4)])
def test_limited_retries_really_counted(max_retries: int, tries: int) -> None:
    """Spec 4's code makes one attempt too many, and reports none of them; its text is what counts."""
    environment = Environment(max_retries=max_retries, retry_backoff_s=0, retry_exceptions=(ConnectionError,))
    action = Action("fetch", fail(ConnectionError("reset")))
    result = environment.execute_action(action, {})
    assert (action.tries, result["retries"], result["error"]) == (tries, tries - 1, "reset")


def test_output_normalized_and_sensitive_values_redacted() -> None:
    args = {
        "password": "hunter2", "client_secret": "s", "session_token": "t", "api_key": "k", "apikey": "k",
        "Authorization": "a", "bearer": "b", "user": "ann", "nested": {"list": [{"password": "p", "n": 1}]},
    }  # fmt: skip
    seen: list[JsonMap] = []
    result = Environment().execute_action(Action("login", lambda **given: seen.append(given)), args)
    hidden = dict.fromkeys(list(args)[:7], "***")
    assert result["args"] == {**hidden, "user": "ann", "nested": {"list": [{"password": "***", "n": 1}]}}
    assert seen == [args]


def test_logs_include_action_elapsed_ms_and_outcome() -> None:
    records: list[JsonMap] = []
    environment = Environment(logger=records.append)
    environment.execute_action(Action("login", lambda **_: {"token": "t0p"}), {"password": "hunter2"})
    environment.execute_action(Action("login", fail(RuntimeError("refused"))), {"password": "hunter2"})
    assert all(isinstance(record["ms"], int) for record in records)
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


def test_never_let_logging_break_execution() -> None:
    environment = Environment(logger=fail(OSError("disk full")))
    assert environment.execute_action(Action("add", lambda: 3), {})["data"] == 3


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit("s"), MemoryError("m"), AssertionError("a")])
def test_it_returns_instead_of_crashing(error: BaseException) -> None:
    result = Environment().execute_action(Action("x", fail(error)), {})
    assert (result["ok"], result["error"], result["error_type"]) == (False, str(error), type(error).__name__)
