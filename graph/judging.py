"""Guard's work with the things of one run: its rules, its tools, and what a person has to be shown and may answer."""

from collections.abc import Callable
from functools import partial

from langgraph.config import get_config, get_stream_writer

from graph.context import AgentContext
from graph.gateway import Gateway
from graph.previews import Previewer
from graph.slices import GuardSlice
from graph.state import Update
from nodes.guard.approvals import ApprovalRequest
from nodes.guard.asking import GuardUpdate, Hands
from nodes.guard.node import judge_step
from nodes.guard.policy import GuardConfig, judge_reply
from nodes.loop_check.signature import signature_of
from nodes.records import Effect, JsonMap, LoopRecord, ToolCall, ToolError, Verdict


def with_known_files(gateway: Gateway, context: AgentContext, update: Update) -> Update:
    """What a reply was read as, with what the files that its calls name hold now, where a person will be asked."""
    if context.mode != "ask" or not update.get("items"):
        return update
    calls = [item for item in update["items"] if isinstance(item, ToolCall) and item.tool in gateway.specs]
    writing = [call for call in calls if gateway.specs[call.tool].effect is Effect.WRITE]
    return {**update, "known_files": Previewer(gateway, GuardSlice(context=context)).known_files(writing)}


def judge_calls(gateway: Gateway, state: GuardSlice) -> GuardUpdate:
    """Judge the calls of one reply, and ask a person where that is needed."""
    context = state["context"]
    allowed = gateway.allowed(context)

    def refused(decision: JsonMap) -> None:
        gateway.tell_refused(state.get("run_id", ""), state.get("step", 0), get_stream_writer(), decision)

    config = GuardConfig(
        mode=context.mode,
        root=context.workspace,
        rules=gateway.rules(context),
        allowed=frozenset() if isinstance(allowed, ToolError) else allowed,
        paths_of=gateway.paths_of,
        leads_to=partial(gateway.leads_to, context, observe=refused),
    )
    overrides = state.get("loop", LoopRecord()).overrides
    signature = partial(signature_of, root=context.workspace)

    def judge_one(call: ToolCall) -> Verdict:
        return judge_reply([call], config, gateway.specs, overrides, signature)[0]

    def hands(ask: Callable[[ApprovalRequest], object]) -> Hands:
        clean = gateway.redactor().content
        return Hands(
            ask=lambda request: clean(ask(clean(request))),
            preview=Previewer(gateway, state),
            validate=gateway.registry.validate,
            judge=judge_one,
            thread=str(get_config()["configurable"].get("thread_id") or state.get("run_id", "")),
            grants=state.get("grants") or (),
            known=state.get("known_files") or {},
        )

    return judge_step(
        state,
        lambda items: judge_reply(items, config, gateway.specs, overrides, signature),
        gateway.specs,
        hands,
    )
