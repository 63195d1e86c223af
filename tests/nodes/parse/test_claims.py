from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from nodes.parse.answers import NOTHING_DONE, NOTHING_HAPPENED, TurnFacts, paths_to_check, unfounded

REMEDY = "Make the change now. If none can be made, say why in one sentence."
CLAIMED, IDLE = f"{NOTHING_HAPPENED} {REMEDY}", f"{NOTHING_DONE} {REMEDY}"
SHORT_CLAIMED, SHORT_IDLE = NOTHING_HAPPENED, NOTHING_DONE
"""What a small model is told: it would repeat each further sentence."""

ORDER, REPORT, QUESTION, TALK = "Fix calc.py.", "The sum in calc.py is wrong.", "Is calc.py right?", "Hello."
CLAIM, NO_CLAIM = "I have fixed calc.py.", "add returns the sum."


def turn(request: str, *, met: int = 0, insistent: bool = False, faulty: bool = False) -> TurnFacts:
    return TurnFacts(request=request, met=met, insistent=insistent, faulty=faulty)


@pytest.mark.parametrize(
    ("answer", "facts", "problem"),
    [
        (CLAIM, turn(ORDER), CLAIMED),
        (CLAIM, turn(REPORT), CLAIMED),
        (CLAIM, turn(ORDER, met=3), CLAIMED),
        (CLAIM, turn(ORDER, met=3, insistent=True), SHORT_CLAIMED),
        (CLAIM, turn(TALK), None),
        (CLAIM, turn("Thank you."), None),
        (CLAIM, turn(QUESTION), None),
        (CLAIM, turn(QUESTION, insistent=True), None),
        (CLAIM, turn(""), None),
        (NO_CLAIM, turn(ORDER), IDLE),
        (NO_CLAIM, turn(ORDER, met=1), None),
        (NO_CLAIM, turn(ORDER, met=1, insistent=True), SHORT_IDLE),
        (NO_CLAIM, turn(REPORT), None),
        (NO_CLAIM, turn(REPORT, insistent=True), SHORT_IDLE),
        (NO_CLAIM, turn(REPORT, met=2, insistent=True), SHORT_IDLE),
        (NO_CLAIM, turn(QUESTION), None),
        (NO_CLAIM, turn(QUESTION, insistent=True), None),
        (NO_CLAIM, turn(TALK), None),
        (NO_CLAIM, turn(TALK, insistent=True), None),
        ("", turn(ORDER), IDLE),
        (NO_CLAIM, turn(TALK, insistent=True, faulty=True), SHORT_IDLE),
        (NO_CLAIM, turn(TALK, faulty=True), None),
        (NO_CLAIM, turn(QUESTION, insistent=True, faulty=True), None),
        (CLAIM, turn(TALK, insistent=True, faulty=True), SHORT_IDLE),
    ],
)
def test_what_did_not_happen_speaks_against_an_answer(answer: str, facts: TurnFacts, problem: str | None) -> None:
    assert unfounded(answer, facts) == problem


@pytest.mark.parametrize("answer", [CLAIM, NO_CLAIM])
@pytest.mark.parametrize("insistent", [True, False])
def test_a_change_or_what_stood_in_its_way_bears_any_answer_out(answer: str, insistent: bool) -> None:
    facts = turn(ORDER, insistent=insistent)
    assert unfounded(answer, facts) is not None
    assert unfounded(answer, facts._replace(changed=("a.py",))) is None
    assert unfounded(answer, facts._replace(hindered=lambda: True)) is None


def unasked() -> bool:
    raise AssertionError("asked for what is known already")


@pytest.mark.parametrize("facts", [turn(""), turn(QUESTION), TurnFacts(request=ORDER, changed=("a.py",))])
def test_the_history_is_searched_only_where_nothing_else_decides(facts: TurnFacts) -> None:
    assert unfounded(CLAIM, facts._replace(hindered=unasked)) is None


