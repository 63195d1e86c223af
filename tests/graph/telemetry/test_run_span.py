import pytest
from opentelemetry import context, trace
from opentelemetry.trace import StatusCode

from graph.telemetry.active import CURRENT_RUN, tracer
from graph.telemetry.run_span import RunSpan, Telling
from nodes.records import Outcome, OutcomeKind, StopReason
from tests.graph.telemetry.conftest import Told


def begun(conversation: str = "t") -> RunSpan:
    listening = tracer()
    assert listening is not None
    return RunSpan(listening, conversation)


def test_a_run_is_the_current_one_only_while_it_is_at_work(told: Told) -> None:
    run = begun("")
    with run.at_work():
        assert (CURRENT_RUN.get(), trace.get_current_span()) == (run, run.span)
    assert (CURRENT_RUN.get(), context.get_current()) == (None, {})
    run.end()
    assert "gen_ai.conversation.id" not in (told.spans[0].attributes or {})


def test_what_is_told_after_the_end_is_not_heard(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    run = begun()
    run.end()
    run.set({"late": 1})
    run.event("late", {})
    run.fail("late")
    run.rename("late")
    assert told.names() == ["invoke_agent mendgraph"]
    assert caplog.text == ""
    assert told.spans[0].status.status_code is StatusCode.UNSET


def test_what_has_no_span_takes_all_and_tells_nothing() -> None:
    nobody = Telling(None)
    nobody.set({"a": 1, "b": None, "c": "", "d": ()})
    nobody.event("e", {})
    nobody.fail("f")
    nobody.rename("g")
    nobody.end()
    assert nobody.attributes == {"a": 1, "error.type": "f"}


def test_half_a_surrogate_pair_is_told_as_a_question_mark(told: Told) -> None:
    """An exporter cannot write it, and would drop all the spans that it sends together."""
    run = begun("t\ud800")
    run.set({"said": "a\udfffb", "more": ("x",)})
    run.event("happened", {"said": "\ud83d"})
    run.end()
    attributes = told.spans[0].attributes or {}
    assert [attributes[name] for name in ("gen_ai.conversation.id", "said", "more")] == ["t?", "a?b", ("x",)]
    assert told.spans[0].events[0].attributes == {"said": "?"}


def test_tokens_add_up(told: Told) -> None:
    run = begun()
    run.spent(1, 2)
    run.spent(10, 20)
    run.end()
    attributes = told.spans[0].attributes or {}
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (11, 22)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (OutcomeKind.FINISHED, StatusCode.UNSET),
        (OutcomeKind.BUDGET_STOP, StatusCode.UNSET),
        (OutcomeKind.SYSTEM_ERROR, StatusCode.ERROR),
    ],
)
def test_an_outcome_is_told_without_its_words(kind: OutcomeKind, code: StatusCode, told: Told) -> None:
    run = begun()
    run.ended(Outcome(kind=kind, reason=StopReason.REFUSED, message="secret words", answer="secret words"))
    run.end()
    assert told.spans[0].status.status_code is code
    assert (told.spans[0].attributes or {})["mendgraph.outcome.reason"] == "refused"
    assert "secret words" not in told.text()


def test_a_part_that_raises_has_failed(told: Told) -> None:
    run = begun()
    with run.at_work():
        for error in (ValueError, KeyboardInterrupt):
            with pytest.raises(error), run.child("part", {"a": None}):
                raise error
        with run.child("remote", {"gen_ai.operation.name": "chat"}, remote=True) as chat:
            chat.rename("chat m")
    run.end()
    assert [(span.name, (span.attributes or {}).get("error.type")) for span in told.spans[1:]] == [
        ("part", "ValueError"),
        ("part", "cancelled"),
        ("chat m", None),
    ]
    assert [*told.sums()] == ["gen_ai.client.operation.duration"]
