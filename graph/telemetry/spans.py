"""One run as OpenTelemetry sees it: a span `invoke_agent mendgraph`, with a child for each model call and each tool.

The machine says what happens (`tracing`), and it becomes spans here. Nothing that goes wrong with that may reach the
run: a span processor of the user's own may fail in any way. Imported only where the process has OpenTelemetry.

Names are those of OpenTelemetry's conventions for generative AI; what these have no name for begins with `mendgraph.`.
Source: open-telemetry/semantic-conventions v1.41.0, docs/gen-ai: gen-ai-spans.md, gen-ai-agent-spans.md.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from opentelemetry import context, trace

from mendgraph.graph.telemetry.tracing import own_version
from mendgraph.nodes.call_model.endpoint import Endpoint, ModelChoice, find_endpoint
from mendgraph.nodes.call_model.model import Call, Model
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.records import ModelReply, Outcome, OutcomeKind, ProviderFailure, ToolCall

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Attributes = Mapping[str, Any]

AGENT_NAME: Final = "mendgraph"
OPERATION, PROVIDER, ERROR_TYPE = "gen_ai.operation.name", "gen_ai.provider.name", "error.type"
REQUEST_MODEL, RESPONSE_MODEL = "gen_ai.request.model", "gen_ai.response.model"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHED_TOKENS, CACHE_WRITE_TOKENS = "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS, FINISH_REASONS = "gen_ai.usage.reasoning.output_tokens", "gen_ai.response.finish_reasons"
CONVERSATION, TOOL_NAME, TOOL_CALL = "gen_ai.conversation.id", "gen_ai.tool.name", "gen_ai.tool.call.id"

_PACKAGES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("bedrock", "bedrock_converse", "anthropic_bedrock"), "aws.bedrock"),
    **dict.fromkeys(("google_vertexai", "google_anthropic_vertex"), "gcp.vertex_ai"),
    "azure_openai": "azure.ai.openai",
    "google_genai": "gcp.gemini",
    "ibm": "ibm.watsonx.ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
}
"""The conventions' names for the providers of LangChain's packages, where they differ."""


class Span:
    """A span of OpenTelemetry's, from now until it is left. Every method may be called at any time, and none raises."""

    def __init__(self, tracer: "Tracer", name: str, attributes: Attributes, *, remote: bool = False) -> None:
        """Begin it, as a child of the current span; `remote` where another process does the work."""
        self.span: trace.Span | None = None
        with suppress(Exception):
            kind = trace.SpanKind.CLIENT if remote else trace.SpanKind.INTERNAL
            self.span = tracer.start_span(name, kind=kind, attributes=_known(attributes))

    def __enter__(self) -> Self:
        """It has begun already."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End it. Who stops listening has not seen a failure."""
        if error is not None and not isinstance(error, GeneratorExit):
            self.fail(type(error).__name__ if isinstance(error, Exception) else "cancelled")
        with suppress(Exception):
            if self.span is not None:
                self.span.end()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, whatever begins in this thread or task is its child."""
        attached = None
        with suppress(Exception):
            if self.span is not None:
                attached = context.attach(trace.set_span_in_context(self.span))
        try:
            yield
        finally:
            with suppress(Exception):
                if attached is not None:
                    context.detach(attached)

    def set(self, attributes: Attributes) -> None:
        """Add attributes; those without a value are left out."""
        with suppress(Exception):
            if self.span is not None and self.span.is_recording():
                self.span.set_attributes(_known(attributes))

    def fail(self, error_type: str) -> None:
        """It has failed for this reason, a word of a small vocabulary."""
        self.set({ERROR_TYPE: error_type})
        with suppress(Exception):
            if self.span is not None and self.span.is_recording():
                self.span.set_status(trace.Status(trace.StatusCode.ERROR, error_type))


class RunSpan(Span):
    """The span of one run: from the moment it is streamed until that stream has ended, for whatever reason.

    A run that is taken up again has another one, of the same conversation. It observes the run: see `tracing`.
    """

    def __init__(self, tracer: "Tracer", run_id: str, scrub: Callable[[str], str]) -> None:
        """Begin it, as a child of the caller's span where there is one. `run_id` is "" where it is not known yet."""
        self._tracer, self.scrub, self._conversation = tracer, scrub, scrub(run_id)
        self._input, self._output = 0, 0
        about = {OPERATION: "invoke_agent", "gen_ai.agent.name": AGENT_NAME, "gen_ai.agent.version": own_version()}
        super().__init__(tracer, f"invoke_agent {AGENT_NAME}", {**about, CONVERSATION: self._conversation})

    def child(self, name: str, attributes: Attributes, *, remote: bool = False) -> Span:
        """A span inside of the run, which begins now."""
        return Span(self._tracer, name, {**attributes, CONVERSATION: self._conversation}, remote=remote)

    def spent(self, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a model call, and set the run's sum of them."""
        self._input, self._output = self._input + input_tokens, self._output + output_tokens
        self.set({INPUT_TOKENS: self._input, OUTPUT_TOKENS: self._output})

    def node_ended(self, node: str, update: Mapping[str, Any] | None) -> None:
        """Record what a node decides, which no model call and no tool can tell by itself; None: a person is asked."""
        if update is None:
            self.set({"mendgraph.waiting_for_approval": True})
        elif node == "begin_turn" and "context" in update:
            self._conversation = self.scrub(update["run_id"])
            self.set({CONVERSATION: self._conversation, "mendgraph.mode": update["context"].mode})
        elif node in OutcomeKind.__members__:
            self._stopped(update["outcome"])

    def _stopped(self, outcome: Outcome) -> None:
        """The kind and the reason of the end, never its words."""
        self.set(
            {
                "mendgraph.outcome.kind": outcome.kind.value,
                "mendgraph.outcome.reason": outcome.reason.value,
                "mendgraph.outcome.checks": outcome.checks,
                "mendgraph.changed_files": len(outcome.changed_files),
                "mendgraph.session.cost_usd": outcome.usage.get("cost_usd"),
            }
        )
        if outcome.kind is OutcomeKind.SYSTEM_ERROR:
            self.fail(outcome.reason.value)

    @contextmanager
    def tool_call(self, call: ToolCall) -> Iterator[Callable[[ToolRun], None]]:
        """A span `execute_tool {tool}`; what is yielded is given what the call came to."""
        attributes = {
            OPERATION: "execute_tool",
            TOOL_NAME: call.tool,
            "gen_ai.tool.type": "function",
            TOOL_CALL: call.call_id,
        }
        with self.child(f"execute_tool {call.tool}", attributes) as span, span.at_work():

            def ended(ran: ToolRun) -> None:
                span.set({"mendgraph.tool.attempts": ran.attempts})
                if ran.result.error is not None:
                    span.fail(ran.result.error.code.value)

            yield ended

    def model(self, model: Model, wanted: ModelChoice, *, own: bool) -> Model:
        """The model, whose calls are spans `chat {model}`; `own`: it is the user's, at no endpoint."""
        found = find_endpoint(wanted.model, wanted.base_url, os.environ, key_variable=wanted.key_variable)
        endpoint = None if own or isinstance(found, ProviderFailure) else found
        name = self.scrub(wanted.model or (endpoint.model if endpoint else ""))
        self.set({PROVIDER: provider_of(endpoint), REQUEST_MODEL: name})
        return _ObservedModel(model, self, endpoint, name)


@dataclass(frozen=True)
class _ObservedModel:
    """Does what its model does, which is guarded already: its words are free of secrets. Each try is a span."""

    model: Model
    run: RunSpan
    endpoint: Endpoint | None
    name: str

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one try."""
        attributes = {
            OPERATION: "chat",
            PROVIDER: provider_of(self.endpoint),
            REQUEST_MODEL: self.name,
            "gen_ai.request.max_tokens": call.max_output_tokens,
            "gen_ai.request.temperature": call.prompt.temperature,
            "gen_ai.request.seed": call.seed,
            **server_of(self.endpoint),
        }
        with self.run.child(f"chat {self.name}".rstrip(), attributes, remote=True) as chat, chat.at_work():
            result = await self.model.acomplete(call, on_text)
            self._ended(chat, result)
            return result

    def _ended(self, chat: Span, result: ModelReply | ProviderFailure) -> None:
        if not isinstance(result, ModelReply):  # or nothing that a model may give back, which the driver says
            chat.fail(result.kind.value if isinstance(result, ProviderFailure) else "invalid_reply")
            return
        chat.set(
            {
                RESPONSE_MODEL: result.model,
                INPUT_TOKENS: result.input_tokens,
                OUTPUT_TOKENS: result.output_tokens,
                CACHED_TOKENS: result.cached_tokens or None,
                CACHE_WRITE_TOKENS: result.cache_write_tokens or None,
                REASONING_TOKENS: result.reasoning_tokens or None,
                FINISH_REASONS: (result.finish_reason.value,),
            }
        )
        self.run.spent(result.input_tokens, result.output_tokens)


def _known(attributes: Attributes) -> dict[str, Any]:
    """Those that have a value. Half a surrogate pair, which a model can write, is none: no exporter can send it."""
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None and value not in ("", ())
    }


# --- What the conventions call it


def provider_of(endpoint: Endpoint | None) -> str:
    """Who answers: the provider, `llama.cpp` for the embedded model, `custom` for a model of the user's own.

    An endpoint without a provider speaks OpenAI's language, so it is named after that, as the conventions have it.
    """
    if endpoint is None:
        return "custom"
    if endpoint.embedded:
        return "llama.cpp"
    return _PACKAGES.get(endpoint.provider, endpoint.provider) or "openai"


def server_of(endpoint: Endpoint | None) -> dict[str, str | int]:
    """The address and port of the endpoint; nothing for the embedded model and for one of the user's own."""
    if endpoint is None or endpoint.embedded or (endpoint.provider and not endpoint.base_url):
        return {}
    parts = urlsplit(endpoint.base_url or "https://api.openai.com")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname or "", "server.port": port}
