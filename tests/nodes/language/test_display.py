"""Nothing that comes from elsewhere can steer a terminal."""

import pytest

from mendgraph.nodes.language.display import one_line, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("def f():\n\treturn 'é 漢 👍🏽'", "def f():\n\treturn 'é 漢 👍🏽'"),
        ("\x1b[31mred\x07\r\x00\x7f\x9b", r"\x1b[31mred\x07\r\x00\x7f\x9b"),
        ("a\u202eb\u2066c\u200fd", r"a\u202eb\u2066c\u200fd"),
        ("\u2028\ufeff\ud800", r"\u2028\ufeff\ud800"),
        ("👩\u200d💻", "👩\u200d💻"),
    ],
)
def test_what_steers_a_terminal_is_written_as_its_escape(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_one_line_is_one_line_of_bounded_length() -> None:
    assert one_line(" a\n\n  b\t\x1bc ") == r"a b \x1bc"
    assert one_line("word " * 100, limit=12) == "word word..."
