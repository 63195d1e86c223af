import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.actions import ActionError
from mendgraph.nodes.execute_tools.call_policy import CallRules, RateLimit
from mendgraph.nodes.execute_tools.environment import Environment, ExecResult, IdempotentResults
from mendgraph.nodes.execute_tools.policy.circuit_breaker import BreakerConfig
from mendgraph.nodes.execute_tools.store.audit_log import AuditLog
from mendgraph.nodes.records import Effect, JsonMap
from tests.nodes.execute_tools.action_doubles import Do, Later, echo, fail


def plain(result: JsonMap) -> JsonMap:
    assert isinstance(result["ms"], int)
    assert result["ms"] >= 0
    return {**result, "ms": 0}


@pytest.mark.parametrize(
    ("value", "data"),
    [({"sum": 3}, {"sum": 3}), ("text", "text"), (3, 3), ([1, 2], [1, 2]), (True, True), ({"value": 1}, {"value": 1})],
)
def test_an_action_that_works(value: Any, data: Any) -> None:
    result = Environment().execute_action(Do("add", lambda **_: value), {"a": 1, "b": 2})
    assert plain(result) == {
        "ok": True,
        "action": "add",
        "args": {"a": 1, "b": 2},
        "data": data,
        "error": None,
        "error_type": None,
        "ms": 0,
        "retries": 0,
    }


@pytest.mark.parametrize(
    ("error", "message", "kind"),
    [
        (ValueError("b must not be 0"), "b must not be 0", "ValueError"),
        (RuntimeError("boom"), "boom", "RuntimeError"),
        (OSError(28, "No space left"), "[Errno 28] No space left", "OSError"),
        (SystemExit(3), "3", "SystemExit"),
    ],
)
def test_an_action_that_fails_has_the_same_shape(error: BaseException, message: str, kind: str) -> None:
    result = Environment().execute(Do("div", fail(error)), {"b": 0})
    assert result == ExecResult(False, "div", {"b": 0}, error=message, error_type=kind, ms=result.ms)


def test_the_callers_arguments_stay_as_they_are(tmp_path: Path) -> None:
    given = {"file_name": "a.txt"}
    Environment(base_dir=str(tmp_path)).execute_action(Do("read_file", echo), given)
    assert given == {"file_name": "a.txt"}


# --- Files -----------------------------------------------------------------------------------------------------


def test_paths_become_real_paths_in_the_base_folder(tmp_path: Path) -> None:
    action = Do("read_file", echo)
    result = Environment(base_dir=str(tmp_path)).execute(action, {"file_name": "notes/../a.txt"})
    assert result.ok
    assert action.calls == [{"file_name": str(tmp_path.resolve() / "a.txt")}]


@pytest.mark.parametrize("field", ["file_name", "path", "filename"])
@pytest.mark.parametrize("action", ["read_file", "write_file", "search_in_file", "append_file"])
@pytest.mark.parametrize("path", ["../a.txt", "/etc/a.txt", "x/../../a.txt", "link.txt", "~/a.txt"])
def test_paths_that_lead_out_are_blocked(tmp_path: Path, action: str, field: str, path: str) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (tmp_path / "base-evil").mkdir()
    (tmp_path / "outside.txt").write_text("x")
    (base / "link.txt").symlink_to(tmp_path / "outside.txt")
    run = Do(action, echo)
    result = Environment(base_dir=str(base)).execute(run, {field: path, "content": "c"})
    assert (result.ok, result.error, result.error_type, run.calls) == (
        False,
        "Path traversal blocked.",
        "PermissionError",
        [],
    )


def test_a_prefix_is_not_a_parent(tmp_path: Path) -> None:
    base = tmp_path / "root"
    base.mkdir()
    (tmp_path / "root-evil").mkdir()
    result = Environment(base_dir=str(base)).execute(Do("read_file", echo), {"file_name": "../root-evil/a.txt"})
    assert result.error == "Path traversal blocked."


def test_without_a_base_folder_paths_become_absolute_and_lead_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = Path.cwd()
    action = Do("read_file", echo)
    for path in ("a.txt", "../b.txt", "/etc/c.txt", Path("d.txt")):
        assert Environment().execute(action, {"file_name": path}).ok
    read = [call["file_name"] for call in action.calls]
    assert read == [str(here / "a.txt"), str(here.parent / "b.txt"), "/etc/c.txt", str(here / "d.txt")]


