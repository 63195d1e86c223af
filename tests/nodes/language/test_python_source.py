import ast

import pytest

from nodes.language.documents import parse_quietly


def test_a_text_that_the_parser_warns_of_is_parsed_in_silence() -> None:
    assert ast.dump(parse_quietly(r"x = '\d'")) == ast.dump(ast.parse(r"x = '\\d'"))


@pytest.mark.parametrize("text", ["def f(:", "x = \0"])
def test_what_is_no_python_is_said_by_the_parser(text: str) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        parse_quietly(text)
