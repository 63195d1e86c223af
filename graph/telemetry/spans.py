"""One run as OpenTelemetry sees it: a span `invoke_agent mendgraph`, with a child for each model call and each tool.

The machine says what happens (`observing`), and it becomes spans, events and metrics here. Nothing that goes
wrong with that may reach the run: a span processor of the user's own may fail in any way. Imported only where the
process has OpenTelemetry.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import Token
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from opentelemetry import context, trace

from mendgraph.graph.telemetry import conventions as names
from mendgraph.graph.telemetry.exporting import meter, own_version, tracer
from mendgraph.nodes.call_model.endpoint import Endpoint, ModelChoice, find_endpoint
from mendgraph.nodes.call_model.model import Call, Model
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.records import LoopVerdict, ModelReply, OutcomeKind, ProviderFailure, ToolCall, VerdictKind

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

Attributes = Mapping[str, Any]
State = Mapping[str, Any]

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
        self.set({names.ERROR_TYPE: error_type})
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
                names.OPERATION: "invoke_agent",
                "gen_ai.agent.name": names.AGENT_NAME,
                "gen_ai.agent.version": own_version(),
                names.CONVERSATION: scrub(run_id),
            }
        )
        self._tracer, self.scrub = tracer, scrub
        self._with_messages = names.captures_messages(os.environ)
        self._input, self._output = 0, 0
        self._context: Context | None = None
        with suppress(Exception):
            self.span = tracer.start_span(f"invoke_agent {names.AGENT_NAME}", attributes=self.attributes)
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
        known = {names.CONVERSATION: self.attributes.get(names.CONVERSATION)}
        return Child(self._tracer, name, {**attributes, **known}, remote=remote)

    def spent(self, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a model call, and set the run's sum of them."""
        self._input, self._output = self._input + input_tokens, self._output + output_tokens
        self.set({names.INPUT_TOKENS: self._input, names.OUTPUT_TOKENS: self._output})

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
            names.OPERATION: "execute_tool",
            names.TOOL_NAME: call.tool,
            "gen_ai.tool.type": "function",
            names.TOOL_CALL: call.call_id,
            **self.said(lambda: {"gen_ai.tool.call.arguments": names.as_json(call.arguments)}),
        }
        with self.child(f"execute_tool {call.tool}", attributes) as span:

            def ended(ran: ToolRun) -> None:
                span.set({"mendgraph.tool.attempts": ran.attempts})
                span.set(self.said(lambda: {"gen_ai.tool.call.result": names.as_json(ran.result.as_map())}))
                if ran.result.error is not None:
                    span.fail(ran.result.error.code.value)

            yield ended

    def model(self, model: Model, wanted: ModelChoice, *, own: bool) -> Model:
        """The model, whose calls are spans `chat {model}`."""
        found = find_endpoint(wanted.model, wanted.base_url, os.environ, key_variable=wanted.key_variable)
        endpoint = None if own or isinstance(found, ProviderFailure) else found
        name = self.scrub(wanted.model or (endpoint.model if endpoint else ""))
        self.set({names.PROVIDER: names.provider_of(endpoint), names.REQUEST_MODEL: name})
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
            *(names.OPERATION, names.PROVIDER, names.REQUEST_MODEL, names.RESPONSE_MODEL, names.ERROR_TYPE),
            *("server.address", "server.port"),
        )
        told = {name: self.attributes[name] for name in kept if name in self.attributes}
        measured = meter()
        measured.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="Duration of a model call.",
            explicit_bucket_boundaries_advisory=names.DURATION_BUCKETS,
        ).record(seconds, told)
        tokens = measured.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of a model call.",
            explicit_bucket_boundaries_advisory=names.TOKEN_BUCKETS,
        )
        for kind, name in (("input", names.INPUT_TOKENS), ("output", names.OUTPUT_TOKENS)):
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
            names.OPERATION: "chat",
            names.PROVIDER: names.provider_of(self.endpoint),
            names.REQUEST_MODEL: self.name,
            "gen_ai.request.max_tokens": call.max_output_tokens,
            "gen_ai.request.temperature": call.prompt.temperature,
            "gen_ai.request.seed": call.seed,
            **names.server_of(self.endpoint),
            **self.run.said(lambda: names.asked(call.prompt.messages)),
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
                names.RESPONSE_MODEL: result.model,
                names.INPUT_TOKENS: result.input_tokens,
                names.OUTPUT_TOKENS: result.output_tokens,
                names.CACHED_TOKENS: result.cached_tokens or None,
                names.CACHE_WRITE_TOKENS: result.cache_write_tokens or None,
                names.REASONING_TOKENS: result.reasoning_tokens or None,
                names.FINISH_REASONS: (result.finish_reason.value,),
                **self.run.said(lambda: names.answered(result)),
            }
        )
        self.run.spent(result.input_tokens, result.output_tokens)


def _begun(run: RunSpan, _: State, update: State) -> None:
    """The run's id, which may have been made just now."""
    if "context" in update:
        run.set({names.CONVERSATION: run.scrub(update["run_id"]), "mendgraph.mode": update["context"].mode})


def _healed(run: RunSpan, _: State, update: State) -> None:
    """The reply could not be used, and what of it was wrong."""
    attempts = update.get("healing_attempts") or ()
    errors = tuple(error.error_type.value for error in attempts[-1].errors) if attempts else ()
    name = "mendgraph.reply.rescued" if "reading" in update else "mendgraph.reply.healing"
    run.event(name, {"mendgraph.healing.attempt": len(attempts) or None, "mendgraph.healing.errors": errors})


def _judged(run: RunSpan, state: State, update: State) -> None:
    """Which calls were denied, by which rule."""
    for item, verdict in zip(state["items"], update["verdicts"], strict=False):
        if verdict.kind is VerdictKind.DENY:
            code = verdict.error.code.value if verdict.error else ""
            call = {names.TOOL_NAME: run.scrub(item.tool), names.TOOL_CALL: run.scrub(item.call_id)}
            run.event("mendgraph.call.denied", {**call, "mendgraph.rule": verdict.rule, names.ERROR_TYPE: code})


def _checked(run: RunSpan, _: State, update: State) -> None:
    """Which action came too often."""
    loop = update.get("loop")
    for override in loop.overrides if loop is not None and loop.verdict is LoopVerdict.OVERRIDE else ():
        repeated = {names.TOOL_NAME: run.scrub(override.tool), "mendgraph.loop.repeats": override.repeats}
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