def test_a_path_may_be_a_path_object(tmp_path: Path) -> None:
    action, environment = Do("read_file", echo), Environment(base_dir=str(tmp_path))
    assert environment.execute(action, {"path": Path("a.txt")}).ok
    assert action.calls == [{"path": str(tmp_path.resolve() / "a.txt")}]
    assert environment.execute(action, {"path": Path("..") / "a.txt"}).error == "Path traversal blocked."
    assert environment.execute(action, {"path": b"a.txt"}).error == "A path must be text."


def test_the_base_folder_may_not_be_there_yet(tmp_path: Path) -> None:
    base = tmp_path / "content" / "docs"
    environment = Environment(base_dir=str(base), allowed_exts={".txt", ".md"})
    read = Do("read_file", lambda file_name: Path(file_name).read_text())

    def write(file_name: str, content: str) -> int:
        Path(file_name).parent.mkdir(parents=True, exist_ok=True)
        return Path(file_name).write_text(content)

    assert environment.execute(read, {"file_name": "a.txt"}).error_type == "FileNotFoundError"
    for path in ("../a.txt", str(tmp_path / "a.txt"), "../docs-evil/a.txt"):
        assert environment.execute(read, {"file_name": path}).error == "Path traversal blocked."
    assert environment.execute(Do("write_file", write), {"file_name": "a.txt", "content": "hello"}).ok
    assert environment.execute(read, {"file_name": "a.txt"}).data == "hello"
    (base / "out.txt").symlink_to(tmp_path / "secret.txt")
    assert environment.execute(read, {"file_name": "out.txt"}).error == "Path traversal blocked."


def test_a_file_may_be_moved_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    environment = Environment(base_dir=str(tmp_path))

    def error_of(action: str, **paths: str) -> str | None:
        return environment.execute(Do(action, echo), paths).error

    assert error_of("move_file", path="a.txt", target="docs") is None
    assert error_of("move_file", path="a.txt", target="new") == "Extension '' not allowed."
    assert error_of("move_file", path="docs", target="b.txt") == "Extension '' not allowed."
    assert error_of("delete_file", target="docs") == "Extension '' not allowed."
    assert error_of("move_file", path="a.txt", target="..") == "Path traversal blocked."


@pytest.mark.parametrize(
    ("exts", "name", "error"),
    [
        ((".txt", ".md"), "a.py", "Extension '.py' not allowed."),
        ((".txt",), "a.TXT", None),
        (None, "a.py", None),
        ((), "a.exe", None),
    ],
)
def test_kinds_of_files(tmp_path: Path, exts: tuple[str, ...] | None, name: str, error: str | None) -> None:
    environment = Environment(base_dir=str(tmp_path), allowed_exts=exts)
    assert environment.execute(Do("read_file", echo), {"file_name": name}).error == error


def test_the_default_kinds_are_text_and_markdown(tmp_path: Path) -> None:
    environment = Environment(base_dir=str(tmp_path))
    results = [
        environment.execute(Do("read_file", echo), {"file_name": f"a{ext}"}).ok for ext in (".txt", ".md", ".py")
    ]
    assert results == [True, True, False]


def test_writers_supply_content(tmp_path: Path) -> None:
    result = Environment(base_dir=str(tmp_path)).execute(Do("write_file", echo), {"file_name": "a.txt"})
    assert result.error == "Missing or invalid 'content' for write/append operation."
    assert result.error_type == "ValueError"


# --- Network ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "url", "error"),
    [
        ({}, "https://api.example.com", "Network access is disabled in this Environment."),
        ({"allow_net": True}, "https://anything.example", None),
        ({"allow_net": True, "allowed_domains": {"API.example.com"}}, "https://api.example.com/x", None),
        (
            {"allow_net": True, "allowed_domains": {"api.example.com"}},
            "https://evil.com",
            "Domain 'evil.com' not allowed.",
        ),
        ({"allow_net": True}, "", "A non-empty 'url' is required."),
    ],
)
def test_the_network(options: JsonMap, url: str, error: str | None) -> None:
    assert Environment(**options).execute(Do("http_get", echo), {"url": url}).error == error


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.com/api.example.com",
        "https://api.example.com.evil.com",
        "https://evil.com#api.example.com",
        "https://notapi.example.com",
        "https://api.example.com@evil.com",
        "https://evil.com\\@api.example.com",
        "file:///etc/passwd",
        "//api.example.com",
        "api.example.com",
    ],
)
def test_other_hosts_are_refused(url: str) -> None:
    environment = Environment(allow_net=True, allowed_domains={"api.example.com"})
    for action in ("http_get", "http_post", "fetch_url"):
        result = environment.execute(Do(action, echo), {"url": url})
        assert (result.ok, result.error_type) == (False, "PermissionError")


