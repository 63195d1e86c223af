import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.actions import ActionError
from mendgraph.nodes.execute_tools.call_policy import CallRules, RateLimit
from mendgraph.nodes.execute_tools.environment import Environment, ExecResult, IdempotentResults
from mendgraph.nodes.execute_tools.policy.circuit_breaker import BreakerConfig
from mendgraph.nodes.execute_tools.store.audit_log import AuditLog
from mendgraph.nodes.records import Effect, JsonMap
from tests.nodes.execute_tools.action_doubles import Do, Later, echo, fail

# --- Files -----------------------------------------------------------------------------------------------------


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


# --- Network ---------------------------------------------------------------------------------------------------


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


# --- Time and retries ------------------------------------------------------------------------------------------


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


def test_async_actions_run_as_well() -> None:
    assert Environment().execute(Later(0), {"a": 1}).data == {"a": 1}
    assert Environment().execute(Do("hidden", lambda **given: Later(0).execute(**given)), {"a": 1}).data == {"a": 1}


# --- The steps that a subclass may override --------------------------------------------------------------------


# --- Policy ----------------------------------------------------------------------------------------------------


def test_a_validator_may_give_objects_and_cannot_change_the_callers_map() -> None:
    thing, given = object(), {"a": 1}
    action = Do("x", lambda **_: 1)
    environment = Environment(arg_validators={"x": lambda args: args.update(a=thing) or args})
    assert environment.execute(action, given).ok
    assert (action.calls, given) == ([{"a": thing}], {"a": 1})


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
