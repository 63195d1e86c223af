"""One run as OpenTelemetry sees it: a span `invoke_agent mendgraph`, with a child for each model call and each tool.

Nothing that goes wrong with telling may reach the run: a span processor of the user's own may fail in any way.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import Token
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from graph.telemetry import conventions as names
from graph.telemetry.active import CURRENT_RUN, meter, own_version
from nodes.records import Outcome, OutcomeKind

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

Attributes = Mapping[str, Any]

CANCELLED = "cancelled"
"""The `error.type` of what somebody has stopped."""


class Telling:
    """A span that is being told of. Every method may be called at any time, and none of them raises."""

    def __init__(self, span: "Span | None") -> None:
        self.span = span
        self.attributes: dict[str, Any] = {}
        """What has been told of it since it began."""

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
            from opentelemetry.trace import Status, StatusCode

            if self.span is not None and self.span.is_recording():
                self.span.set_status(Status(StatusCode.ERROR, error_type))

    def rename(self, name: str) -> None:
        """Give it its name, which is only known now."""
        with suppress(Exception):
            if self.span is not None and self.span.is_recording():
                self.span.update_name(name)

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


class RunSpan(Telling):
    """The span of one run: from the moment it is streamed until that stream has ended, for whatever reason.

    A run that is taken up again has another one, of the same conversation.
    """

    def __init__(self, tracer: "Tracer", conversation: str) -> None:
        """Begin it, as a child of the caller's span where there is one. `conversation` is the run's id, if known."""
        first: Attributes = {
            names.OPERATION: "invoke_agent",
            "gen_ai.agent.name": names.AGENT_NAME,
            "gen_ai.agent.version": own_version(),
            names.CONVERSATION: conversation,
        }
        self._tracer = tracer
        self._input, self._output = 0, 0
        self._context: Context | None = None
        span: Span | None = None
        with suppress(Exception):
            from opentelemetry import trace

            span = tracer.start_span(f"invoke_agent {names.AGENT_NAME}", attributes=_known(first))
            self._context = trace.set_span_in_context(span)
        super().__init__(span)
        self.attributes.update(_known(first))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, whatever begins in this thread or task belongs to the run."""
        token = CURRENT_RUN.set(self)
        attached: Token[Context] | None = None
        with suppress(Exception):
            if self._context is not None:
                from opentelemetry import context

                attached = context.attach(self._context)
        try:
            yield
        finally:
            with suppress(Exception):
                if attached is not None:
                    context.detach(attached)
            CURRENT_RUN.reset(token)

    def child(self, name: str, attributes: Attributes, *, remote: bool = False) -> "Child":
        """A span inside of the run, as a context manager; `remote` where another process does the work."""
        return Child(self._tracer, name, attributes, remote=remote)

    def spent(self, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a model call, and tell the run's sum of them."""
        self._input, self._output = self._input + input_tokens, self._output + output_tokens
        self.set({names.INPUT_TOKENS: self._input, names.OUTPUT_TOKENS: self._output})

    def ended(self, outcome: Outcome) -> None:
        """The run has an outcome: its kind and its reason, never its words."""
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


class Child(Telling):
    """A part of a run: begun when it is entered, ended when it is left, failed where something is raised."""

    def __init__(self, tracer: "Tracer", name: str, attributes: Attributes, *, remote: bool) -> None:
        super().__init__(None)
        self._tracer, self._name, self._remote = tracer, name, remote
        self.attributes = _known(attributes)
        self._attached: Token[Context] | None = None
        self._started = perf_counter()

    def __enter__(self) -> Self:
        """Begin it; what begins inside is its child."""
        self._started = perf_counter()
        with suppress(Exception):
            from opentelemetry import context, trace

            kind = trace.SpanKind.CLIENT if self._remote else trace.SpanKind.INTERNAL
            self.span = self._tracer.start_span(self._name, kind=kind, attributes=self.attributes)
            self._attached = context.attach(trace.set_span_in_context(self.span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, and measure it."""
        if error is not None:
            self.fail(type(error).__name__ if isinstance(error, Exception) else CANCELLED)
        with suppress(Exception):
            if self._attached is not None:
                from opentelemetry import context

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


def _known(attributes: Attributes) -> dict[str, Any]:
    """Those that have a value. Half a surrogate pair, which a model can write, is none: no exporter can send it."""
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None and value not in ("", ())
    }
