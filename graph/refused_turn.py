"""A turn that a server does not admit, and whose records a turn keeps. Pure."""

from collections.abc import Callable
from typing import cast
from uuid import uuid4

from langgraph.runtime import Runtime
from langgraph.types import Overwrite

from graph.context import AgentContext
from graph.given_context import Admission
from graph.slices import BeginTurnSlice
from graph.state import Update
from nodes.begin_turn.named_files import Ahead
from nodes.begin_turn.node import begin_turn
from nodes.begin_turn.scrubbed_messages import scrubbed
from nodes.call_model import ledger
from nodes.records import Profile, StopCause


def refused_turn(state: BeginTurnSlice, cause: StopCause, profile: Profile, scrub: Callable[[str], str]) -> Update:
    """End the turn where it begins: nothing was looked at, and nothing is touched. Its context is the last one's.

    A thread that has none gets none: a client of a server could go on with defaults, past what its operator allows.
    """
    nowhere = Ahead(files=False)
    update = begin_turn(state, profile, cause.message, lambda _: False, tuple, nowhere, Overwrite)
    clean = scrubbed(state.get("messages") or [], scrub)
    if clean is not None:
        update["messages"] = Overwrite(clean)
    spending = ledger.begin_turn(state.get("spending") or ledger.Spending())
    last = {"context": state["context"]} if state.get("context") else {}
    return {
        **update,
        **last,
        "run_id": state.get("run_id") or uuid4().hex,
        "stop": cause,
        "spending": spending,
        "tool_counts": {},
    }


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
