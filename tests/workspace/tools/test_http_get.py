import time
from math import inf
from typing import Any

from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.network.html_text import readable_text
from mendgraph.nodes.execute_tools.network.network import HttpResponse, Network
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.tools.web import http_get
from mendgraph.nodes.records import ToolError, ToolErrorCode, ToolResult
from tests.row_tables import rows
from tests.workspace.conftest import Bench


class Scripted(Network):
    """A network that gives one answer, and remembers how long it was asked to wait."""

    def __init__(self, answer: HttpResponse | ToolError) -> None:
        super().__init__(NetworkRules())
        self.answer = answer
        self.seconds = 0.0

    def get(self, url: str, timeout_s: float) -> HttpResponse | ToolError:
        assert url == "http://a.test/"
        self.seconds = timeout_s
        return self.answer


def run(bench: Bench, network: Network | None, **context: Any) -> ToolResult:
    result: ToolResult = http_get.s(
        ToolContext(bench.workspace, network=network, **context), url="http://a.test/"
    ).result
    return result


@rows(
    ("application/json", '{"a": "<p>"}', '{"a": "<p>"}'),
    ("text/html", "<p>a</p><script>b</script>", "a"),
    ("application/xhtml+xml", "<p>a</p>", "a"),
)
def test_document_is_returned_verbatim_and_a_page_as_text(kind: str, body: str, text: str, bench: Bench) -> None:
    network = Scripted(HttpResponse(404, "http://a.test/b", kind, body, 26, cut=True))
    page = {"status": 404, "url": "http://a.test/b", "content_type": kind, "text": text, "size": 26, "has_more": True}
    assert run(bench, network) == ToolResult.success(**page)


@rows((30.0, inf, 30.0), (30.0, 2.5, 2.5), (1.0, 9.0, 1.0))
def test_request_timeout_is_the_least_of_call_and_turn(
    timeout_s: float, seconds_left: float, expected: float, bench: Bench
) -> None:
    network = Scripted(HttpResponse(200, "", "text/plain", "", 0, cut=False))
    run(bench, network, timeout_s=timeout_s, seconds_left=seconds_left)
    assert network.seconds == expected


def test_error_without_a_network_says_how_to_enable_it(bench: Bench) -> None:
    message = (
        "Network access is disabled in this Environment. The user can allow hosts with"
        " `allowed_hosts` (`--allow-host`)."
    )
    assert run(bench, None).error == ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def test_network_error_is_the_result_of_the_call(bench: Bench) -> None:
    gone = ToolError(code=ToolErrorCode.UNAVAILABLE, message="a.test does not answer.")
    assert run(bench, Scripted(gone)) == ToolResult(ok=False, error=gone)


READABLE = {
    "": "",
    "plain  text\n here": "plain text here",
    "<p>one</p><p>two</p>": "one\n\ntwo",
    "a<br>b<BR/>c": "a\nb\nc",
    "<ul><li>one</li><li>two</li></ul>": "- one\n- two",
    "<table><tr><td>a</td><td>b</td></tr><tr><th>c</th></tr></table>": "a b\n\nc",
    "x<pre>  a <b>b</b>\n    c</pre>  y  ": "x\n\n  a b\n    c\n\ny",
    '<a href="/b?c=1&amp;d=2">see</a>': "see (/b?c=1&d=2)",
    '<a href="#top">up</a> <a href="javascript:x()">go</a> <a name=x>here</a></a>': "up go here",
    "a &lt;b&gt; &amp; &copy; &#65;&#x42;": "a <b> & © AB",
    "<script>if (a < b) { '</p>' }</script>seen": "seen",
    "<SCRIPT type='x'>a</Script >seen<style>p {}</style><template>t</template><svg><text>x</text></svg>": "seen",
    "a<!-- <p>b</p> -->c": "ac",
    "<!DOCTYPE html><?xml?><html><head><title>T</title></head><body>b</body></html>": "T\nb",
    "1 < 2 and 3 <4 <": "1 < 2 and 3 <4 <",
    "a<!-- unfinished": "a",
    "a<p unfinished": "a",
    "a\n\n\n\n<p><p><p>b": "a\n\nb",
    "&#xD800;": "\ufffd",
    "</pre><pre> a": "a",
    f"&#{'9' * 5_000};": f"&#{'9' * 5_000};",
}


def test_text_of_a_page_is_what_a_reader_sees() -> None:
    assert {html: readable_text(html) for html in READABLE} == READABLE


TAGS = ["<", ">", "</", "<!--", "-->", "<p>", "<pre>", "</pre>", "<script>", "</script>", "<a href=x>", "</a>", "&lt;"]


@given(st.text(max_size=200) | st.lists(st.sampled_from([*TAGS, *'a \n"', "&#", "<li>", "<td>"])).map("".join))
def test_any_page_has_a_text(html: str) -> None:
    text = readable_text(html)
    assert text == text.strip()
    assert "\n\n\n" not in text


def test_time_for_hostile_pages_is_linear() -> None:
    """40,000 characters; anything quadratic in them would take far longer."""
    began = time.process_time()
    for piece in (*TAGS, "<a ", "<a href=", "&#", "& ", " \n", "href", '<a "'):
        readable_text(piece * (40_000 // len(piece)))
    assert time.process_time() - began < 20
