import json
from collections.abc import Sequence

from hypothesis import given, settings, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from mendgraph.nodes.call_model.compaction import TARGET, Budget, Compacted, NeedsSummary, compact
from mendgraph.nodes.call_model.summary import summary_request
from mendgraph.nodes.call_model.window import TRIGGER, WHOLE, StandIns, Window, shown
from mendgraph.nodes.language.history import added_messages, close_dangling_calls, is_request
from mendgraph.nodes.records import Plan, PlanStep, Protocol, StopCause
from tests.row_tables import rows
from tests.rules.call_model.window_histories import exchange, histories, read, size_of, tokens, with_ids

TASK = HumanMessage("Fix the add function in calc.py, please.")
GARBAGE, EMPTY_PLAN = "I cannot do that.", Plan()
GOOD = json.dumps({"done": ["read a.py"], "left": ["mend it"]})
BUDGET = Budget(window_tokens=16_000, fixed_tokens=900, output_tokens=2_048)
MOST = int(16_000 * TRIGGER) - 900 - 2_048
AIM = int(MOST * TARGET)

Verdict = Compacted | NeedsSummary | StopCause | None


def compacted(
    history: Sequence[AnyMessage], window: Window = WHOLE, budget: Budget = BUDGET, *, forced: bool = False
) -> Verdict:
    return compact(history, window, EMPTY_PLAN, (), size_of, budget, forced=forced)


def with_summary(verdict: Verdict, reply: str) -> Compacted | StopCause | None:
    return verdict.conclude(reply) if isinstance(verdict, NeedsSummary) else verdict


def text_history(
    steps: int, text: str = "I think about it. " * 60, protocol: Protocol = Protocol.NATIVE
) -> list[AnyMessage]:
    """A turn that has only texts of the model, so that there are no results to clear."""
    return with_ids([TASK, *(m for at in range(steps) for m in exchange(protocol, read(9, f"f{at}.py"), text=text))])


@rows(*Protocol)
def test_old_results_are_cleared_first(protocol: Protocol) -> None:
    history = with_ids([TASK, *(m for at in range(11) for m in exchange(protocol, read(3_000, f"f{at}.py")))])
    done = compacted(history)
    assert isinstance(done, Compacted)
    cleared = [str(message.id) for message in history[2:-6:2]]
    assert done == Compacted(
        window=Window(cleared=tuple(cleared[: len(done.window.cleared)])),
        kind="cleared",
        tokens_before=tokens(history) + 900,
        tokens_after=tokens(shown(history, done.window)) + 900,
    )
    assert done.tokens_after - 900 <= AIM
    assert compacted(history, done.window) is None


def test_unknown_window_shrinks_only_after_a_refused_request() -> None:
    history, unknown = text_history(40), BUDGET._replace(window_tokens=None)
    assert compacted(history, budget=unknown) is None
    done = with_summary(compacted(history, budget=unknown, forced=True), GARBAGE)
    assert isinstance(done, Compacted)
    assert done.tokens_after < done.tokens_before


HEAD = f"""\
The beginning of this conversation is not shown any more, to save room; files can be read again.

From an automatic summary of what was before, not the person's words:
Done so far:
- read a.py
Left to do:
- mend it

Changed files: a.py

The plan:
[ ] Mend

The request, which you are working on:
{TASK.text}"""


@rows(*Protocol)
def test_model_summarizes_the_beginning_if_clearing_is_not_enough(protocol: Protocol) -> None:
    history = text_history(40, protocol=protocol)
    needed = compact(history, WHOLE, Plan(steps=(PlanStep(title="Mend"),)), ["a.py", "a.py"], size_of, BUDGET)
    assert isinstance(needed, NeedsSummary)
    assert [message["role"] for message in needed.messages] == ["system", "user"]
    done = needed.conclude(f"```json\n{GOOD}\n```")
    view = shown(history, done.window)
    assert (done.kind, done.window.no_summary) == ("summarised", False)
    assert view[0].text == done.window.head == HEAD
    assert view[1:] == history[-len(view) + 1 :]
    assert isinstance(view[1], AIMessage)
    assert tokens(view) <= AIM
    assert (done.tokens_before, done.tokens_after) == (tokens(history) + 900, tokens(view) + 900)


