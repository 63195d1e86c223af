from hypothesis import example, given, strategies as st

from nodes.execute_tools.redact import Redactor
from nodes.execute_tools.secrets.assignments import assignment_spans, fold, has_secret_word
from nodes.execute_tools.secrets.hints import hinted, told
from nodes.execute_tools.secrets.keys import _FILE_NAME, _MEASURE, _SECRET_KEY, SECRET_WORDS, is_secret_key
from nodes.execute_tools.secrets.shapes import SHAPES, shape_spans
from tests.nodes.execute_tools.secrets.samples import BLOCKS, KEYS

PIECES = [*KEYS, *BLOCKS, *SECRET_WORDS, *"=:,> \n\"'/@&;-_.", "aB3$efgh!", "max_tokens", "\N{KELVIN SIGN}ey", "İ"]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=8).map("".join)


def test_words_stand_under_the_first_hint_that_they_hold_or_under_themselves() -> None:
    hints = hinted([("passw", 1), ("api_key", 2), ("token", 3), ("passkey", 4)], ("pass", "key"))

    assert hints == (("pass", (("passw", 1), ("passkey", 4))), ("key", (("api_key", 2),)), ("token", (("token", 3),)))


@given(words=st.lists(st.text("abc", min_size=1, max_size=3)), hints=st.lists(st.text("abc", max_size=2)), text=TEXTS)
def test_what_is_told_is_what_every_word_by_itself_would_tell(words: list[str], hints: list[str], text: str) -> None:
    found = told(hinted(((word, word) for word in words), hints), text)

    assert sorted(found) == sorted(word for word in words if word in text)


def _by_every_shape(text: str) -> set[tuple[int, int]]:
    """The spans, with each pattern looked for whether its words are there or not."""
    folded = fold(text)
    found = [
        (shape, match.span("secret"))
        for shape in SHAPES
        for match in shape.pattern.finditer(folded if shape.folded else text)
    ]
    return {span for shape, span in found if shape.accepts(text[slice(*span)])}


@given(TEXTS)
@example("://user:aB3$efgh!@")
def test_hints_pass_over_no_shape(text: str) -> None:
    assert _by_every_shape(text) <= set(shape_spans(text, fold(text)))


@given(TEXTS)
@example("token\t=aB3$efgh!")
@example('"secret"\u2003,"aB3$efgh!"')
def test_a_redactor_passes_over_nothing_that_the_parts_find(text: str) -> None:
    folded = fold(text)
    parts = {*shape_spans(text, folded), *assignment_spans(text, folded)}
    found = Redactor().spans(text)

    assert all(any(start <= first and last <= end for start, end in found) for first, last in parts)


@given(TEXTS)
@example("pass max_tokens word")
@example("to\N{KELVIN SIGN}en")
@example("pa\N{LATIN SMALL LETTER LONG S}\N{LATIN SMALL LETTER LONG S}word")
def test_a_secrets_name_is_told_as_without_the_hint(name: str) -> None:
    told_slowly = bool(_SECRET_KEY.search(_MEASURE.sub("", name))) and not _FILE_NAME.search(name)

    assert is_secret_key(name) is told_slowly
    assert has_secret_word(name) is any(word in name for word in SECRET_WORDS)
