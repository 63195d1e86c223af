"""OpenTelemetry: a span `invoke_agent mendgraph` for a run, with a child span for each model call and each tool call.

Spans and counters go to the providers that the process has set. This module imports nothing of OpenTelemetry unless the
program has imported it.

Names are those of OpenTelemetry's conventions for generative AI; other names begin with `mendgraph.`.
Source: open-telemetry/semantic-conventions v1.41.0, docs/gen-ai: gen-ai-spans.md, gen-ai-agent-spans.md.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from mendgraph.nodes.call_model.endpoint import Endpoint, ModelChoice, find_endpoint
from mendgraph.nodes.call_model.model import Call, Model
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome
from mendgraph.nodes.records import ModelReply, Outcome, OutcomeKind, ProviderFailure, ToolCall

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

Attributes = Mapping[str, Any]

OBSERVER: Final["ContextVar[RunSpan | None]"] = ContextVar("mendgraph_observer", default=None)
"""The observer of the current run. LangGraph copies the context to nodes, and nodes copy it to tools."""

AGENT_NAME: Final = "mendgraph"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CONVERSATION, OPERATION, PROVIDER = "gen_ai.conversation.id", "gen_ai.operation.name", "gen_ai.provider.name"

_PACKAGES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("bedrock", "bedrock_converse", "anthropic_bedrock"), "aws.bedrock"),
    **dict.fromkeys(("google_vertexai", "google_anthropic_vertex"), "gcp.vertex_ai"),
    "azure_openai": "azure.ai.openai",
    "google_genai": "gcp.gemini",
    "ibm": "ibm.watsonx.ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
}
"""The conventions' names for the providers of LangChain's packages, if they differ."""


EVENTS: Final[Mapping[str, str]] = {
    "rescued": "Replies whose calls were read in another format than was asked for",
    "asked_again": "Replies that could not be used and were answered with what was wrong with them",
    "healed": "Replies that could be used after one or more that could not",
    "cut": "Replies of which only what stood before an invented result was kept",
    "loops": "Steps that repeated an action",
    "overrides": "Actions that were refused as they were repeated",
    "truncated": "Results of reading tools that show a part of what there is",
}
"""The metrics `mendgraph.{name}` and their descriptions. The names are those of `Mending`."""


def count_events(events: Mapping[str, int]) -> None:
    """Add these counts to the metrics, if the process has set a meter provider."""
    metrics = sys.modules.get("opentelemetry.metrics")
    if metrics is None or type(metrics.get_meter_provider()).__module__.startswith(metrics.__name__):
        return

    meter = metrics.get_meter(AGENT_NAME)
    for name in events.keys() & EVENTS.keys():
        meter.create_counter(f"{AGENT_NAME}.{name}", "{event}", EVENTS[name]).add(events[name])


def run_observer(run_id: str, scrub: Callable[[str], str]) -> "RunSpan | None":
    """Start the span of a run; None if the process has set no tracer. `run_id` is "" if it is not known yet."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None

    return RunSpan(trace.get_tracer(AGENT_NAME), run_id, scrub)


@contextmanager
def at_work(observer: "RunSpan | None") -> Iterator[None]:
    """Inside, spans of this thread or task belong to the observed run, if there is one."""
    current: AbstractContextManager[Any] = nullcontext()
    if observer:
        current = _current(observer.span)

    token = OBSERVER.set(observer)
    try:
        with current:
            yield
    finally:
        OBSERVER.reset(token)


def observed_call(call: ToolCall) -> AbstractContextManager[Callable[[ToolOutcome], None]]:
    """Return a context for a tool call; call what it yields with the run of the tool."""
    observer = OBSERVER.get()
    if observer is None:
        return nullcontext(lambda _: None)

    return observer.tool_call(call)


