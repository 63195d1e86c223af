"""What a provider's prompt cache can reuse: each request begins with the whole previous request."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.report.page import make_report
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.records import ToolError
from tests.extent import LEVEL, sampled
from tests.providers.clients import client
from tests.providers.servers import FAMILIES, QUICK, say, use
from tests.providers.test_runs import ANSWER, EDIT, READ, TASK, context, project

NATIVE = tuple(name for name in FAMILIES if name != "no_tools")
GROWING = ("messages", "input", "contents")
"""The field of a request that holds its messages, at one provider or another."""
BEFORE_MESSAGES = (
    "model",
    "tools",
    "toolConfig",
    "tool_choice",
    "system",
    "systemInstruction",
    "instructions",
    "thinking",
)
"""The fields that providers put in front of the messages, or key their cache by."""


def without_cache_marks(value: Any) -> Any:
    """A request without its cache marks, which are not part of the cached text."""
    if isinstance(value, list):
        return [without_cache_marks(item) for item in value]
    if isinstance(value, dict):
        return {name: without_cache_marks(item) for name, item in value.items() if name != "cache_control"}
    return value


def requests_of(family: str, folder: Path) -> list[Any]:
    """The requests of a run in four calls that were answered."""
    script = [use(READ), use(EDIT), use(READ), say(ANSWER)]
    with FAMILIES[family](script) as server:
        result = run_task(TASK, context(project(folder), "native"), model=client(server))
        refused = [refusal.body for refusal in server.refusals]
        bodies = [request.body for request in server.requests if request.body not in refused]
    assert result.ok, result
    return [without_cache_marks(body) for body in bodies[-4:]]


@sampled
@pytest.mark.parametrize("family", NATIVE if LEVEL else QUICK)
def test_request_begins_with_the_whole_previous_request(family: str, tmp_path: Path) -> None:
    bodies = requests_of(family, tmp_path)
    (field,) = {*GROWING} & bodies[0].keys()
    shares = []
    for last, body in pairwise(bodies):
        for name in BEFORE_MESSAGES:
            assert body.get(name) == last.get(name), name
        assert body[field][: len(last[field])] == last[field]
        shares.append(len(json.dumps(last)) / len(json.dumps(body)))
    assert min(shares) > 0.7, shares


def test_report_shows_the_share_of_input_read_from_the_cache(tmp_path: Path) -> None:
    """The double of Anthropic bills marked parts as cache writes, and parts of an earlier request as cache reads."""
    with FAMILIES["anthropic"]([use(READ), use(EDIT), say(ANSWER)]) as server:
        result = run_task(TASK, context(project(tmp_path), "native"), model=client(server))
    report = make_report(result.run_id, tmp_path)
    assert not isinstance(report, ToolError)
    cache = report.cache
    assert cache["cached_tokens"] == result.usage["cached_tokens"]
    assert cache["cached_tokens"] == sum(step["cached_tokens"] for step in cache["steps"])
    assert cache["share"] == round(cache["cached_tokens"] / cache["input_tokens"], 4) > 0.3
    assert [(step["step"], step["cached_tokens"] > 0, step["broken"]) for step in cache["steps"]] == [
        (1, False, ""),
        (2, True, ""),
        (3, True, ""),
    ]
    assert f"<strong>{cache['share']:.0%}</strong> <span>of the input from the cache</span>" in report.page
    assert f"({cache['steps'][1]['cached_tokens']:,} from the cache)" in report.page
