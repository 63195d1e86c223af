"""The lines of a large file that a request is about."""

from hypothesis import given, strategies as st

from mendgraph.nodes.small_model.excerpts import MOST_BYTES, excerpt_of
from tests.row_tables import rows

FILLING = "".join(f"def step_{number}(value):\n    return value + {number}\n\n\n" for number in range(400))
FEE = "def late_fee(days):\n    rate = 2\n\n    return rate * days\n\n\n"
CODE = f"{FILLING}{FEE}{FILLING}"
LINE = FILLING.count("\n") + 1

GUIDE = "# Setup\n\nInstall it.\n\n" + "word\n\n" * 2_000 + "## Invoices\n\nAn invoice is sent at noon.\n"


def excerpt(text: str, request: str) -> str:
    start, limit = excerpt_of(text, request, "bills.py")
    return "\n".join(text.split("\n")[start - 1 : start - 1 + limit])


@rows(
    ("What does late_fee do in bills.py?",),
    ("In bills.py the rate of a fee is wrong, fix it.",),
    (f'bills.py fails:\n  File "bills.py", line {LINE + 1}, in late_fee\n    rate = 2\nKeyError',),
    (f"bills.py:{LINE + 3}: error: unsupported operand",),
)
def test_definition_that_the_request_is_about_is_shown_in_full(request_text: str) -> None:
    text = excerpt(CODE, request_text)
    assert text.startswith(FEE)
    assert len(text.encode()) <= MOST_BYTES


def test_line_of_a_table_is_found_by_its_name() -> None:
    table = "".join(f"VALUE_{number} = {number * 7919}\n" for number in range(1_200))
    assert "VALUE_1199 = 9494881" in excerpt(table, "What is VALUE_1199 in bills.py?")
    assert "VALUE_600 = " in excerpt(table, "What is VALUE_600 in bills.py?")


def test_section_of_a_document_is_found_by_its_words() -> None:
    assert "sent at noon" in excerpt(GUIDE, "When are invoices sent? See guide.md.")


def test_file_unrelated_to_the_request_is_shown_from_its_beginning() -> None:
    assert excerpt(GUIDE, "Explain guide.md.").startswith("# Setup\n\nInstall it.")


texts = st.lists(st.sampled_from(["def a():", "    x = 1", "", "word " * 300, "class B:", "\ud800", "é"]), max_size=80)


@given(texts.map("\n".join), st.sampled_from(["", "a", "B and word", "x.py:3", "line x, line 99999"]))
def test_excerpt_is_a_part_of_the_file_within_the_size_limit(text: str, request_text: str) -> None:
    start, limit = excerpt_of(text, request_text, "x.py")
    lines = text.split("\n")[start - 1 : start - 1 + limit]
    assert len(lines) == limit >= 1
    assert limit == 1 or len("\n".join(lines).encode(errors="replace")) <= MOST_BYTES
