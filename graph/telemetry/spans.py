"""One run as OpenTelemetry sees it: a span `invoke_agent mendgraph`, with a child for each model call and each tool.

The machine says what happens (`observing`), and it becomes spans, events and metrics here. Nothing that goes
wrong with that may reach the run: a span processor of the user's own may fail in any way. Imported only where the
process has OpenTelemetry.

Names are those of OpenTelemetry's conventions for generative AI; what these have no name for begins with `mendgraph.`.
What was said is an attribute only where the user has asked for it.
Source: open-telemetry/semantic-conventions v1.41.0, docs/gen-ai: gen-ai-spans.md, gen-ai-agent-spans.md,
gen-ai-metrics.md, gen-ai-input-messages.json and gen-ai-output-messages.json.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Token
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from opentelemetry import context, trace

from mendgraph.graph.telemetry.exporting import meter, own_version, tracer
from mendgraph.nodes.call_model.endpoint import Endpoint, ModelChoice, find_endpoint
from mendgraph.nodes.call_model.model import Call, Model
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.records import (
    FinishReason,
    JsonMap,
    LoopVerdict,
    ModelReply,
    OutcomeKind,
    ProviderFailure,
    ToolCall,
    VerdictKind,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

Attributes = Mapping[str, Any]
State = Mapping[str, Any]

AGENT_NAME: Final = "mendgraph"
OPERATION, PROVIDER, ERROR_TYPE = "gen_ai.operation.name", "gen_ai.provider.name", "error.type"
REQUEST_MODEL, RESPONSE_MODEL = "gen_ai.request.model", "gen_ai.response.model"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHED_TOKENS, CACHE_WRITE_TOKENS = "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS, FINISH_REASONS = "gen_ai.usage.reasoning.output_tokens", "gen_ai.response.finish_reasons"
CONVERSATION, TOOL_NAME, TOOL_CALL = "gen_ai.conversation.id", "gen_ai.tool.name", "gen_ai.tool.call.id"

TOKEN_BUCKETS: Final = tuple(float(4**power) for power in range(14))
DURATION_BUCKETS: Final = tuple(0.01 * 2**power for power in range(14))

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


CANCELLED: Final = "cancelled"
"""The `error.type` of what somebody has stopped."""


class Span:
    """A span of OpenTelemetry's, once it has begun. Every method may be called at any time, and none of them raises."""

    def __init__(self, attributes: Attributes) -> None:
        """Not begun. `attributes` without a value are left out."""
        self.span: trace.Span | None = None
        self.attributes = _known(attributes)

    def set(self, attributes: Attributes) -> None:
        """Add attributes; those without a value are left out."""
        given = _known(attributes)
        self.attributes.update(given)
        with suppress(Exception):
            if self.span is not None and self.span.is_recording():
                self.span.set_attributes(given)

    def fail(self, error_type: str) -> None:
        """It has failed for this reason, a word of a small vocabulary."""
        self.set({ERROR_TYPE: error_type})
        with suppress(Exception):
            if self.span is not None and self.span.is_recording():
                self.span.set_status(trace.Status(trace.StatusCode.ERROR, error_type))

    def fail_with(self, error: BaseException) -> None:
        """It has failed with this exception, or was stopped."""
        self.fail(type(error).__name__ if isinstance(error, Exception) else CANCELLED)

    def event(self, name: str, attributes: Attributes) -> None:
        """Something happened at this moment."""
        with suppress(Exception):
            if self.span is not None and self.span.is_recording():
                self.span.add_event(name, _known(attributes))

    def end(self) -> None:
        """It is over."""
        with suppress(Exception):
            if self.span is not None:
                self.span.end()