class RunSpan:
    """The span of one run, from the start to the end of its stream.

    A resumed run has another span of the same conversation.
    """

    def __init__(self, tracer: "Tracer", run_id: str, scrub: Callable[[str], str]) -> None:
        """Start it, as a child of the caller's span if there is one. `run_id` is "" if it is not known yet."""
        self._tracer = tracer
        self._scrub = scrub
        self._conversation = scrub(run_id)
        self._input = 0
        self._output = 0
        attributes = {OPERATION: "invoke_agent", "gen_ai.agent.name": AGENT_NAME, CONVERSATION: self._conversation}
        self.span = tracer.start_span(f"invoke_agent {AGENT_NAME}", attributes=_present_values(attributes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the span. Closing the generator is no failure."""
        if error is not None and not isinstance(error, GeneratorExit):
            _fail(self.span, _error_type(error))

        self.span.end()

    @contextmanager
    def _child(self, name: str, attributes: Attributes, *, remote: bool = False) -> Iterator["Span"]:
        """Start a child span and make it current; `remote`: another process does the work."""
        from opentelemetry.trace import SpanKind

        kind = SpanKind.INTERNAL
        if remote:
            kind = SpanKind.CLIENT

        attributes = _present_values({**attributes, CONVERSATION: self._conversation})
        span = self._tracer.start_span(name, kind=kind, attributes=attributes)

        try:
            with _current(span):
                yield span
        except BaseException as error:
            _fail(span, _error_type(error))
            raise
        finally:
            span.end()

    def node_ended(self, node: str, update: Mapping[str, Any]) -> None:
        """Record the start and the outcome of a turn, which are in no other span."""
        if node == "begin_turn" and "context" in update:
            self._conversation = self._scrub(update["run_id"])
            mode = update["context"].mode
            self.span.set_attributes(_present_values({CONVERSATION: self._conversation, "mendgraph.mode": mode}))
        elif node in OutcomeKind.__members__:
            self._record_outcome(update["outcome"])

    def _record_outcome(self, outcome: Outcome) -> None:
        """Record the kind and the reason of the outcome, without its texts."""
        verified = ""
        if outcome.changed_files:
            verified = outcome.verified.kind

        attributes = {
            "mendgraph.outcome.kind": outcome.kind.value,
            "mendgraph.outcome.reason": outcome.reason.value,
            "mendgraph.outcome.verified": verified,
            "mendgraph.changed_files": len(outcome.changed_files),
            "mendgraph.session.cost_usd": outcome.usage.get("cost_usd"),
        }
        self.span.set_attributes(_present_values(attributes))

        if outcome.kind is OutcomeKind.SYSTEM_ERROR:
            _fail(self.span, outcome.reason.value)

    @contextmanager
    def tool_call(self, call: ToolCall) -> Iterator[Callable[[ToolOutcome], None]]:
        """Start a span `execute_tool {tool}`; call the yielded function with the run of the tool."""
        attributes = {
            OPERATION: "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.call_id,
            "mendgraph.tool.call_format": call.format or None,
        }

        with self._child(f"execute_tool {call.tool}", attributes) as span:

            def record_run(tool_run: ToolOutcome) -> None:
                span.set_attribute("mendgraph.tool.attempts", tool_run.attempts)
                if tool_run.result.error is not None:
                    _fail(span, tool_run.result.error.code.value)

            yield record_run

    def model(self, model: Model, choice: ModelChoice, *, is_users: bool) -> Model:
        """Return the model with a span `chat {model}` for each call; `is_users`: it is a chat model of the user."""
        name = choice.model or ""
        endpoint = None
        if not is_users:
            result = find_endpoint(choice.model, choice.base_url, os.environ, key_variable=choice.key_variable)
            if not isinstance(result, ProviderFailure):
                endpoint = result
                name = name or endpoint.model

        name = self._scrub(name)
        attributes = {PROVIDER: provider_of(endpoint), "gen_ai.request.model": name}
        self.span.set_attributes(_present_values(attributes))

        return _ObservedModel(model, self, attributes)

    @contextmanager
    def chat(self, call: Call, model: Attributes) -> Iterator[Callable[[object], None]]:
        """Start a span `chat {model}`; call the yielded function with the result of the call."""
        attributes = {
            OPERATION: "chat",
            **model,
            "gen_ai.request.max_tokens": call.max_output_tokens,
            "gen_ai.request.temperature": call.prompt.temperature,
            "gen_ai.request.seed": call.seed,
        }

        with self._child(f"chat {model['gen_ai.request.model']}".rstrip(), attributes, remote=True) as span:

            def record_result(result: object) -> None:
                if isinstance(result, ProviderFailure):
                    _fail(span, result.kind.value)
                    return
                if not isinstance(result, ModelReply):  # the call reports it
                    _fail(span, "invalid_reply")
                    return

                span.set_attributes(_present_values(_usage(result)))
                self._input = self._input + result.input_tokens
                self._output = self._output + result.output_tokens
                self.span.set_attributes({INPUT_TOKENS: self._input, OUTPUT_TOKENS: self._output})

            yield record_result


@dataclass(frozen=True)
class _ObservedModel:
    """A model with a span for each try. The model is redacted already: its texts hold no secrets."""

    model: Model
    run: RunSpan
    attributes: Attributes

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one try."""
        with self.run.chat(call, self.attributes) as record_result:
            result = self.model.complete(call, on_text)
            record_result(result)
            return result

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one try in the running event loop."""
        with self.run.chat(call, self.attributes) as record_result:
            result = await self.model.acomplete(call, on_text)
            record_result(result)
            return result


def provider_of(endpoint: Endpoint | None) -> str:
    """Return the provider: `llama.cpp` for the embedded model, `custom` for a chat model of the user.

    An endpoint without a provider uses OpenAI's protocol and is named after it, as the conventions say.
    """
    if endpoint is None:
        return "custom"
    if endpoint.embedded:
        return "llama.cpp"

    return _PACKAGES.get(endpoint.provider, endpoint.provider) or "openai"


def _usage(reply: ModelReply) -> Attributes:
    return {
        "gen_ai.response.model": reply.model,
        INPUT_TOKENS: reply.input_tokens,
        OUTPUT_TOKENS: reply.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": reply.cached_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": reply.cache_write_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": reply.reasoning_tokens or None,
        "gen_ai.response.finish_reasons": (reply.finish_reason.value,),
    }


def _current(span: "Span") -> AbstractContextManager["Span"]:
    from opentelemetry.trace import use_span

    return use_span(span, record_exception=False, set_status_on_exception=False)


def _fail(span: "Span", error_type: str) -> None:
    """Mark the span as failed, with a reason of low cardinality."""
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR, error_type)


def _present_values(attributes: Attributes) -> dict[str, Any]:
    """Return the attributes with a value; lone surrogates, which no exporter can send, are replaced."""
    present: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, str):
            value = value.encode("utf-8", "replace").decode()  # noqa: PLW2901 - the same text
        if value is not None and value not in ("", ()):
            present[name] = value

    return present


def _error_type(error: BaseException) -> str:
    """Return the attribute `error.type` of an exception."""
    if isinstance(error, Exception):
        return type(error).__name__

    return "cancelled"
