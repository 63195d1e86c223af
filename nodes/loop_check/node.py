"""In: the calls of a step and their results. Out: the loop record, and the step settled into the history. No effect."""

from collections.abc import Callable, Mapping
from typing import Any

from mendgraph.nodes.language.history import settle_exchange
from mendgraph.nodes.loop_check import repetition
from mendgraph.nodes.loop_check.repetition import target_of
from mendgraph.nodes.records import EditForm, LoopRecord, LoopVerdict, ModelReply, ToolCall, ToolSpec, net_changes


def check(
    state: repetition.LoopState,
    config: repetition.LoopConfig,
    signature_of: Callable[[ToolCall, ToolSpec], str],
    specs: Mapping[str, ToolSpec],
    root: str = "",
) -> dict[str, Any]:
    """Was this step progress? Malformed calls and calls of unknown tools have no signature: they are `heal`'s."""
    items, results = state.get("items", []), state.get("results", [])
    calls = {at: item for at, item in enumerate(items) if isinstance(item, ToolCall) and item.tool in specs}
    signatures = {at: signature_of(call, specs[call.tool]) for at, call in calls.items() if not call.implied}
    named = {at: (call.tool, target_of(call, specs[call.tool], root)) for at, call in calls.items()}
    changed = tuple(net_changes(state.get("changes") or []))
    loop = repetition.check_progress(
        record=state.get("loop", LoopRecord()),
        signatures=tuple(signatures.values()),
        described={name: named[at] for at, name in signatures.items()},
        changed={name for at, name in signatures.items() if results[at].changes},
        answered=any(specs[call.tool].terminal and results[at].result.ok for at, call in calls.items()),
        config=config,
        outcomes={name: repetition.outcome_of(results[at].result) for at, name in signatures.items()},
    )
    reply, profile = state.get("reply") or ModelReply(), state["profile"]
    if not reply.preloaded:
        loop = repetition.count_tries(loop, items, results, specs, profile, config.max_failed_tries)
    loop = repetition.with_account(loop, state, specs, changed)
    if broken := repetition.fatal_failure(results):
        loop = loop.model_copy(update={"verdict": LoopVerdict.BROKEN})
    answer = repetition.accepted_answer(items, results, loop, specs)
    if not_taken := repetition.answer_stop(loop, answer, changed, config):
        loop = loop.model_copy(update={"verdict": LoopVerdict.GAVE_UP})
    blocks = profile.edit_form is EditForm.BLOCKS  # whose requests show no call, and say how to go on
    results_told = repetition.with_notices(items, results, {} if blocks else signatures, loop)
    exchange = settle_exchange(reply, items, results_told, profile.protocol, specs, root)
    update: dict[str, Any] = {"loop": loop, "messages": exchange}
    if lower := repetition.stepped_down(profile, loop):
        update["profile"] = lower
    if answer and not not_taken:
        update["answer"] = answer
    if cause := broken or not_taken or repetition.loop_stop(loop, config) or repetition.tries_stop(loop, results):
        update["stop"] = cause
    return update
