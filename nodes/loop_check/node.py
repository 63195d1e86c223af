"""In: the calls of a step and their results. Out: the loop record, and the step settled into the history. No effect."""

from collections.abc import Callable, Mapping
from typing import Any

from mendgraph.nodes.language.history import settle_exchange
from mendgraph.nodes.loop_check import repetition, step_results
from mendgraph.nodes.records import EditForm, LoopVerdict, ModelReply, ToolCall, ToolSpec, net_changes


def check(
    state: repetition.LoopState,
    config: repetition.LoopConfig,
    signature_of: Callable[[ToolCall, ToolSpec], str],
    specs: Mapping[str, ToolSpec],
    root: str = "",
    *,
    in_blocks: bool = False,
    fallback_form: EditForm | None = None,
) -> dict[str, Any]:
    """Judge whether this step was progress. Calls that are malformed or of unknown tools have no signature.

    `in_blocks`: the turn uses the block form, whose requests show no calls and name failures themselves.
    `fallback_form` is the edit form to switch to if edits keep missing.
    """
    items = state.get("items", [])
    results = state.get("results", [])
    reply = state.get("reply") or ModelReply()
    profile = state["profile"]
    changed_paths = tuple(net_changes(state.get("changes") or []))
    loop, signatures = repetition.record_step(state, config, signature_of, specs, root)

    if not reply.preloaded:
        loop = step_results.count_tries(loop, items, results, specs, config.max_failed_tries, in_blocks=in_blocks)

    loop = step_results.with_account(loop, state, specs, changed_paths)
    failure = step_results.fatal_failure(results)
    if failure:
        loop = loop.model_copy(update={"verdict": LoopVerdict.BROKEN})

    answer = step_results.accepted_answer(items, results, loop, specs)
    answer_refused = step_results.answer_stop(loop, answer, changed_paths, config)
    if answer_refused:
        loop = loop.model_copy(update={"verdict": LoopVerdict.GAVE_UP})

    noted_results = step_results.with_notices(items, results, {} if in_blocks else signatures, loop)
    exchange = settle_exchange(reply, items, noted_results, profile.protocol, specs, root)
    update: dict[str, Any] = {"loop": loop, "messages": exchange}

    if fallback_form and step_results.keeps_missing(loop):
        update["profile"] = profile.model_copy(update={"edit_form": fallback_form})

    if answer and not answer_refused:
        update["answer"] = answer

    cause = failure or answer_refused or repetition.loop_stop(loop, config) or step_results.tries_stop(loop, results)
    return {**update, "stop": cause} if cause else update
