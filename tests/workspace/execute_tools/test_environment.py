import asyncio
import csv
import io
import itertools
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.documents.environment import Environment
from mendgraph.nodes.execute_tools.call_policy import BreakerConfig, CallRules, RateLimit
from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.store.audit_log import AuditLog
from tests.row_tables import rows
from tests.workspace.execute_tools.action_doubles import Do, Later, echo, fail

READING = ("read_file", "search_in_file", "file_info", "list_files", "list_directory", "glob_files", "search_files")
WRITING = ("write_file", "append_file", "edit_file", "multi_edit", "delete_file", "move_file", "create_file")


def refused(environment: Environment, action: str, arguments: JsonMap) -> str | None:
    """The reason why the action is refused without being run."""
    run = Do(action, echo)
    result = environment.execute(run, {"content": "c", **arguments})
    assert result.ok is bool(run.calls)
    return result.error


@rows("../a.txt", "/etc/a.txt", "link.txt", "~/a.txt", "../base-evil/a.txt")
def test_path_that_leads_out_is_blocked(path: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (tmp_path / "base-evil").mkdir()
    (tmp_path / "outside.txt").write_text("x")
    (base / "link.txt").symlink_to(tmp_path / "outside.txt")
    environment, fields = Environment(base_dir=str(base)), ("file_name", "filename", "path", "target", "directory")
    errors = [refused(environment, action, {field: path}) for action in READING + WRITING for field in fields]
    assert errors == ["Path traversal blocked."] * len(errors)


def test_file_with_another_extension_is_refused_but_a_folder_is_not(tmp_path: Path) -> None:
    environment, files = Environment(base_dir=str(tmp_path)), (*READING[:3], *WRITING)
    assert {refused(environment, action, {"path": "a.py"}) for action in files} == {"Extension '.py' not allowed."}
    assert {refused(environment, action, {"path": "src"}) for action in READING[3:]} == {None}


@rows(
    ("read_file", {"path": ["a.txt"]}, "A path must be text."),
    ("fetch_url", {"url": "file:///etc/hosts"}, "not http or https"),
    ("fetch_url", {"url": "http://a:b@a.example"}, "user name or password"),
    ("read_file", ["a.txt"], "the arguments of an action are a mapping, not list"),
)
def test_arguments_that_cannot_be_checked_are_refused(action: str, arguments: Any, error: str) -> None:
    run = Do(action, echo)
    result = Environment(allow_net=True).execute_action(run, arguments)
    assert (result["ok"], run.calls) == (False, [])
    assert error in result["error"]


@rows("http_get", "http_post", "fetch_url")
def test_every_network_action_is_checked(action: str) -> None:
    open_to_one = Environment(allow_net=True, allowed_domains=["a.example"])
    closed = refused(Environment(), action, {"url": "http://a.example"})
    errors = [
        refused(open_to_one, action, arguments)
        for arguments in ({}, {"url": "http://b.example"}, {"url": "http://a.example"})
    ]
    assert closed == "Network access is disabled in this Environment."
    assert errors == ["A non-empty 'url' is required.", "Domain 'b.example' not allowed.", None]


@rows(
    *((name, None, 1) for name in ("sleepy", "http_get", "read_file")),
    *((name, None, 0) for name in (*WRITING, "http_post")),
    *(("sleepy", effect, 1) for effect in (Effect.READ, Effect.NETWORK)),
    *(("sleepy", effect, 0) for effect in (Effect.WRITE, Effect.EXECUTE)),
)
def test_timeout_is_retried_unless_the_action_may_change_something(
    name: str, effect: Effect | None, retries: int
) -> None:
    environment = Environment(allow_net=True, retry_backoff_s=0)
    action = Do(name, fail(TimeoutError("no answer from db")), effect)
    result = environment.execute(action, {"file_name": "a.txt", "content": "c", "url": "http://a.example"})
    assert (result.error, result.error_type) == ("no answer from db", "TimeoutError")
    assert (result.retries, len(action.calls)) == (retries, retries + 1)


def test_timeout_of_an_action_may_be_longer_and_is_named() -> None:
    slow = CallRules(timeouts={"sleepy": 1.0, "later": 0.25})
    environment = Environment(timeout_s=0.05, rules=slow, max_retries=0)
    assert environment.execute(Do("sleepy", lambda: time.sleep(0.2)), {}).ok
    assert environment.execute(Later(0.1), {"a": 1}).data == {"a": 1}
    assert environment.execute(Later(30), {}).error == "Action 'later' timed out after 0.2s"
    assert environment.execute(Do("other", lambda: time.sleep(30)), {}).error == "Action 'other' timed out after 0.1s"


def test_validator_may_return_objects_and_cannot_change_the_callers_dict() -> None:
    thing, arguments = object(), {"a": 1}
    action = Do("x", lambda **_: 1)
    environment = Environment(arg_validators={"x": lambda args: args.update(a=thing) or args})
    assert environment.execute(action, arguments).ok
    assert (action.calls, arguments) == ([{"a": thing}], {"a": 1})


def test_outage_opens_the_circuit_and_a_mistake_does_not() -> None:
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


def test_idempotency_key_runs_its_action_once() -> None:
    environment, action = Environment(), Do("pay", lambda **_: "paid")
    first = environment.execute_action(action, {"cents": 5}, idempotency_key="k")
    assert environment.execute_action(action, {"cents": 5}, idempotency_key="k") == first
    assert environment.execute_action(action, {"cents": 6}, idempotency_key="k")["error_type"] == "IdempotencyError"
    assert environment.execute_action(action, {"cents": 5}, idempotency_key="other")["ok"]
    assert action.calls == [{"cents": 5}, {"cents": 5}]


def test_every_action_is_logged_without_secrets(tmp_path: Path) -> None:
    records: list[JsonMap] = []
    secret = "xyzzy-" + "plugh-4711"
    environment = Environment(logger=records.append, secrets=[secret], audit=AuditLog(str(tmp_path)))
    action = Do("login", lambda note, **_: {"note": note, "session_token": "tr0ub4dor" + "-Xk29"})
    good = environment.execute_action(action, {"password": "hunter2-hunter2", "note": f"it is {secret}"})
    environment.execute_action(Do("login", fail(RuntimeError(f"no {secret}"))), {})
    assert [record["event"] for record in records] == ["action_ok", "action_error"]
    assert good["args"] == {"password": "***", "note": "it is ***"}
    written = (tmp_path / "audit.jsonl").read_text("utf-8")
    for text in (json.dumps(records), json.dumps(good), written):
        assert secret not in text
        assert "hunter2" not in text
    assert "tr0ub4dor" not in json.dumps(records) + written
    assert good["data"] == {"note": f"it is {MARK}", "session_token": "tr0ub4dor" + "-Xk29"}
    assert [json.loads(line)["event"] for line in written.splitlines()] == ["action_ok", "action_error"]


class Fighting:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def circle() -> JsonMap:
    values: JsonMap = {}
    values["a"] = values
    return values


@rows((Fighting(), "<Fighting>"), (2**70, 2**70), (circle(), "<dict>"), (b"\xff", "<bytes>"), ((Path("a"),), ["a"]))
def test_any_object_is_passed_unchanged_and_logged_by_its_type(value: Any, logged: Any) -> None:
    records = list[JsonMap]()
    action = Do("x", lambda **arguments: arguments["thing"])
    result = Environment(logger=records.append).execute(action, {"thing": value})
    assert (result.ok, result.error, result.args) == (True, None, {"thing": logged})
    assert result.data is action.calls[0]["thing"] is value
    assert records[0]["data"] == logged


def test_tool_error_returned_by_an_action_is_a_failure() -> None:
    error = ToolError(code=ToolErrorCode.NOT_FOUND, message="no such file")
    result = Environment().execute(Do("x", lambda: error), {})
    assert (result.ok, result.data, result.error, result.error_type) == (False, None, "no such file", "not_found")
    assert Environment().execute(Do("x", lambda: ToolOutput.ok(a=1)), {}).data == {"a": 1}


def test_redaction_mark_in_arguments_is_refused() -> None:
    action = Do("x", echo)
    assert Environment().execute(action, {"deep": [{"x": (MARK,)}]}).error_type == "ValueError"
    assert action.calls == []


def test_concurrent_call_with_the_same_key_is_refused() -> None:
    environment = Environment()

    def again(**_: object) -> str | None:
        return environment.execute(action, {}, idempotency_key="k").error

    action = Do("pay", again)
    first = environment.execute(action, {}, idempotency_key="k")
    assert first.data == "The same call is being made at this moment: wait for its result."
    assert len(action.calls) == 1


def test_result_of_the_oldest_key_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.nodes.documents.environment.MOST_RESULTS", 2)
    environment, pay = Environment(), Do("pay", lambda: "paid")
    for key in ("a", "b", "b", "c"):
        environment.execute(pay, {}, idempotency_key=key)
    first_calls = len(pay.calls)
    for key in ("c", "a"):
        environment.execute(pay, {}, idempotency_key=key)
    assert (first_calls, len(pay.calls)) == (3, 4)


def test_alert_is_logged_when_the_error_rate_jumps() -> None:
    records: list[JsonMap] = []
    environment = Environment(logger=records.append)
    for _ in range(8):
        environment.execute_action(Do("x", fail(RuntimeError("boom"))), {})
    alerts = [record for record in records if record["event"] == "alert"]
    assert [alert["kind"] for alert in alerts] == ["error_rate"]


def test_temporary_refusal_does_not_use_up_its_idempotency_key() -> None:
    now = [0.0]
    once = CallRules(rate_limits={"pay": RateLimit(1, 10)})
    environment, pay = Environment(rules=once, clock=lambda: now[0]), Do("pay", lambda: "paid")
    error_types = [environment.execute_action(pay, {}, idempotency_key=key)["error_type"] for key in ("a", "b")]
    now[0] = 20.0
    error_types.append(environment.execute_action(pay, {}, idempotency_key="b")["error_type"])
    assert error_types == [None, "RateLimitError", None]


DATABASE = sqlite3.connect(":memory:", check_same_thread=False)


def three_numbers() -> Iterator[int]:
    yield from (1, 2)


CONSUMABLE: list[Callable[[], Any]] = [
    three_numbers,
    lambda: map(str, [1, 2]),
    lambda: iter([1, 2]),
    lambda: io.StringIO("a\nb\n"),
    lambda: csv.reader(io.StringIO("a,b\nc,d")),
    lambda: DATABASE.execute("select 1 union select 2"),
    lambda: re.finditer("a", "aa"),
    lambda: Path("/").glob("*"),
]


@rows(*CONSUMABLE)
@rows([], ["xyzzy-" + "plugh-4711"])
def test_iterator_is_passed_on_unconsumed(secrets: list[str], make: Callable[[], Any]) -> None:
    records: list[JsonMap] = []
    environment = Environment(logger=records.append, secrets=secrets)

    bare = environment.execute_action(Do("rows", make), {})["data"]
    nested = environment.execute_action(Do("rows", lambda: {"rows": [make()]}), {})["data"]["rows"][0]
    count = environment.execute_action(Do("rows", lambda rows: len(list(rows))), {"rows": make()})["data"]

    assert len(list(bare)) == len(list(nested)) == count >= 2
    assert records[0]["data"] == f"<{type(make()).__name__}>"


def test_endless_result_is_not_iterated() -> None:
    result = Environment(logger=lambda _: None).execute_action(Do("count", itertools.count), {"start": 3})
    assert (result["ok"], next(result["data"])) == (True, 3)


def test_lazy_list_is_not_iterated() -> None:
    class Lazy(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("iterated")

    logged: list[JsonMap] = []
    environment = Environment(allowed_exts=None, logger=logged.append, secrets=["xyzzy" + "-4711-plugh"])
    result = environment.execute_action(Do("rows", lambda rows: rows), {"rows": Lazy([1, 2])})
    assert (type(result["data"]), result["args"], logged[0]["data"]) == (Lazy, {"rows": [1, 2]}, [1, 2])


def test_iterator_cannot_have_an_idempotency_key() -> None:
    action, numbers = Do("x", echo), iter([1, 2])
    result = Environment().execute_action(action, {"rows": numbers}, idempotency_key="k")
    assert (result["error_type"], action.calls, list(numbers)) == ("TypeError", [], [1, 2])


def test_long_result_is_logged_in_part_and_returned_in_full() -> None:
    records: list[JsonMap] = []
    table = [{"id": number, "name": "ann"} for number in range(20_000)]
    result = Environment(logger=records.append).execute_action(Do("rows", lambda: table), {})
    assert result["data"] is table
    assert records[0]["data"][0] == {"id": 0, "name": "ann"}
    assert len(json.dumps(records)) < 100_000
    assert records[0]["clipped"] == [f"data: {20_000 - len(records[0]['data'])} of 20000 items left out after item 500"]


def test_known_secret_is_redacted_and_the_rest_is_the_same_object() -> None:
    secret = "xyzzy-" + "plugh-4711"
    deep = [1, "harmless"]
    data = {"rows": (f"it is {secret}", deep), "deep": deep}
    result = Environment(secrets=[secret]).execute_action(Do("x", lambda: data), {})
    assert result["data"] == {"rows": (f"it is {MARK}", deep), "deep": deep}
    assert result["data"]["deep"] is deep


# --- Inside of a running event loop


def test_async_action_runs_from_sync_code_inside_a_loop() -> None:
    async def main() -> list[JsonMap]:
        environment = Environment(timeout_s=0.3, max_retries=0)
        return [environment.execute_action(Later(seconds), {"a": 1}) for seconds in (0, 30)]

    done, late = asyncio.run(main())
    assert done["data"] == {"a": 1}
    assert late["error"] == "Action 'later' timed out after 0.3s"


def test_result_of_a_coroutine_is_awaited() -> None:
    hidden = Do("hidden", lambda **arguments: Later(0).execute(**arguments))
    assert [Environment().execute(action, {"a": 1}).data for action in (Later(0), hidden)] == [{"a": 1}] * 2