class RunSpan(Span):
    """The span of one run: from the moment it is streamed until that stream has ended, for whatever reason.

    A run that is taken up again has another one, of the same conversation. It observes the run: see `observing`.
    """

    def __init__(self, tracer: "Tracer", run_id: str, scrub: Callable[[str], str]) -> None:
        """Begin it, as a child of the caller's span where there is one. `run_id` is "" where it is not known yet."""
        super().__init__(
            {
                OPERATION: "invoke_agent",
                "gen_ai.agent.name": AGENT_NAME,
                "gen_ai.agent.version": own_version(),
                CONVERSATION: scrub(run_id),
            }
        )
        self._tracer, self.scrub = tracer, scrub
        self._with_messages = captures_messages(os.environ)
        self._input, self._output = 0, 0
        self._context: Context | None = None
        with suppress(Exception):
            self.span = tracer.start_span(f"invoke_agent {AGENT_NAME}", attributes=self.attributes)
            self._context = trace.set_span_in_context(self.span)

    def __enter__(self) -> Self:
        """It has begun already."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End it. Who stops listening has not seen a failure."""
        if error is not None and not isinstance(error, GeneratorExit):
            self.fail_with(error)
        self.end()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, whatever begins in this thread or task is its child."""
        attached: Token[Context] | None = None
        with suppress(Exception):
            if self._context is not None:
                attached = context.attach(self._context)
        try:
            yield
        finally:
            with suppress(Exception):
                if attached is not None:
                    context.detach(attached)

    def child(self, name: str, attributes: Attributes, *, remote: bool = False) -> "Child":
        """A span inside of the run, as a context manager; `remote` where another process does the work."""
        known = {CONVERSATION: self.attributes.get(CONVERSATION)}
        return Child(self._tracer, name, {**attributes, **known}, remote=remote)

    def spent(self, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a model call, and set the run's sum of them."""
        self._input, self._output = self._input + input_tokens, self._output + output_tokens
        self.set({INPUT_TOKENS: self._input, OUTPUT_TOKENS: self._output})

    def node_ended(self, node: str, state: Mapping[str, Any], update: Mapping[str, Any] | None) -> None:
        """Record what a node decides, which no model call and no tool can tell by itself."""
        if update is None:
            self.set({"mendgraph.waiting_for_approval": True})
            self.event("mendgraph.approval.asked", {})
        elif node in _HEARD:
            _HEARD[node](self, state, update)

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
        with self.child(f"execute_tool {call.tool}", attributes) as span:

            def ended(ran: ToolRun) -> None:
                span.set({"mendgraph.tool.attempts": ran.attempts})
                span.set(self.said(lambda: {"gen_ai.tool.call.result": _compact(ran.result.as_map())}))
                if ran.result.error is not None:
                    span.fail(ran.result.error.code.value)

            yield ended

    def model(self, model: Model, wanted: ModelChoice, *, own: bool) -> Model:
        """The model, whose calls are spans `chat {model}`."""
        found = find_endpoint(wanted.model, wanted.base_url, os.environ, key_variable=wanted.key_variable)
        endpoint = None if own or isinstance(found, ProviderFailure) else found
        name = self.scrub(wanted.model or (endpoint.model if endpoint else ""))
        self.set({PROVIDER: provider_of(endpoint), REQUEST_MODEL: name})
        return _ObservedModel(model, self, endpoint, name)


