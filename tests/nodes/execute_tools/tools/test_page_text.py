import time

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.tools.page_text import readable_text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""),
        ("plain  text\n here", "plain text here"),
        ("<p>one</p><p>two</p>", "one\n\ntwo"),
        ("<div>one</div>\n<div>two</div>", "one\n\ntwo"),
        ("a<br>b<BR/>c", "a\nb\nc"),
        ("<h1> Title </h1>text", "Title\n\ntext"),
        ("<ul><li>one</li><li>two</li></ul>", "- one\n- two"),
        ("<ul>\n <li>one\n <li>two\n</ul>", "- one\n- two"),
        ("<table><tr><td>a</td><td>b</td></tr><tr><th>c</th></tr></table>", "a b\n\nc"),
        ("<pre>  a\n    b  c\n</pre>", "a\n    b  c"),
        ("x<pre>a <b>b</b>\n  c</pre>  y  ", "x\n\na b\n  c\n\ny"),
        ('<a href="/b?c=1&amp;d=2">see</a>', "see (/b?c=1&d=2)"),
        ("<a class=x href=http://a.test/>see</a>", "see (http://a.test/)"),
        ('<a href="#top">up</a> <a href="javascript:x()">go</a> <a name=x>here</a></a>', "up go here"),
        ("a &lt;b&gt; &amp; &copy; &#65;&#x42;", "a <b> & © AB"),
        ("<script>if (a < b) { '</p>' }</script>seen", "seen"),
        ("<SCRIPT type='x'>a</Script >seen<style>p {}</style><template>t</template><svg><text>x</text></svg>", "seen"),
        ("<scripted>seen</scripted>", "seen"),
        ("a<!-- <p>b</p> -->c", "ac"),
        ("<!DOCTYPE html><?xml?><html><head><title>T</title></head><body>b</body></html>", "T\nb"),
        ("1 < 2 and 3 <4 <", "1 < 2 and 3 <4 <"),
        ("a<b>c</b><i>d</i>e", "acde"),
        ("a<!-- unfinished", "a"),
        ("a<script>unfinished", "a"),
        ("a<p unfinished", "a"),
        ("</>a</1>b", "ab"),
        ("a\n\n\n\n<p><p><p>b", "a\n\nb"),
        (f"&#{'9' * 5000};x", f"&#{'9' * 5000};x"),
        ("&#xD800;", "\ufffd"),
        ("</pre><pre> a", "a"),
    ],
)
def test_what_a_reader_sees(html: str, text: str) -> None:
    assert readable_text(html) == text


def test_an_attribute_that_holds_a_tag_end_leaves_some_markup() -> None:
    assert readable_text('<img alt="a>b">text') == 'b">text'


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
    """A million characters; anything quadratic in them would take hours."""
    began = time.monotonic()
    readable_text(piece * (1_000_000 // len(piece)))
    assert time.monotonic() - began < 20


def test_a_secret_script_is_not_in_the_text() -> None:
    assert readable_text("<p>a<script>" + "x" * 100_000 + "</script>b") == "ab"
