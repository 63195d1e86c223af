"""One run as OpenTelemetry sees it: a span `invoke_agent mendgraph`, with a child for each model call and each tool.

The machine says what happens (`observing`), and it becomes spans here. Nothing that goes
wrong with that may reach the run: a span processor of the user's own may fail in any way. Imported only where the
process has OpenTelemetry.

Names are those of OpenTelemetry's conventions for generative AI; what these have no name for begins with `mendgraph.`.
What was said is an attribute only where the user has asked for it.
Source: open-telemetry/semantic-conventions v1.41.0, docs/gen-ai: gen-ai-spans.md, gen-ai-agent-spans.md,
gen-ai-input-messages.json and gen-ai-output-messages.json.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from opentelemetry import context, trace

from mendgraph.graph.telemetry.exporting import own_version, tracer
from mendgraph.nodes.call_model.endpoint import Endpoint, ModelChoice, find_endpoint
from mendgraph.nodes.call_model.model import Call, Model
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply, Outcome, OutcomeKind, ProviderFailure, ToolCall

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

CAPTURE_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ON_SPANS: Final = frozenset({"true", "span_only", "span_and_event"})

_PROVIDERS: Final[Mapping[str, str]] = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure.ai.openai",
    "api.anthropic.com": "anthropic",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
}
"""The conventions' own names, by the ends of host names."""

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


_FINISH_REASONS: Final = {FinishReason.TOOL_CALLS: "tool_call", FinishReason.REFUSAL: "content_filter"}
"""Where the schema's word is another one than the endpoint's, which the span's own attribute keeps."""


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

    A run that is taken up again has another one, of the same conversation. It observes the run: see `observing`.
    """

    def __init__(self, tracer: "Tracer", run_id: str, scrub: Callable[[str], str]) -> None:
        """Begin it, as a child of the caller's span where there is one. `run_id` is "" where it is not known yet."""
        self._tracer, self.scrub, self._conversation = tracer, scrub, scrub(run_id)
        self._with_messages = captures_messages(os.environ)
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

    def said(self, words: Callable[[], Mapping[str, str]]) -> dict[str, str]:
        """The attributes for what was said, without secrets; nothing where the user has not asked for them."""
        return {name: self.scrub(text) for name, text in words().items()} if self._with_messages else {}

    @contextmanager
    def tool_call(self, call: ToolCall) -> Iterator[Callable[[ToolRun], None]]:
        """A span `execute_tool {tool}`; what is yielded is given what the call came to."""
        attributes = {
            OPERATION: "execute_tool",
            TOOL_NAME: call.tool,
            "gen_ai.tool.type": "function",
            TOOL_CALL: call.call_id,
            **self.said(lambda: {"gen_ai.tool.call.arguments": _compact(call.arguments)}),
        }
        with self.child(f"execute_tool {call.tool}", attributes) as span, span.at_work():

            def ended(ran: ToolRun) -> None:
                span.set({"mendgraph.tool.attempts": ran.attempts})
                span.set(self.said(lambda: {"gen_ai.tool.call.result": _compact(ran.result.as_map())}))
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
            **self.run.said(lambda: asked(call.prompt.messages)),
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
                **self.run.said(lambda: answered(result)),
            }
        )
        self.run.spent(result.input_tokens, result.output_tokens)


def observer(run_id: str, scrub: Callable[[str], str]) -> RunSpan | None:
    """The span of a run that begins, None where the process has set no tracer."""
    found = tracer()
    return None if found is None else RunSpan(found, run_id, scrub)


def _known(attributes: Attributes) -> dict[str, Any]:
    """Those that have a value. Half a surrogate pair, which a model can write, is none: no exporter can send it."""
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None and value not in ("", ())
    }


# --- What the conventions call it


def captures_messages(environment: Mapping[str, str]) -> bool:
    """Whether what is said may be told as well: only where the user says so."""
    return environment.get(CAPTURE_VARIABLE, "").strip().lower() in _ON_SPANS


def provider_of(endpoint: Endpoint | None) -> str:
    """Who answers: by the endpoint's host, `llama.cpp` for the embedded model, `custom` for a model of the user's own.

    An unknown host speaks OpenAI's language, so it is named after that, as the conventions have it.
    """
    if endpoint is None:
        return "custom"
    if endpoint.embedded:
        return "llama.cpp"
    if endpoint.provider:
        return _PACKAGES.get(endpoint.provider, endpoint.provider)
    host = (urlsplit(endpoint.base_url).hostname or "").lower() if endpoint.base_url else "api.openai.com"
    known = (name for end, name in _PROVIDERS.items() if host == end or host.endswith(f".{end}"))
    return next(known, "openai")


def server_of(endpoint: Endpoint | None) -> dict[str, str | int]:
    """The address and port of the endpoint; nothing for the embedded model and for one of the user's own."""
    if endpoint is None or endpoint.embedded or (endpoint.provider and not endpoint.base_url):
        return {}
    parts = urlsplit(endpoint.base_url or "https://api.openai.com")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname or "", "server.port": port}


def asked(messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The attributes for the messages of a request, as they go on the wire."""
    system = [_text(message) for message in messages if message.get("role") == "system"]
    others = [_message(message) for message in messages if message.get("role") != "system"]
    said = {"gen_ai.input.messages": _compact(others)}
    return {**said, "gen_ai.system_instructions": _compact(system)} if system else said


def answered(reply: ModelReply) -> dict[str, str]:
    """The attributes for a reply."""
    parts: list[JsonMap] = [{"type": "reasoning", "content": reply.reasoning}] if reply.reasoning else []
    parts += [{"type": "text", "content": reply.text}] if reply.text else []
    parts += [_call(call.call_id, call.tool, call.arguments) for call in reply.calls]
    reason = _FINISH_REASONS.get(reply.finish_reason, reply.finish_reason.value)
    message = {"role": "assistant", "parts": parts, "finish_reason": reason}
    return {"gen_ai.output.messages": _compact([message])}


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _message(message: Mapping[str, Any]) -> JsonMap:
    role = str(message.get("role"))
    if role == "tool":
        part = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": role, "parts": [part]}
    calls: Iterable[Mapping[str, Any]] = message.get("tool_calls") or ()
    made = [_call(each.get("id"), each["function"]["name"], each["function"]["arguments"]) for each in calls]
    return {"role": role, "parts": [*([_text(message)] if message.get("content") else []), *made]}


def _text(message: Mapping[str, Any]) -> JsonMap:
    return {"type": "text", "content": message.get("content")}


def _call(call_id: Any, name: str, arguments: str) -> JsonMap:
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": _read(arguments)}


def _read(arguments: str) -> Any:
    """The arguments as the object that they are; a text that is none as it is."""
    try:
        return json.loads(arguments, parse_constant=str)
    except (ValueError, RecursionError):
        return arguments
