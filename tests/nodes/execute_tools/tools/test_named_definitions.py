import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.tools.named_definitions import (
    LONGEST_REQUEST,
    asks_for_several,
    possibly_named,
    surely_named,
    what_may_change,
)


@pytest.mark.parametrize(
    "task",
    [
        "total in cart.py has no docstring.",
        "Write tests: `total` is untested",
        "See `Cart.total`",
        "Why does total() return 3?",
        "cart.total([1]) gives 2",
        "The method total of the cart is slow",
        "the function called total",
        "the total property",
        "Fix total.",
        "Please change total so that it rounds",
        "Round it, and update total in shop/cart.py",
        "Make total round up",
        "Set total to 3",
        "It is broken because total returns None",
        "total should round",
        "Add a docstring to total",
        "Write type hints for total and put them in",
        "Is cart.total right?",
        "Is Cart.total right?",
    ],
)
def test_a_word_that_is_named_as_code(task: str) -> None:
    assert surely_named(task, "total", "Cart", "cart")


@pytest.mark.parametrize(
    "task",
    [
        "",
        "The total in cart.py is wrong",
        "The total is wrong",
        "Round the total of a cart",
        "It prints 3 lines in total.",
        "Total is wrong",
        "Use subtotal() instead",
        "Fix total_price()",
        "Fix the total-price sum",
        "the key 'total' is missing",
        'The column "total" is missing',
        "Fix total amounts being wrong",
    ],
)
def test_a_word_of_the_sentence(task: str) -> None:
    assert not surely_named(task, "total", "Cart", "cart")


@pytest.mark.parametrize("name", ["word_count", "_load", "sha256", "parseLine", "WordCount", "__init__", "RATE"])
def test_what_no_sentence_has_by_chance(name: str) -> None:
    assert surely_named(f"The {name} is slow", name)
    assert not surely_named(f"The {name}s is slow", name)


def test_a_class_is_written_with_a_capital() -> None:
    assert surely_named("Add a method clear to Stack", "Stack")
    assert not surely_named("Stack of books. Stack them", "Stack")


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("The word count is wrong", "word_count"),
        ("Flattening is slow", "flatten"),
        ("The TOTAL is wrong", "total"),
        ("test_chunked fails", "chunked"),
        ("A word counter", "WordCount"),
        ("sha 256 is slow", "sha256"),
        ("see __init__", "__init__"),
        ("see _", "_"),
    ],
)
def test_words_that_could_mean_a_definition(task: str, name: str) -> None:
    assert possibly_named(task, name)


@pytest.mark.parametrize(("task", "name"), [("The subtotal", "total"), ("He gets it", "get"), ("a word", "word_count")])
def test_other_words(task: str, name: str) -> None:
    assert not possibly_named(task, name)


@pytest.mark.parametrize(
    "task",
    [
        "Add docstrings to all functions",
        "Every loop is slow",
        "each of them",
        "Fix both",
        "Check the whole file",
        "the entire module",
        "load and the rest",
        "Refactor load",
        "Clean up load",
        "load and save have duplicated code",
        "The functions of io.py",
    ],
)
def test_requests_for_several(task: str) -> None:
    assert asks_for_several(task)


@pytest.mark.parametrize(
    "task", ["", "Fix load in the module io.py", "The file is not found", "Add a class", "Overall"]
)
def test_requests_for_one(task: str) -> None:
    assert not asks_for_several(task)


@pytest.mark.parametrize(
    ("task", "left"),
    [
        ("Fix load.  Leave everything else as it is.", "Fix load. ."),
        ("Fix load without changing save; test it", "Fix load ; test it"),
        ("Fix load, but don't touch save", "Fix load, but "),
        ("Fix load if it has not changed", "Fix load if it has not changed"),
        ("Fix load and keep save as it is", "Fix load and "),
        ("Keep the order of the items in load", "Keep the order of the items in load"),
        ("Fix\n\n  load\n", "Fix\nload"),
        ("x" * (LONGEST_REQUEST + 5), "x" * LONGEST_REQUEST),
    ],
)
def test_what_is_to_stay_is_not_named(task: str, left: str) -> None:
    assert what_may_change(task) == left


@given(st.from_regex(r"[a-z_]\w{0,8}", fullmatch=True), st.text(max_size=40))
def test_what_is_surely_named_is_possibly_named(name: str, text: str) -> None:
    for task in (text, f"{text} {name} {text}", f"`{name}`", f"Fix {name}."):
        assert possibly_named(task, name) or not surely_named(task, name)