class Child(Span):
    """A part of a run: begun when it is entered, ended when it is left, failed where something is raised."""

    def __init__(self, tracer: "Tracer", name: str, attributes: Attributes, *, remote: bool) -> None:
        super().__init__(attributes)
        self._tracer, self._name, self._remote = tracer, name, remote
        self._attached: Token[Context] | None = None
        self._started = perf_counter()

    def __enter__(self) -> Self:
        """Begin it; what begins inside is its child."""
        self._started = perf_counter()
        with suppress(Exception):
            kind = trace.SpanKind.CLIENT if self._remote else trace.SpanKind.INTERNAL
            self.span = self._tracer.start_span(self._name, kind=kind, attributes=self.attributes)
            self._attached = context.attach(trace.set_span_in_context(self.span))
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End it, and measure it."""
        if error is not None:
            self.fail_with(error)
        with suppress(Exception):
            if self._attached is not None:
                context.detach(self._attached)
        if self._remote:
            with suppress(Exception):
                self._measure(perf_counter() - self._started)
        self.end()

    def _measure(self, seconds: float) -> None:
        """The two histograms of the conventions; what a meter drops costs nothing."""
        kept = (
            *(OPERATION, PROVIDER, REQUEST_MODEL, RESPONSE_MODEL, ERROR_TYPE),
            *("server.address", "server.port"),
        )
        told = {name: self.attributes[name] for name in kept if name in self.attributes}
        measured = meter()
        measured.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="Duration of a model call.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
        ).record(seconds, told)
        tokens = measured.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of a model call.",
            explicit_bucket_boundaries_advisory=TOKEN_BUCKETS,
        )
        for kind, name in (("input", INPUT_TOKENS), ("output", OUTPUT_TOKENS)):
            if self.attributes.get(name):
                tokens.record(self.attributes[name], {**told, "gen_ai.token.type": kind})


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
        with self.run.child(f"chat {self.name}".rstrip(), attributes, remote=True) as chat:
            result = await self.model.acomplete(call, on_text)
            self._ended(chat, result)
            return result

    def _ended(self, chat: Child, result: ModelReply | ProviderFailure) -> None:
        if not isinstance(result, ModelReply):  # or nothing that a model may give back, which the driver says
            chat.fail(result.kind.value if isinstance(result, ProviderFailure) else "invalid_reply")
            return
        if not self.name and result.model:
            with suppress(Exception):
                if chat.span is not None:
                    chat.span.update_name(f"chat {result.model}")
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


def _begun(run: RunSpan, _: State, update: State) -> None:
    if "context" in update:
        run.set({CONVERSATION: run.scrub(update["run_id"]), "mendgraph.mode": update["context"].mode})


def _healed(run: RunSpan, _: State, update: State) -> None:
    attempts = update.get("healing_attempts") or ()
    errors = tuple(error.error_type.value for error in attempts[-1].errors) if attempts else ()
    name = "mendgraph.reply.rescued" if "reading" in update else "mendgraph.reply.healing"
    run.event(name, {"mendgraph.healing.attempt": len(attempts) or None, "mendgraph.healing.errors": errors})


def _judged(run: RunSpan, state: State, update: State) -> None:
    for item, verdict in zip(state["items"], update["verdicts"], strict=False):
        if verdict.kind is VerdictKind.DENY:
            code = verdict.error.code.value if verdict.error else ""
            call = {TOOL_NAME: run.scrub(item.tool), TOOL_CALL: run.scrub(item.call_id)}
            run.event("mendgraph.call.denied", {**call, "mendgraph.rule": verdict.rule, ERROR_TYPE: code})


def _checked(run: RunSpan, _: State, update: State) -> None:
    loop = update.get("loop")
    for override in loop.overrides if loop is not None and loop.verdict is LoopVerdict.OVERRIDE else ():
        repeated = {TOOL_NAME: run.scrub(override.tool), "mendgraph.loop.repeats": override.repeats}
        run.event("mendgraph.loop.override", repeated)


def _stopped(run: RunSpan, _: State, update: State) -> None:
    """The run has an outcome: its kind and its reason, never its words."""
    outcome = update["outcome"]
    run.set(
        {
            "mendgraph.outcome.kind": outcome.kind.value,
            "mendgraph.outcome.reason": outcome.reason.value,
            "mendgraph.outcome.checks": outcome.checks,
            "mendgraph.changed_files": len(outcome.changed_files),
            "mendgraph.session.cost_usd": outcome.usage.get("cost_usd"),
        }
    )
    if outcome.kind is OutcomeKind.SYSTEM_ERROR:
        run.fail(outcome.reason.value)


_HEARD: Final[Mapping[str, Callable[[RunSpan, State, State], None]]] = MappingProxyType(
    {
        "begin_turn": _begun,
        "heal": _healed,
        "guard": _judged,
        "loop_check": _checked,
        **dict.fromkeys(map(str, OutcomeKind), _stopped),
    }
)
"""What is recorded of the nodes."""


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
