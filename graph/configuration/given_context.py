"""Which context a turn has: what it was given, what the graph was built with, or its thread had; and its run's id."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from langgraph.runtime import Runtime
from pydantic import ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.nodes.records import StopCause

_REMEDY = "say what this agent may do where it is built: build_graph(context=AgentContext(...))"


@dataclass(frozen=True)
class Admission:
    """What a server has decided of a turn before it begins: its context, or why it ends at once; `owner` is whose."""

    context: AgentContext | StopCause
    owner: str

    def run_id(self, thread: str) -> str:
        """The run's id in our own records, where threads of two owners never meet."""
        return f"{self.owner}/{thread}"


def given_context(
    given: object, bound: AgentContext | None, stored: AgentContext | None
) -> AgentContext | StopCause | str:
    """The context of a turn, why a server refuses it, or what is wrong with the one that it was given.

    `given` comes with the run. Inside another graph it is that graph's own context, which may be of any type; then the
    agent's is `bound`, what its graph was built with. `stored` is that of the thread's last turn.
    """
    if isinstance(given, AgentContext):
        return given
    if isinstance(given, Admission):
        return given.context
    if given is None:
        return bound or stored or AgentContext()
    if bound is not None:
        return bound
    if not isinstance(given, Mapping):
        return f"The run was given a context of the type {type(given).__name__}, which is no AgentContext: {_REMEDY}."
    try:
        return AgentContext.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "context"
        return f"The run was given a context that is no AgentContext ({field}: {first['msg']}): {_REMEDY}."


def run_id_of(runtime: Runtime[AgentContext]) -> str:
    """The thread, which is the run; on a server for several users with its owner. "" where there is no thread.

    As a part of another graph, with the place there: its agents share a thread, and no records.
    """
    info = runtime.execution_info
    if info is None or info.thread_id is None:
        return ""
    place = info.checkpoint_ns.rpartition("|")[0]
    thread = f"{info.thread_id}|{place}" if place else str(info.thread_id)
    admitted = cast("object", runtime.context)
    return admitted.run_id(thread) if isinstance(admitted, Admission) else thread
