import pytest

from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply, ProviderErrorKind, ProviderFailure, RawCall
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_model import Line

FAILURE = ProviderFailure(kind=ProviderErrorKind.TIMEOUT, message="late")
LINES: list[Line] = [Say("one"), Calls([("read_file", "{}")]), FAILURE]
READ = ModelReply(
    calls=(RawCall(call_id="call_2_1", tool="read_file", arguments="{}"),), finish_reason=FinishReason.TOOL_CALLS
)


def asked(replies: int) -> Call:
    """A call whose prompt holds so many replies."""
    request: JsonMap = {"role": "user", "content": "x"}
    talk = [message for _ in range(replies) for message in (request, {"role": "assistant", "content": "y"})]
    return Call(prompt=Prompt(messages=(*talk, request)), max_output_tokens=20, timeout_s=1.0)


@pytest.mark.parametrize(
    ("replies", "answer"),
    [
        (0, ModelReply(text="one")),
        (1, READ),
        (2, FAILURE),
        (3, ModelReply(text="enough")),
        (9, ModelReply(text="enough")),
    ],
)
def test_the_line_is_that_of_the_conversation_whenever_it_is_asked_for(
    replies: int, answer: ModelReply | ProviderFailure
) -> None:
    said: list[str] = []
    model, call = HistoryModel(LINES, then=Say("enough")), asked(replies)
    assert [model.complete(call, said.append) for _ in range(2)] == [answer, answer]
    text = answer.text if isinstance(answer, ModelReply) else ""
    assert (said, model.calls) == ([text] * 2 if text else [], [call] * 2)