@pytest.mark.parametrize(
    "url", ["https://api.example.com/x", "http://API.example.com:8080", "https://api.example.com."]
)
def test_allowed_hosts_pass_with_any_port(url: str) -> None:
    environment = Environment(allow_net=True, allowed_domains={"api.example.com"})
    assert environment.execute(Do("http_get", echo), {"url": url}).ok


# --- Time and retries ------------------------------------------------------------------------------------------


def test_a_timeout_returns_at_once() -> None:
    started = time.monotonic()
    result = Environment(timeout_s=0.2, max_retries=0).execute(Do("sleepy", lambda: time.sleep(30)), {})
    assert time.monotonic() - started < 20
    assert (result.error, result.error_type) == ("Action 'sleepy' timed out after 0.2s", "TimeoutError")


@pytest.mark.parametrize(
    ("name", "effect", "retries"),
    [
        ("sleepy", None, 1),
        ("http_get", None, 1),
        ("read_file", None, 1),
        ("write_file", None, 0),
        ("append_file", None, 0),
        ("http_post", None, 0),
        ("sleepy", Effect.READ, 1),
        ("sleepy", Effect.NETWORK, 1),
        ("sleepy", Effect.WRITE, 0),
        ("sleepy", Effect.EXECUTE, 0),
    ],
)
def test_a_timeout_is_retried_unless_something_is_known_to_change(
    name: str, effect: Effect | None, retries: int
) -> None:
    environment = Environment(allow_net=True, retry_backoff_s=0)
    action = Do(name, fail(TimeoutError("late")), effect)
    result = environment.execute(action, {"file_name": "a.txt", "content": "c", "url": "http://a.example"})
    assert (result.error, result.retries, len(action.calls)) == ("late", retries, retries + 1)


@pytest.mark.parametrize(("failures", "retries", "ok"), [(0, 0, True), (1, 1, True), (2, 2, True), (3, 2, False)])
def test_listed_exceptions_are_retried_and_counted_truly(failures: int, retries: int, ok: bool) -> None:
    left = [ConnectionError("reset")] * failures

    def function() -> str:
        if left:
            raise left.pop()
        return "done"

    environment = Environment(max_retries=2, retry_backoff_s=0, retry_exceptions=(ConnectionError,))
    result = environment.execute(Do("fetch", function), {})
    assert (result.ok, result.retries) == (ok, retries)


def test_other_exceptions_are_not_retried() -> None:
    action = Do("x", fail(KeyError("k")))
    assert Environment(retry_backoff_s=0, max_retries=5).execute(action, {}).retries == 0
    assert len(action.calls) == 1


def test_each_tool_may_have_its_own_timeout() -> None:
    environment = Environment(timeout_s=20, rules=CallRules(timeouts={"sleepy": 0.05}))
    started = time.monotonic()
    assert environment.execute(Do("sleepy", lambda: time.sleep(10)), {}).error_type == "TimeoutError"
    assert time.monotonic() - started < 5


def test_a_timeout_of_its_own_may_be_longer_and_is_named() -> None:
    slow = CallRules(timeouts={"sleepy": 1.0, "later": 0.25})
    environment = Environment(timeout_s=0.05, rules=slow, max_retries=0)
    assert environment.execute(Do("sleepy", lambda: time.sleep(0.2)), {}).ok
    assert environment.execute(Later(0.1), {"a": 1}).data == {"a": 1}
    assert environment.execute(Later(30), {}).error == "Action 'later' timed out after 0.2s"
    assert environment.execute(Do("other", lambda: time.sleep(30)), {}).error == "Action 'other' timed out after 0.1s"


def test_a_timeout_of_the_actions_own_keeps_its_words() -> None:
    result = Environment(retry_backoff_s=0).execute(
        Do("fetch", fail(TimeoutError("no answer from db")), Effect.READ), {}
    )
    assert (result.error, result.error_type, result.retries) == ("no answer from db", "TimeoutError", 1)


def test_a_timeout_may_be_endless() -> None:
    assert Environment(timeout_s=float("inf")).execute(Do("x", lambda: 1), {}).data == 1