def test_second_summary_includes_the_first_and_sliding_keeps_it() -> None:
    history = text_history(80)
    first = with_summary(compacted(history[:61]), GOOD)
    assert isinstance(first, Compacted)
    needed = compacted(history, first.window)
    assert isinstance(needed, NeedsSummary)
    assert "Done so far:\n- read a.py" in needed.messages[1]["content"]
    second = needed.conclude('{"findings": ["all new"]}')
    assert "all new" in second.window.head
    assert "read a.py" not in second.window.head
    slid = needed.conclude(GARBAGE)
    assert "- read a.py" in slid.window.head


def test_earlier_requests_are_quoted_unless_still_shown() -> None:
    old = [HumanMessage("Look at b.py."), *text_history(40)[1:], AIMessage("I did.")]
    history = with_ids([*old, TASK, *text_history(1)[1:]])
    done = with_summary(compacted(history), GOOD)
    assert isinstance(done, Compacted)
    assert "Earlier requests:\n- Look at b.py." in done.window.head
    assert TASK.text not in done.window.head
    assert TASK.text in [message.text for message in shown(history, done.window)]


@given(histories(), st.sampled_from([GOOD, GARBAGE]), st.integers(2_000, 24_000), st.booleans())
@settings(deadline=None, max_examples=25)
def test_compacted_view_of_any_history_is_valid_and_fits(
    history: list[AnyMessage], reply: str, size: int, forced: bool
) -> None:
    budget = BUDGET._replace(window_tokens=size, output_tokens=500)
    hard = size - 1_400
    done = with_summary(compacted(history, budget=budget, forced=forced), reply)
    request = [message.text for message in history if is_request(message)][-1]
    if isinstance(done, StopCause):
        return
    window = WHOLE if done is None else done.window
    view = shown(history, window)
    assert tokens(view) <= hard
    assert close_dangling_calls(view) is None
    assert any(request in message.text for message in view)
    if history[-1] != [m for m in history if is_request(m)][-1]:
        assert len(view) > 1
    if done is not None:
        assert done.tokens_after == tokens(view) + 900 < done.tokens_before
        again = with_summary(compacted(history, window, budget), reply)
        assert again is None or isinstance(again, Compacted)


@rows((GOOD, Protocol.NATIVE), (GARBAGE, Protocol.TEXT))
def test_three_hundred_steps_in_16k_never_overflow_and_rarely_compact(reply: str, protocol: Protocol) -> None:
    history, window, stand_ins = with_ids([TASK]), WHOLE, StandIns()
    done: list[Compacted] = []
    summaries = 0
    for at in range(300):
        step = exchange(protocol, read(300 + at * 7_919 % 1_500, f"f{at % 7}.py"), text="I look at the next file.")
        history += with_ids(step, first=len(history))
        verdict = compact(history, window, EMPTY_PLAN, ("a.py",), size_of, BUDGET, stand_ins=stand_ins)
        summaries += isinstance(verdict, NeedsSummary)
        now = with_summary(verdict, reply)
        assert not isinstance(now, StopCause)
        if now is not None:
            done.append(now)
            window = now.window
        view = shown(history, window, stand_ins)
        assert tokens(view) <= MOST
        assert any(TASK.text in message.text for message in view)
        assert close_dangling_calls(view) is None
    assert 5 <= len(done) <= 30
    assert all(compaction.tokens_after < 0.7 * compaction.tokens_before for compaction in done)
    assert summaries == (1 if reply == GARBAGE else [compaction.kind for compaction in done].count("summarised"))


def test_request_for_a_summary_is_clipped_to_fit() -> None:
    old = with_ids([message for at in range(40) for message in exchange(Protocol.NATIVE, read(5_000, f"f{at}.py"))])
    complete, clipped = (summary_request(old, "R", "", size_of, most) for most in (40_000, 10_000))
    assert complete is not None
    assert clipped is not None
    assert len(complete[1]["content"]) > len(clipped[1]["content"])
    assert summary_request(old, "R", "", size_of, 100) is None


def test_added_instructions_do_not_replace_the_request() -> None:
    task = HumanMessage("The task: " + " ".join(f"rule-{at}" for at in range(400)))
    history = with_ids([task, *added_messages(["Be brief."]), *text_history(40)[1:]])
    done = with_summary(compacted(history), GARBAGE)
    assert isinstance(done, Compacted)
    assert f"working on:\n{task.text}\n\nThe person added since:\nBe brief." in done.window.head