@pytest.mark.parametrize(
    ("facts", "changing", "paths"),
    [
        (TurnFacts(request=ORDER), (), None),
        (TurnFacts(request=ORDER, changed=("a.py",)), ("b.py",), None),
        (TurnFacts(request=ORDER, checked=True), (), None),
        (TurnFacts(request=ORDER, checked=True, changed=("a.md", "b.json")), ("c.toml",), None),
        (TurnFacts(request=ORDER, checked=True, changed=("a.py",)), (), ("a.py",)),
        (TurnFacts(request=TALK, checked=True), ("a.pyi",), ("a.pyi",)),
        (
            TurnFacts(request=ORDER, checked=True, changed=("b.py", "a.md")),
            ("c.py", "b.py"),
            ("b.py", "a.md", "c.py"),
        ),
        (TurnFacts(request=ORDER, configured=True), (), ()),
        (TurnFacts(request=QUESTION, configured=True), (), None),
        (TurnFacts(request=REPORT, configured=True), (), None),
        (TurnFacts(request=QUESTION, configured=True, changed=("a.md",)), (), ("a.md",)),
        (TurnFacts(request=TALK, configured=True), ("a.md",), ("a.md",)),
        (TurnFacts(request=ORDER, configured=True, checked=True), (), ()),
    ],
)
def test_checks_come_before_an_answer_where_they_can_tell_something(
    facts: TurnFacts, changing: tuple[str, ...], paths: tuple[str, ...] | None
) -> None:
    assert paths_to_check(facts, changing) == paths


WORDS = st.sampled_from([ORDER, REPORT, QUESTION, TALK, CLAIM, NO_CLAIM, "Do not change any file.", "```", "`"])
TEXTS = st.text(max_size=80) | st.lists(WORDS, max_size=4).map(" ".join)
PATHS = st.lists(st.sampled_from(["a.py", "b.md", "c.pyi", ""]), max_size=3).map(tuple)
FACTS = st.builds(
    TurnFacts,
    request=TEXTS,
    changed=PATHS,
    hindered=st.sampled_from([lambda: True, lambda: False]),
    met=st.integers(0, 5),
    insistent=st.booleans(),
    checked=st.booleans(),
    configured=st.booleans(),
    faulty=st.booleans(),
)


@given(TEXTS, FACTS)
def test_any_answer_can_be_judged(answer: str, facts: TurnFacts) -> None:
    problem = unfounded(answer, facts)
    assert problem in ({None, SHORT_CLAIMED, SHORT_IDLE} if facts.insistent else {None, CLAIMED, IDLE})
    if facts.changed or facts.hindered():
        assert problem is None
    if not facts.insistent and facts.met:
        assert problem in {None, CLAIMED}


@given(TEXTS, FACTS)
def test_who_takes_less_for_an_answer_takes_no_more(answer: str, facts: TurnFacts) -> None:
    patient, insistent = facts._replace(insistent=False), facts._replace(insistent=True)
    if unfounded(answer, insistent) is None:
        assert unfounded(answer, patient) is None


@given(FACTS, PATHS)
def test_all_changed_files_are_checked_and_each_once(facts: TurnFacts, changing: tuple[str, ...]) -> None:
    paths = paths_to_check(facts, changing)
    assert paths is None or facts.checked or facts.configured
    assert paths is None or (set(paths), len(set(paths))) == ({*facts.changed, *changing}, len(paths))


@pytest.mark.parametrize("judge", [lambda text: unfounded(text, turn(ORDER)), lambda text: unfounded("", turn(text))])
@pytest.mark.parametrize("piece", ["I have ", "has been now ", "`", "```", "please ", "do not change ", "fix. ", "\n"])
def test_a_long_text_does_not_take_forever(judge: Callable[[str], str | None], piece: str) -> None:
    assert judge(piece * 20_000) in {None, CLAIMED, IDLE}


def test_without_facts_nothing_is_known() -> None:
    facts = TurnFacts()
    assert (facts.request, facts.changed, facts.hindered()) == ("", (), False)
    assert (facts.met, facts.insistent, facts.checked, facts.configured, facts.faulty) == (
        0,
        False,
        False,
        False,
        False,
    )