def test_async_actions_run_as_well() -> None:
    assert Environment().execute(Later(0), {"a": 1}).data == {"a": 1}
    assert Environment().execute(Do("hidden", lambda **given: Later(0).execute(**given)), {"a": 1}).data == {"a": 1}


# --- The steps that a subclass may override --------------------------------------------------------------------


class Told(Environment):
    """Overrides each step with spec 4's own signature, and goes on as usual."""

    _REDACT_KEYS = re.compile("ssn")

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.steps: list[str] = []

    def _prepare_args(self, action_name: str, args: dict[str, Any]) -> dict[str, Any]:
        self.steps.append("prepare")
        return super()._prepare_args(action_name, args)

    def _run_with_retries(self, action: Any, args: dict[str, Any]) -> Any:
        self.steps.append("retries")
        return super()._run_with_retries(action, args)

    def _run_with_timeout(self, action: Any, args: dict[str, Any], timeout_s: float) -> Any:
        self.steps.append(f"attempt {timeout_s}")
        return super()._run_with_timeout(action, args, timeout_s)

    def _safe_path(self, file_name: str) -> str:
        self.steps.append("path")
        return super()._safe_path(file_name)

    def _check_extension(self, full_path: str) -> None:
        self.steps.append("extension")
        super()._check_extension(full_path)

    def _check_domain(self, url: str) -> None:
        self.steps.append("domain")
        super()._check_domain(url)

    def _log(self, record: JsonMap) -> None:
        self.steps.append("log")
        super()._log(record)

    def _redact(self, obj: Any) -> Any:
        self.steps.append("redact")
        return super()._redact(obj)


def test_a_subclass_sees_each_step() -> None:
    environment = Told(retry_backoff_s=0, allow_net=True, timeout_s=3, logger=list[JsonMap]().append)
    assert environment.execute_action(Do("http_get", fail(TimeoutError("late"))), {"url": "http://a.b"})["retries"] == 1
    assert environment.steps == [
        "prepare", "domain", "retries", "attempt 3.0", "attempt 3.0", "redact", "log", "redact"
    ]  # fmt: skip
    environment.steps.clear()
    assert environment.execute_action(Do("read_file", echo), {"file_name": "a.txt"})["ok"]
    assert environment.steps[:3] == ["prepare", "path", "extension"]


def test_a_subclass_may_do_each_step_in_its_own_way() -> None:
    class Own(Environment):
        _REDACT_KEYS = re.compile("ssn")

        def _run_with_timeout(self, action: Any, args: dict[str, Any], timeout_s: float) -> Any:
            try:
                return super()._run_with_timeout(action, args, timeout_s / 100)
            except TimeoutError as error:
                return str(error)

        def _run_with_retries(self, action: Any, args: dict[str, Any]) -> Any:
            try:
                return super()._run_with_retries(action, args)
            except ZeroDivisionError:
                return "no number"

        def _safe_path(self, file_name: str) -> str:
            return f"/safe/{file_name}"

    environment = Own(timeout_s=5)
    result = environment.execute(Do("slow", lambda **_: time.sleep(30)), {"ssn": "1-2", "password": "p", "n": 1})
    assert (result.data, result.args) == (
        "Action 'slow' timed out after 0.1s",
        {"ssn": "***", "password": "***", "n": 1},
    )
    assert environment.execute(Do("div", fail(ZeroDivisionError("0"))), {}).data == "no number"
    assert environment.execute(Do("read_file", echo), {"file_name": "a.txt"}).data == {"file_name": "/safe/a.txt"}


def test_each_step_works_by_itself(tmp_path: Path) -> None:
    environment = Environment(base_dir=str(tmp_path), retry_backoff_s=0, allowed_domains={"a.b"})
    prepared = environment._prepare_args("read_file", {"file_name": "a.txt"})
    assert (
        prepared == {"file_name": environment._safe_path("a.txt")} == {"file_name": str(tmp_path.resolve() / "a.txt")}
    )
    assert environment._run_with_retries(Do("x", echo), {"a": 1}) == {"a": 1}
    assert environment._redact([{"token": "t", "n": [1]}]) == [{"token": "***", "n": [1]}]
    with pytest.raises(TimeoutError, match=r"^Action 'x' timed out after 0\.1s$"):
        environment._run_with_timeout(Do("x", lambda: time.sleep(30)), {}, 0.1)
    with pytest.raises(KeyError):
        environment._run_with_retries(Do("x", fail(KeyError("k"))), {})
    with pytest.raises(PermissionError, match=r"^Domain 'c\.d' not allowed\.$"):
        environment._check_domain("http://c.d")
    with pytest.raises(PermissionError, match=r"^Extension '\.PY' not allowed\.$"):
        environment._check_extension("a.PY")


