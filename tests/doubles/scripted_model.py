"""A scripted model in this process that never exceeds its output limit."""

from collections.abc import Callable, Sequence

from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.language.token_estimates import estimate_tokens
from mendgraph.nodes.records import FinishReason, ModelReply, ProviderFailure, RawCall
from tests.doubles.call_model import CallModel
from tests.doubles.replies import Message, Say

Line = Message | ProviderFailure


class ScriptedModel(CallModel):
    """What `build_graph(model=...)` takes. `calls` holds each call as it came; after the script, `then` is repeated.

    Tokens are those of the message's `usage`, but never more than fit into the call: an honest endpoint. Where it is
    a map, as a wire has it, none are told.
    """

    def __init__(self, script: Sequence[Line], then: Line | None = None) -> None:
        self.calls: list[Call] = []
        self._script = tuple(script)
        self._then = then or Say("Done.")

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        line = self._script[len(self.calls)] if len(self.calls) < len(self._script) else self._then
        self.calls.append(call)
        if isinstance(line, ProviderFailure):
            return line
        if line.text:
            on_text(line.text)
        return reply_of(line, len(self.calls), call)


def reply_of(message: Message, number: int, call: Call) -> ModelReply:
    input_tokens, output_tokens = message.usage if isinstance(message.usage, tuple) else (0, 0)
    fits = estimate_tokens(call.prompt.size, len(call.prompt.messages))
    return ModelReply(
        text=message.text,
        calls=tuple(
            RawCall(call_id=script[2] if len(script) == 3 else f"call_{number}_{index}", tool=tool, arguments=arguments)
            for index, script in enumerate(message.calls, start=1)
            for tool, arguments in [script[:2]]
        ),
        finish_reason=FinishReason.REFUSAL if message.refusal else FinishReason(message.finish_reason or "stop"),
        refusal=message.refusal,
        reasoning=message.reasoning,
        input_tokens=min(input_tokens, fits),
        output_tokens=min(output_tokens, call.max_output_tokens),
    )
