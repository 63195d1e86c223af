from math import inf
from typing import Any

import pytest

from nodes.execute_tools.environment.network import HttpResponse, Network
from nodes.execute_tools.environment.url_rules import NetworkRules
from nodes.execute_tools.registry import ToolContext, ToolOutput
from nodes.execute_tools.tools.http_get import http_get
from nodes.records import Effect, ToolError, ToolErrorCode, ToolResult
from tests.nodes.execute_tools.tools.conftest import Bench


class Scripted(Network):
    """A network that gives one answer, and remembers what it was asked."""

    def __init__(self, answer: HttpResponse | ToolError) -> None:
        super().__init__(NetworkRules())
        self.answer = answer
        self.asked: list[tuple[str, float]] = []

    def get(self, url: str, timeout_s: float) -> HttpResponse | ToolError:
        self.asked.append((url, timeout_s))
        return self.answer


def run(bench: Bench, network: Network | None, **context: Any) -> ToolResult:
    output: ToolOutput = http_get.s(ToolContext(bench.workspace, network=network, **context), url="http://a.test/")
    return output.result


def test_a_document_is_given_as_it_is(bench: Bench) -> None:
    network = Scripted(HttpResponse(404, "http://a.test/b", "application/json", '{"a": "<p>"}', 12, cut=False))
    assert run(bench, network).as_map() == {
        "ok": True,
        "data": {
            "status": 404,
            "url": "http://a.test/b",
            "content_type": "application/json",
            "text": '{"a": "<p>"}',
            "size": 12,
            "has_more": False,
        },
    }


@pytest.mark.parametrize("kind", ["text/html", "application/xhtml+xml"])
def test_a_page_comes_as_its_text(bench: Bench, kind: str) -> None:
    network = Scripted(HttpResponse(200, "http://a.test/", kind, "<p>a</p><script>b</script>", 26, cut=True))
    data = run(bench, network).data
    assert (data["text"], data["size"], data["has_more"]) == ("a", 26, True)


@pytest.mark.parametrize(("timeout_s", "seconds_left", "given"), [(30.0, inf, 30.0), (30.0, 2.5, 2.5), (1.0, 9.0, 1.0)])
def test_it_takes_no_longer_than_the_call_and_the_turn_may(
    bench: Bench, timeout_s: float, seconds_left: float, given: float
) -> None:
    network = Scripted(HttpResponse(200, "", "text/plain", "", 0, cut=False))
    run(bench, network, timeout_s=timeout_s, seconds_left=seconds_left)
    assert network.asked == [("http://a.test/", given)]


def test_an_error_is_handed_on(bench: Bench) -> None:
    error = ToolError(code=ToolErrorCode.TIMEOUT, message="too slow")
    assert run(bench, Scripted(error)).error == error


def test_without_a_network_it_says_how_to_get_one(bench: Bench) -> None:
    """Spec 4's words, and the remedy."""
    message = (
        "Network access is disabled in this Environment. To allow it, whoever starts the run names hosts in"
        " `allowed_hosts` (`--allow-host`)."
    )
    assert run(bench, None).error == ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def test_how_it_is_declared() -> None:
    assert (http_get.name, http_get.effect, http_get.self_timed) == ("http_get", Effect.NETWORK, True)
    assert (http_get.cacheable, http_get.path_fields, http_get.isolated) == (False, (), False)
    assert http_get.description == (
        "Get a text, JSON or XML document from an allowed host; HTML comes as its readable text."
    )
    assert isinstance(http_get.validate({}), list)
    assert isinstance(http_get.validate({"url": 5}), list)