# --- Policy ----------------------------------------------------------------------------------------------------


def test_validators_check_and_normalise() -> None:
    def divide(args: JsonMap) -> JsonMap:
        if args["b"] == 0:
            raise ValueError("b must not be 0")
        return {**args, "a": float(args["a"])}

    environment = Environment(arg_validators={"divide": divide})
    assert environment.execute(Do("divide", echo), {"a": 1, "b": 0}).error == "b must not be 0"
    result = environment.execute(Do("divide", echo), {"a": 1, "b": 2})
    assert (result.data, result.args) == ({"a": 1.0, "b": 2}, {"a": 1.0, "b": 2})


def test_a_validator_may_give_objects_and_cannot_change_the_callers_map() -> None:
    thing, given = object(), {"a": 1}
    action = Do("x", lambda **_: 1)
    environment = Environment(arg_validators={"x": lambda args: args.update(a=thing) or args})
    assert environment.execute(action, given).ok
    assert (action.calls, given) == ([{"a": thing}], {"a": 1})


def test_read_only_roles_quotas_and_rates() -> None:
    write, read = Do("write_it", echo), Do("read_file", echo)
    assert Environment(rules=CallRules(read_only=True)).execute(write, {}).error_type == "PermissionError"
    assert Environment(rules=CallRules(read_only=True)).execute(read, {}).ok
    assert not Environment(rules=CallRules(allowed=frozenset({"write_it"}))).execute(read, {}).ok
    limited = Environment(rules=CallRules(quotas={"read_file": 1}))
    assert [limited.execute(read, {}).error_type for _ in range(2)] == [None, "QuotaError"]
    rated = Environment(rules=CallRules(rate_limits={"read_file": RateLimit(1, 60)}), clock=lambda: 5.0)
    assert [rated.execute(read, {}).error_type for _ in range(2)] == [None, "RateLimitError"]
    assert len(read.calls) == 3


def test_without_a_breaker_no_failure_locks_an_action() -> None:
    environment = Environment()
    kinds = [environment.execute(Do("x", fail(ConnectionError("reset"))), {}).error_type for _ in range(9)]
    assert kinds == ["ConnectionError"] * 9


def test_an_endpoint_that_is_down_rests_and_a_mistake_does_not_lock() -> None:
    now = [0.0]
    environment = Environment(
        breaker=BreakerConfig(failures=2, open_s=30), allow_net=True, retry_backoff_s=0, clock=lambda: now[0]
    )
    down = [
        Do("x", fail(ConnectionError("reset"))),
        Do("http_get", lambda **_: {"status": 503}),
        Do("http_post", fail(TimeoutError("late"))),
    ]
    for action in down:
        kinds = [environment.execute(action, {"url": "http://a.example"}).error_type for _ in range(3)]
        assert kinds[2] == "CircuitOpenError"
    now[0] = 30.0
    assert environment.execute(Do("x", echo), {}).ok
    for error in (FileNotFoundError(2, "no such file"), ValueError("b"), KeyError("k"), TimeoutError("late")):
        kinds = [environment.execute(Do("read_file", fail(error)), {}).error_type for _ in range(5)]
        assert kinds == [type(error).__name__] * 5


def test_the_same_key_has_its_effect_once() -> None:
    environment, action = Environment(), Do("pay", lambda **_: "paid")
    first = environment.execute_action(action, {"cents": 5}, idempotency_key="k")
    assert environment.execute_action(action, {"cents": 5}, idempotency_key="k") == first
    assert environment.execute_action(action, {"cents": 6}, idempotency_key="k")["error_type"] == "IdempotencyError"
    assert environment.execute_action(action, {"cents": 5}, idempotency_key="other")["ok"]
    assert action.calls == [{"cents": 5}, {"cents": 5}]


# --- What is told ----------------------------------------------------------------------------------------------


