"""The one hook for whoever watches runs: a run that is observed says what it does, as it does it.

Nobody observes where the process has imported nothing of OpenTelemetry: then a run pays for one look.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Protocol

from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.model import Model
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.records import ToolCall

Ended = Callable[[ToolRun], None]


class RunObserver(Protocol):
    """Hears of one run: entered when it is streamed, left when that stream has ended. It never raises."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

    def at_work(self) -> AbstractContextManager[None]:
        """Entered for as long as the machine works, and not while its caller does."""

    def node_ended(self, node: str, state: Mapping[str, Any], update: Mapping[str, Any] | None) -> None:
        """What a node has returned; None where it waits for a person."""

    def tool_call(self, call: ToolCall) -> AbstractContextManager[Ended]:
        """Entered around a call, and given what it came to."""

    def model(self, model: Model, wanted: ModelChoice, *, own: bool) -> Model:
        """A model whose calls are heard of. `own`: it is the user's, at no endpoint."""


OBSERVER: Final[ContextVar[RunObserver | None]] = ContextVar("mendgraph_observer", default=None)
"""Who observes the run that this thread or task works for; LangGraph hands it on to the nodes, and these to tools."""


def run_observer(run_id: str, scrub: Callable[[str], str]) -> RunObserver | None:
    """Who observes the run that begins; None where the process has set no tracer. `run_id` is "" if not known yet."""
    if sys.modules.get("opentelemetry.trace") is None:
        return None
    try:
        from mendgraph.graph.telemetry.spans import observer

        return observer(run_id, scrub)
    except Exception:  # noqa: BLE001 - a broken OpenTelemetry ends no run
        return None


@contextmanager
def at_work(observer: RunObserver) -> Iterator[None]:
    """Inside, whatever begins in this thread or task belongs to the observed run."""
    token = OBSERVER.set(observer)
    try:
        with observer.at_work():
            yield
    finally:
        OBSERVER.reset(token)


def observed_call(call: ToolCall) -> AbstractContextManager[Ended]:
    """Entered around a tool call."""
    observer = OBSERVER.get()
    return nullcontext(lambda _: None) if observer is None else observer.tool_call(call)
