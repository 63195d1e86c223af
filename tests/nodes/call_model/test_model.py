import asyncio
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from nodes.call_model.model import Call, Model
from nodes.call_model.prompt import Prompt
from nodes.records import ModelReply, ProviderFailure

CALL = Call(prompt=Prompt(messages=({"role": "user", "content": "hi"},)), max_output_tokens=50, timeout_s=1.0)


class Parrot(Model):
    """The least that a model has to be."""

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        text = str(call.prompt.messages[-1]["content"])
        on_text(text)
        return ModelReply(text=text)


def test_anything_that_answers_calls_is_a_model() -> None:
    model: Model = Parrot()
    said: list[str] = []
    assert asyncio.run(model.acomplete(CALL, said.append)) == ModelReply(text="hi")
    assert said == ["hi"]


def test_a_call_is_complete_and_cannot_be_changed() -> None:
    assert (CALL.seed, CALL.quiet, CALL.scrub) == (None, False, None)
    with pytest.raises(ValidationError, match="max_output_tokens"):
        Call.model_validate({"prompt": CALL.prompt, "timeout_s": 1.0})
    with pytest.raises(ValidationError, match="frozen"):
        CALL.__setattr__("timeout_s", 2.0)