def test_every_action_is_logged_without_secrets(tmp_path: Path) -> None:
    records: list[JsonMap] = []
    known = "xyzzy-" + "plugh-4711"
    environment = Environment(logger=records.append, secrets=[known], audit=AuditLog(str(tmp_path)))
    action = Do("login", lambda note, **_: {"note": note, "session_token": "tr0ub4dor" + "-Xk29"})
    good = environment.execute_action(action, {"password": "hunter2-hunter2", "note": f"it is {known}"})
    environment.execute_action(Do("login", fail(RuntimeError(f"no {known}"))), {})
    assert [record["event"] for record in records] == ["action_ok", "action_error"]
    assert good["args"] == {"password": "***", "note": "it is ***"}
    written = (tmp_path / "audit.jsonl").read_text("utf-8")
    for text in (json.dumps(records), json.dumps(good), written):
        assert known not in text
        assert "hunter2" not in text
        assert "tr0ub4dor" not in text
    assert [json.loads(line)["event"] for line in written.splitlines()] == ["action_ok", "action_error"]


def test_an_alert_is_logged_when_the_error_rate_jumps() -> None:
    records: list[JsonMap] = []
    environment = Environment(logger=records.append)
    for _ in range(8):
        environment.execute_action(Do("x", fail(RuntimeError("boom"))), {})
    alerts = [record for record in records if record["event"] == "alert"]
    assert [alert["kind"] for alert in alerts] == ["error_rate"]


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_at_all_is_a_timeout_and_not_an_endless_one(seconds: float) -> None:
    result = Environment(timeout_s=seconds, max_retries=0).execute(Do("sleepy", lambda: time.sleep(1)), {})
    assert (result.error_type, result.ms < 900) == ("TimeoutError", True)


def test_one_exception_and_no_extensions_may_stand_as_the_document_allows() -> None:
    environment = Environment(retry_exceptions=OSError, retry_backoff_s=0)  # type: ignore[arg-type]
    environment.allowed_exts = None  # type: ignore[assignment]
    assert environment.execute(Do("read_file", fail(OSError("x"))), {"file_name": "a.py"}).retries == 1


def test_a_refusal_of_the_moment_does_not_use_up_its_idempotency_key() -> None:
    now = [0.0]
    once = CallRules(rate_limits={"pay": RateLimit(1, 10)})
    environment, pay = Environment(rules=once, clock=lambda: now[0]), Do("pay", lambda: "paid")
    found = [environment.execute_action(pay, {}, idempotency_key=key)["error_type"] for key in ("a", "b")]
    now[0] = 20.0
    found.append(environment.execute_action(pay, {}, idempotency_key="b")["error_type"])
    assert found == [None, "RateLimitError", None]


OTHER_CALL = "belongs to another call: use a new key for other arguments"
IN_PROGRESS = "is being made at this moment: wait for its result"


def test_a_key_is_for_one_call_that_is_made_once_at_a_time() -> None:
    results, done = IdempotentResults(), ExecResult(True, "pay", {})
    assert results.begin("k", "f") is None
    for fingerprint, message in (("f", IN_PROGRESS), ("other", OTHER_CALL)):
        with pytest.raises(ActionError, match=message):
            results.begin("k", fingerprint)
    results.end("k", "f", done)
    assert results.begin("k", "f") is done
    with pytest.raises(ActionError, match=OTHER_CALL):
        results.begin("k", "other")


def test_the_result_unused_for_the_longest_is_forgotten_and_never_a_call_that_runs() -> None:
    results = IdempotentResults(most=2)
    results.begin("running", "f")
    for key in ("a", "b"):
        results.begin(key, "f")
        results.end(key, "f", ExecResult(True, key, {}))
    results.begin("a", "f")
    results.begin("c", "f")
    results.end("c", "f", ExecResult(True, "c", {}))
    known = {key: results.begin(key, "f") for key in ("a", "c", "b")}
    assert {key: each and each.action for key, each in known.items()} == {"a": "a", "c": "c", "b": None}
    with pytest.raises(ActionError, match=IN_PROGRESS):
        results.begin("running", "f")


class SlowKey(str):
    """A key that lets other threads go first whenever it is looked up."""

    __slots__ = ()

    def __hash__(self) -> int:
        time.sleep(0.001)
        return super().__hash__()


def test_of_many_threads_one_makes_the_call() -> None:
    results, start, made = IdempotentResults(), threading.Barrier(8), list[str]()

    def call(_: int) -> None:
        start.wait()
        for key in map(SlowKey, range(5)):
            with suppress(ActionError):
                if results.begin(key, "f") is None:
                    made.append(key)
                    results.end(key, "f", ExecResult(True, key, {}))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(8)))
    assert sorted(made) == ["0", "1", "2", "3", "4"]
