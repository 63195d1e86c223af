import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from nodes.call_model.window import (
    MOST_STAND_IN_CHARACTERS,
    MOST_STAND_INS,
    WHOLE,
    Exchanges,
    Memory,
    StandIns,
    Window,
    exchanges_of,
    first_shown,
    is_result,
    shown,
    without_results,
)
from nodes.records import JsonMap, Protocol
from tests.nodes.call_model.window_histories import exchange, histories, read, with_ids

TASK = HumanMessage("Fix a.py")


def texts(messages: list[AnyMessage]) -> list[str]:
    return [message.text for message in messages]


@pytest.mark.parametrize("protocol", list(Protocol))
def test_the_head_stands_for_what_is_hidden(protocol: Protocol) -> None:
    history = with_ids([TASK, *exchange(protocol, read(9)), *exchange(protocol, read(8))])
    view = shown(history, Window(first="m3", head="HEAD"))
    assert texts(view) == ["HEAD", *texts(history[3:])]
    assert view[1:] == history[3:]
    assert isinstance(view[0], HumanMessage)


def test_a_head_before_a_request_is_one_message_with_it() -> None:
    history = with_ids([TASK, AIMessage("Done."), HumanMessage("Now b.py")])
    assert texts(shown(history, Window(first="m2", head="HEAD"))) == ["HEAD\n\nNow b.py"]


@pytest.mark.parametrize("window", [WHOLE, Window(first="gone", head="HEAD", cleared=("gone",)), Window(first="m0")])
def test_ids_that_are_not_there_hide_nothing(window: Window) -> None:
    history = with_ids([TASK, *exchange(Protocol.NATIVE, read(900))])
    assert shown(history, window) == history
    assert shown([], window) == []


def test_cleared_results_are_shown_as_stand_ins() -> None:
    history = with_ids([TASK, *exchange(Protocol.NATIVE, read(900), read(700))])
    assert shown(history, Window(cleared=("m2", "m1"))) == [*history[:2], without_results(history[2]), history[3]]


def test_what_is_made_for_a_view_is_made_once() -> None:
    history = with_ids([TASK, *exchange(Protocol.TEXT, read(900)), *exchange(Protocol.TEXT, read(900))])
    window, made = Window(first="m1", head="HEAD", cleared=("m2",)), StandIns()
    first, second = shown(history, window, made), shown(history, window, made)
    assert [id(message) for message in first] == [id(message) for message in second]
    assert len({message.id for message in first}) == len(first)
    other = shown(history, window.model_copy(update={"head": "ANOTHER"}), made)
    assert (other[0].text, other[0].id != first[0].id) == ("ANOTHER", True)


def test_a_history_that_was_read_again_is_shown_with_the_same_stand_ins() -> None:
    made = StandIns()
    views = [
        shown(with_ids([TASK, *exchange(Protocol.NATIVE, read(900))]), Window(cleared=("m2",)), made) for _ in range(2)
    ]
    assert views[0][2] is views[1][2]


def test_a_message_that_was_replaced_gets_a_stand_in_of_its_own() -> None:
    made = StandIns()
    for size in (900, 800):
        history = with_ids([TASK, *exchange(Protocol.NATIVE, read(size))])
        assert shown(history, Window(cleared=("m2",)), made) == [*history[:2], without_results(history[2])]


@pytest.mark.parametrize(
    "made",
    [
        {str(number): (TASK, TASK) for number in range(MOST_STAND_INS + 1)},
        {str(number): (HumanMessage("x" * (MOST_STAND_IN_CHARACTERS // 2 + 1)), TASK) for number in range(2)},
    ],
    ids=["many", "large"],
)
def test_stand_ins_of_long_ago_are_let_go(made: StandIns) -> None:
    history = with_ids([TASK, *exchange(Protocol.NATIVE, read(900))])
    shown(history, Window(cleared=("m2",)), made)
    assert list(made) == ["m2"]


def test_a_history_is_cut_between_exchanges_only() -> None:
    history = with_ids(
        [
            TASK,
            *exchange(Protocol.NATIVE, read(1), read(2)),
            AIMessage("Done."),
            HumanMessage("More"),
            *exchange(Protocol.TEXT, read(1)),
        ]
    )
    assert exchanges_of(history) == Exchanges(starts=[0, 1, 4, 5, 6], replies=[1, 4, 6], request=5)
    assert exchanges_of([]) == Exchanges([], [], -1)


@given(histories(), st.data())
def test_a_view_only_grows_at_its_end(history: list[AnyMessage], data: st.DataObject) -> None:
    names = [str(message.id) for message in history]
    window = Window(
        first=data.draw(st.sampled_from(["", *names])),
        head="HEAD",
        cleared=tuple(data.draw(st.lists(st.sampled_from(names), unique=True))),
    )
    start = first_shown(history, window)
    whole = shown(history, window)
    for length in range(start + 1, len(history)):
        part = shown(history[:length], window)
        assert whole[: len(part)] == part
    for message, original in zip(whole[::-1], history[::-1], strict=False):
        assert message == original or is_result(original) or message.text.startswith("HEAD")


def test_a_memory_is_small_and_relevant_and_complete_behind_that() -> None:
    memory = Memory(2_000, reply_tokens=100)
    memory.add(TASK, *exchange(Protocol.TEXT, read(30)))
    assert memory.shown() == memory.messages
    for _ in range(40):
        memory.add(*exchange(Protocol.TEXT, read(900)))
    view = memory.shown()
    assert sum(len(text) for text in texts(view)) < 3 * 2_000
    assert "Fix a.py" in view[0].text
    assert texts(view)[-2:] == texts(memory.messages)[-2:]
    assert len(memory.messages) == 3 + 40 * 2
    assert memory.shown() == view


def test_a_memory_may_sum_up_what_slides_out() -> None:
    asked: list[list[JsonMap]] = []

    def summarise(messages: list[JsonMap]) -> str:
        asked.append(messages)
        return '{"done": ["read it"], "findings": ["x is 42"], "left": [], "files": []}'

    memory = Memory(6_000, reply_tokens=100, summarise=summarise)
    memory.add(TASK)
    for number in range(80):
        memory.add(AIMessage(f"I think {number} " * 20), HumanMessage("tool_result({})", name="tool_result"))
    assert "x is 42" in memory.shown()[0].text
    assert [message["role"] for message in asked[0]] == ["system", "user"]


def test_a_memory_without_a_window_shows_everything() -> None:
    memory = Memory()
    memory.add(TASK, *exchange(Protocol.NATIVE, read(90_000), read(90_000)))
    assert memory.shown() == memory.messages
