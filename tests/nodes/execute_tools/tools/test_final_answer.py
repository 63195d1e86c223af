from typing import Any

import pytest

from nodes.execute_tools.tools.final_answer import final_answer
from tests.nodes.execute_tools.tools.conftest import Bench


@pytest.mark.parametrize("value", [None, 1, {"passed": True}, ["a"]])
def test_the_answer_comes_back(bench: Bench, value: Any) -> None:
    assert bench.data(final_answer, answer="Done.", value=value) == {"answer": "Done."}
    assert final_answer.validate({"answer": "Done.", "value": value}) == {"answer": "Done.", "value": value}
    assert final_answer.terminal


def test_an_answer_is_needed() -> None:
    assert final_answer.validate({}) == ["answer: field required"]
