"""A model whose calls are spans `chat {model}`, with what they have used and how they ended."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from graph.telemetry import conventions as names
from graph.telemetry.run_span import Child, RunSpan
from graph.telemetry.said import answered, asked
from nodes.call_model.driver import Connector
from nodes.call_model.effects import Connect
from nodes.call_model.endpoint import Endpoint, find_endpoint
from nodes.call_model.model import Call, Model
from nodes.records import ModelReply, ProviderFailure


@dataclass(frozen=True)
class TracedModel:
    """Does what its model does, which is guarded already: its words are free of secrets."""

    model: Model
    run: RunSpan
    endpoint: Endpoint | None
    name: str
    scrub: Callable[[str], str]
    with_messages: bool = False

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one try."""
        with self._chat(call) as chat:
            result = await self.model.acomplete(call, on_text)
            self._ended(chat, result)
            return result

    def _chat(self, call: Call) -> Child:
        said = asked(call.prompt.messages) if self.with_messages else {}
        attributes = {
            names.OPERATION: "chat",
            names.PROVIDER: names.provider_of(self.endpoint),
            names.REQUEST_MODEL: self.name,
            names.CONVERSATION: self.run.attributes.get(names.CONVERSATION),
            "gen_ai.request.max_tokens": call.max_output_tokens,
            "gen_ai.request.temperature": call.prompt.temperature,
            "gen_ai.request.seed": call.seed,
            **names.server_of(self.endpoint),
            **{name: self.scrub(text) for name, text in said.items()},
        }
        return self.run.child(f"chat {self.name}".rstrip(), attributes, remote=True)

    def _ended(self, chat: Child, result: ModelReply | ProviderFailure) -> None:
        if not isinstance(result, ModelReply):  # or nothing that a model may give back, which the driver says
            chat.fail(result.kind.value if isinstance(result, ProviderFailure) else "invalid_reply")
            return
        if not self.name and result.model:
            chat.rename(f"chat {result.model}")
        chat.set(
            {
                names.RESPONSE_MODEL: result.model,
                names.INPUT_TOKENS: result.input_tokens,
                names.OUTPUT_TOKENS: result.output_tokens,
                names.CACHED_TOKENS: result.cached_tokens or None,
                names.CACHE_WRITE_TOKENS: result.cache_write_tokens or None,
                names.REASONING_TOKENS: result.reasoning_tokens or None,
                names.FINISH_REASONS: (result.finish_reason.value,),
                **({name: self.scrub(text) for name, text in answered(result).items()} if self.with_messages else {}),
            }
        )
        self.run.spent(result.input_tokens, result.output_tokens)


def telling(connect: Connector, run: RunSpan, scrub: Callable[[str], str], *, own_model: bool) -> Connector:
    """The connector, whose models tell `run` of their calls. `own_model`: the user's own answers, at no endpoint."""

    def connected(wanted: Connect) -> Model | ProviderFailure:
        model = connect(wanted)
        if isinstance(model, ProviderFailure):
            return model
        found = find_endpoint(wanted.model, wanted.base_url, os.environ, key_variable=wanted.key_variable)
        endpoint = None if own_model or isinstance(found, ProviderFailure) else found
        name = wanted.model or (endpoint.model if endpoint else "")
        provider = {names.PROVIDER: names.provider_of(endpoint), names.REQUEST_MODEL: scrub(name)}
        run.set(provider)
        return TracedModel(model, run, endpoint, scrub(name), scrub, names.captures_messages(os.environ))

    return connected
