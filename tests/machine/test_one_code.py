"""A call, a path and an address end in spec 4's Environment as in the machine: there is one code for both."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel

from mendgraph import Effect, RetryableToolError, ToolContext, ToolError
from mendgraph.documents import ActionRegistry, Engine, EngineConfig, Environment, PathAccess, PathSandbox, TraceSink
from mendgraph.nodes.execute_tools.call_policy import (
    BreakerConfig,
    CallPolicy,
    CallRules,
    PolicyMemory,
    RateLimit,
    RetryPolicy,
)
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules, judge_url
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import ToolCall, ToolErrorCode

RETRIES = RetryPolicy(max_retries=2, backoff_s=0, exceptions=(TimeoutError, ConnectionError))
RULES = CallRules(
    retries=RETRIES,
    allowed=frozenset({"x", "late", "few", "often"}),
    timeouts={"late": 0.05},
    quotas={"few": 1},
    rate_limits={"often": RateLimit(1, 60)},
)
Function = Callable[..., Any]


def fail(error: BaseException) -> Function:
    def function(**_: Any) -> Any:
        raise error

    return function


ENDINGS: list[tuple[str, Function]] = [
    ("x", lambda **_: {"a": 1}),
    ("x", lambda **_: ToolError(code=ToolErrorCode.NOT_FOUND, message="no such file")),
    ("x", fail(ValueError("b must not be 0"))),
    ("x", fail(ValueError())),
    ("x", fail(RuntimeError("boom with token=hunter2-hunter2"))),
    ("x", fail(ConnectionError("reset"))),
    ("x", fail(RetryableToolError("busy"))),
    ("x", fail(SystemExit(3))),
    ("x", fail(TimeoutError("late"))),
    ("late", lambda **_: time.sleep(30)),
    ("few", lambda **_: 1),
    ("often", lambda **_: 1),
    ("unknown", lambda **_: 1),
]


class Anything(BaseModel):
    b: int = 0


def by_the_machine(name: str, function: Function) -> list[tuple[Any, ...]]:
    """The action as a tool of a run: ok, reason, kind and retries of two calls, as `tool_runtime` makes them."""
    tool = Tool(name, name, Anything, Effect.READ, lambda _, __: function())
    policy = CallPolicy(RULES, PolicyMemory(lambda: 5.0, BreakerConfig(failures=2)))
    engine = Engine(ActionRegistry([tool]), TraceSink(), EngineConfig(), policy=policy, redactor=Redactor())
    context = ToolContext(Workspace("/", lambda *_: None))
    call = ToolCall(call_id="", tool=name, arguments={"b": 0}, raw_arguments="")
    found = []
    for run in [engine.run_sync(call, context) for _ in range(2)]:
        error = run.result.error
        kind = None if error is None else run.error_type or error.code.value
        reason = None if error is None else run.error.partition(":")[2] or error.message
        found.append((run.result.ok, "" if kind == "TimeoutError" else reason, kind, max(0, run.attempts - 1)))
    return found


def action(name: str, function: Function) -> Any:
    return SimpleNamespace(name=name, execute=function, effect=Effect.READ)


def by_the_environment(name: str, function: Function) -> list[tuple[Any, ...]]:
    records: list[dict[str, Any]] = []
    environment = Environment(
        max_retries=2, retry_backoff_s=0, retry_exceptions=RETRIES.exceptions, rules=RULES, logger=records.append,
        breaker=BreakerConfig(failures=2), clock=lambda: 5.0,
    )  # fmt: skip
    for _ in range(2):
        environment.execute(action(name, lambda **_: function()), {"b": 0})
    shown = [tuple(record[each] for each in ("ok", "error", "error_type", "retries")) for record in records]
    return [(ok, "" if kind == "TimeoutError" else error, kind, retries) for ok, error, kind, retries in shown]


def test_call_ends_in_the_environment_as_it_ends_in_the_machine() -> None:
    for name, function in ENDINGS:
        assert by_the_environment(name, function) == by_the_machine(name, function)


def test_path_is_judged_in_the_environment_as_in_the_machine(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "a.txt").write_text("x")
    (base / "out.txt").symlink_to(tmp_path / "secret.txt")
    read = action("read_file", lambda **arguments: arguments)
    paths = ("a.txt", "b/../a.txt", "../a.txt", "out.txt", "/etc/hosts", "~/a.txt", "", "a\x00.txt", "b/../../a.txt")
    for path in paths:
        judged = PathSandbox(str(base)).locate(path, PathAccess.READ_FILE)
        result = Environment(base_dir=str(base)).execute(read, {"file_name": path})
        kinds = {ToolErrorCode.PERMISSION_DENIED: "PermissionError"}
        expected = kinds.get(judged.code, "ValueError") if isinstance(judged, ToolError) else None
        assert result.error_type == expected, path


def test_address_is_judged_in_the_environment_as_in_the_machine() -> None:
    hosts = ("a.test", "*.wild.test", "127.0.0.1", "münchen.test")
    get = action("http_get", lambda **arguments: arguments)
    urls = (
        *("https://a.test", "http://A.test./x", "https://b.test", "https://a.test@b.test", "https://b.test\\@a.test"),
        *("file:///a", "//a.test", "http://0x7f.1", "http://[::1]/", "https://x.wild.test", "https://wild.test"),
        *("https://a.test/\n", "http://münchen.test", "http://127.0.0.1"),
    )
    for url in urls:
        judged = judge_url(url, NetworkRules(hosts=hosts))
        environment = Environment(allow_net=True, allowed_domains=hosts)
        assert environment.execute(get, {"url": url}).ok is not isinstance(judged, ToolError), url
