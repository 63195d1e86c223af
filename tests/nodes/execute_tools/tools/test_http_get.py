import time
from math import inf
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.network.network import HttpResponse, Network
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools.http_get import http_get, readable_text
from mendgraph.nodes.records import ToolError, ToolErrorCode, ToolResult
from tests.nodes.execute_tools.conftest import Bench


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


def test_document_is_given_as_it_is(bench: Bench) -> None:
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
def test_page_comes_as_its_text(bench: Bench, kind: str) -> None:
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


def test_without_a_network_it_says_how_to_get_one(bench: Bench) -> None:
    """Spec 4's words, and the remedy."""
    message = (
        "Network access is disabled in this Environment. To allow it, whoever starts the run names hosts in"
        " `allowed_hosts` (`--allow-host`)."
    )
    assert run(bench, None).error == ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""), ("plain  text\n here", "plain text here"), ("<p>one</p><p>two</p>", "one\n\ntwo"),
        ("a<br>b<BR/>c", "a\nb\nc"), ("<ul><li>one</li><li>two</li></ul>", "- one\n- two"),
        ("<table><tr><td>a</td><td>b</td></tr><tr><th>c</th></tr></table>", "a b\n\nc"),
        ("<pre>  a\n    b  c\n</pre>", "a\n    b  c"), ("x<pre>a <b>b</b>\n  c</pre>  y  ", "x\n\na b\n  c\n\ny"),
        ('<a href="/b?c=1&amp;d=2">see</a>', "see (/b?c=1&d=2)"),
        ('<a href="#top">up</a> <a href="javascript:x()">go</a> <a name=x>here</a></a>', "up go here"),
        ("a &lt;b&gt; &amp; &copy; &#65;&#x42;", "a <b> & © AB"),
        ("<script>if (a < b) { '</p>' }</script>seen", "seen"),
        ("<SCRIPT type='x'>a</Script >seen<style>p {}</style><template>t</template><svg><text>x</text></svg>", "seen"),
        ("a<!-- <p>b</p> -->c", "ac"),
        ("<!DOCTYPE html><?xml?><html><head><title>T</title></head><body>b</body></html>", "T\nb"),
        ("1 < 2 and 3 <4 <", "1 < 2 and 3 <4 <"), ("a<!-- unfinished", "a"), ("a<p unfinished", "a"),
        ("a\n\n\n\n<p><p><p>b", "a\n\nb"), ("&#xD800;", "\ufffd"),
        ("</pre><pre> a", "a"),
    ],
)  # fmt: skip
def test_what_a_reader_sees(html: str, text: str) -> None:
    assert readable_text(html) == text


@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(["<", ">", "</", "<!--", "-->", "<p>", "<pre>", "</pre>", "<script>", "</script>", "<a href=x>",
                         "</a>", "&lt;", "&#", "a", " ", "\n", "<li>", "<td>", '"']), max_size=40
    ).map("".join)
)  # fmt: skip
def test_any_page_has_a_text(html: str) -> None:
    text = readable_text(html)
    assert text == text.strip()
    assert "\n\n\n" not in text


@pytest.mark.parametrize(
    "piece",
    ["<", "<!--", "<a ", "<a href=", "<p>", "<script>", "<pre>", "</", "&#", "& ", " \n", "<a href=x>", "href", '<a "'],
)
def test_hostile_pages_take_linear_time(piece: str) -> None:
    """200,000 characters; anything quadratic in them would take far longer."""
    began = time.process_time()
    readable_text(piece * (200_000 // len(piece)))
    assert time.process_time() - began < 20
