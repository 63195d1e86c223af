"""A call, a path and an address end in spec 4's Environment as in the machine: there is one code for both."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mendgraph.nodes.execute_tools.call_policy import (
    BreakerConfig,
    CallPolicy,
    CallRules,
    PolicyMemory,
    RateLimit,
    RetryPolicy,
)
from mendgraph.nodes.execute_tools.engine import Engine, EngineConfig
from mendgraph.nodes.execute_tools.environment import Environment
from mendgraph.nodes.execute_tools.files.sandbox import PathAccess, PathSandbox
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules, judge_url
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.tool_run import RetryableToolError
from mendgraph.nodes.execute_tools.trace import TraceSink
from mendgraph.nodes.records import Effect, JsonMap, ToolCall, ToolError, ToolErrorCode
from tests.nodes.execute_tools.action_doubles import Do, echo, fail

READER = RetryPolicy(max_retries=2, backoff_s=0, exceptions=(TimeoutError, ConnectionError))
RULES = CallRules(
    retries=READER,
    allowed=frozenset({"x", "late", "few", "often"}),
    timeouts={"late": 0.05},
    quotas={"few": 1},
    rate_limits={"often": RateLimit(1, 60)},
)
ENDINGS: list[tuple[str, Callable[..., Any]]] = [
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


def by_the_machine(name: str, function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """The action as a tool of a run: ok, reason, kind and retries of two calls, as `tool_runtime` makes them."""
    tool = Tool(name, name, Anything, Effect.READ, lambda _, __: function())
    policy = CallPolicy(RULES, PolicyMemory(lambda: 5.0, BreakerConfig(failures=2)))
    engine = Engine(ActionRegistry([tool]), TraceSink(), EngineConfig(), policy=policy, redactor=Redactor())
    context = ToolContext(Workspace("/", lambda *_: None))
    call = ToolCall(call_id="", tool=name, arguments={"b": 0}, raw_arguments="")
    runs = [engine.run_sync(call, context) for _ in range(2)]
    found = []
    for run in runs:
        error = run.result.error
        kind = None if error is None else run.error_type or error.code.value
        reason = None if error is None else run.error.partition(":")[2] or error.message
        found.append((run.result.ok, "" if kind == "TimeoutError" else reason, kind, max(0, run.attempts - 1)))
    return found


def by_the_environment(name: str, function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    records: list[JsonMap] = []
    environment = Environment(
        max_retries=2, retry_backoff_s=0, retry_exceptions=READER.exceptions, rules=RULES, logger=records.append,
        breaker=BreakerConfig(failures=2), clock=lambda: 5.0,
    )  # fmt: skip
    for _ in range(2):
        environment.execute(Do(name, lambda **_: function(), Effect.READ), {"b": 0})
    return [
        (
            record["ok"],
            "" if record["error_type"] == "TimeoutError" else record["error"],
            record["error_type"],
            record["retries"],
        )
        for record in records
    ]


@pytest.mark.parametrize("place", range(len(ENDINGS)))
def test_call_ends_in_the_environment_as_it_ends_in_the_machine(place: int) -> None:
    name, function = ENDINGS[place]
    assert by_the_environment(name, function) == by_the_machine(name, function)


@pytest.mark.parametrize(
    "path", ["a.txt", "b/../a.txt", "../a.txt", "out.txt", "/etc/hosts", "~/a.txt", "", "a\x00.txt", "b/../../a.txt"]
)
def test_path_is_judged_in_the_environment_as_in_the_machine(tmp_path: Path, path: str) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "a.txt").write_text("x")
    (base / "out.txt").symlink_to(tmp_path / "secret.txt")
    by_the_sandbox = PathSandbox(str(base)).locate(path, PathAccess.READ_FILE)
    result = Environment(base_dir=str(base)).execute(Do("read_file", echo), {"file_name": path})
    assert result.ok is not isinstance(by_the_sandbox, ToolError)
    if isinstance(by_the_sandbox, ToolError):
        denied = by_the_sandbox.code is ToolErrorCode.PERMISSION_DENIED
        assert result.error_type == ("PermissionError" if denied else "ValueError")


@pytest.mark.parametrize(
    "url",
    [
        "https://a.test", "http://A.test./x", "https://b.test", "https://a.test@b.test", "https://b.test\\@a.test",
        "file:///a", "//a.test", "http://0x7f.1", "http://[::1]/", "https://x.wild.test", "https://wild.test",
        "https://a.test/\n", "http://münchen.test", "http://127.0.0.1",
    ],
)  # fmt: skip
def test_address_is_judged_in_the_environment_as_in_the_machine(url: str) -> None:
    hosts = ("a.test", "*.wild.test", "127.0.0.1", "münchen.test")
    judged = judge_url(url, NetworkRules(hosts=hosts))
    environment = Environment(allow_net=True, allowed_domains=hosts)
    assert environment.execute(Do("http_get", echo), {"url": url}).ok is not isinstance(judged, ToolError)
