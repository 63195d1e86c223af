import asyncio
from typing import Any

from opentelemetry.trace import StatusCode

from graph.telemetry.active import tracer
from graph.telemetry.run_span import RunSpan
from graph.telemetry.traced_model import telling
from nodes.call_model.effects import Connect
from nodes.call_model.model import Call, Model
from nodes.call_model.prompt import Prompt
from nodes.records import ModelReply, ProviderErrorKind, ProviderFailure
from tests.graph.telemetry.conftest import Told

PROMPT = Prompt(messages=({"role": "user", "content": "Look."},))
CALL = Call(prompt=PROMPT, max_output_tokens=9, timeout_s=1.0)
FAILURE = ProviderFailure(kind=ProviderErrorKind.TIMEOUT, message="secret words")


class Mine(Model):
    """A model that gives back what it was made with."""

    def __init__(self, result: Any) -> None:
        self.result = result

    async def acomplete(self, call: Call, on_text: Any) -> Any:
        on_text(str(call.max_output_tokens))
        return self.result


def answered(model: Mine, wanted: Connect, *, own_model: bool = False) -> Any:
    """What comes of one call."""
    listening = tracer()
    assert listening is not None
    run = RunSpan(listening, "t")
    connected = telling(lambda _: model, run, str, own_model=own_model)(wanted)
    assert not isinstance(connected, ProviderFailure)
    heard: list[str] = []
    with run.at_work():
        result: Any = asyncio.run(connected.acomplete(CALL, heard.append))
    run.end()
    assert heard == ["9"]
    return result


def test_a_failed_try_has_its_kind_and_no_words(told: Told) -> None:
    assert answered(Mine(FAILURE), Connect("m", "http://h.example/v1")) is FAILURE
    chat = told.named("chat m")
    assert (chat.status.status_code, (chat.attributes or {})["error.type"]) == (StatusCode.ERROR, "timeout")
    assert "secret words" not in told.text()


def test_a_model_without_a_name_is_named_after_its_reply(told: Told) -> None:
    answered(Mine(ModelReply(model="mine-7b")), Connect(None, None), own_model=True)
    assert (told.named("chat mine-7b").attributes or {})["gen_ai.provider.name"] == "custom"


def test_what_is_part_of_input_and_output_is_told_where_there_is_any(told: Told) -> None:
    parts = {"cached_tokens": 5, "cache_write_tokens": 3, "reasoning_tokens": 2}
    for more in (parts, {}):
        answered(Mine(ModelReply(input_tokens=9, output_tokens=4, **more)), Connect("m", None), own_model=True)
    names = ("cache_read.input_tokens", "cache_creation.input_tokens", "reasoning.output_tokens")
    chats = [span.attributes or {} for span in told.spans if span.name == "chat m"]
    found = [[chat.get(f"gen_ai.usage.{name}") for name in names] for chat in chats]
    assert found == [[5, 3, 2], [None, None, None]]


def test_a_model_that_names_itself_nowhere_stays_without_a_name(told: Told) -> None:
    answered(Mine(ModelReply()), Connect(None, None), own_model=True)
    assert told.names()[1] == "chat"


def test_what_is_no_reply_is_an_error(told: Told) -> None:
    assert answered(Mine("nonsense"), Connect("m", None), own_model=True) == "nonsense"
    assert (told.named("chat m").attributes or {})["error.type"] == "invalid_reply"


def test_a_model_that_cannot_be_reached_is_no_span(told: Told) -> None:
    listening = tracer()
    assert listening is not None
    run = RunSpan(listening, "t")
    assert telling(lambda _: FAILURE, run, str, own_model=False)(Connect("m", None)) is FAILURE
    assert told.spans == []
