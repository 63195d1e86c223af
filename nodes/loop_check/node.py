"""In: the calls of a step and their results. Out: the loop record, and the step settled into the history. No effect."""

from collections.abc import Callable, Mapping
from typing import Any

from mendgraph.nodes.language.history import settle_exchange
from mendgraph.nodes.loop_check import repetition
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

    `in_blocks` says that the turn is in the block form, whose requests show no calls and name what failed themselves.
    `fallback_form` is the form to go on in where edits keep missing, None to stay in this one.
    """
    items = state.get("items", [])
    results = state.get("results", [])
    reply = state.get("reply") or ModelReply()
    profile = state["profile"]
    changed_paths = tuple(net_changes(state.get("changes") or []))
    loop, signatures = repetition.judge_step(state, config, signature_of, specs, root)

    if not reply.preloaded:
        loop = repetition.count_tries(loop, items, results, specs, config.max_failed_tries, in_blocks=in_blocks)

    loop = repetition.with_account(loop, state, specs, changed_paths)
    failure = repetition.fatal_failure(results)
    if failure:
        loop = loop.model_copy(update={"verdict": LoopVerdict.BROKEN})

    answer = repetition.accepted_answer(items, results, loop, specs)
    answer_refused = repetition.answer_stop(loop, answer, changed_paths, config)
    if answer_refused:
        loop = loop.model_copy(update={"verdict": LoopVerdict.GAVE_UP})

    noted_results = repetition.with_notices(items, results, {} if in_blocks else signatures, loop)
    exchange = settle_exchange(reply, items, noted_results, profile.protocol, specs, root)
    update: dict[str, Any] = {"loop": loop, "messages": exchange}

    if fallback_form and repetition.keeps_missing(loop):
        update["profile"] = profile.model_copy(update={"edit_form": fallback_form})

    if answer and not answer_refused:
        update["answer"] = answer

    cause = failure or answer_refused or repetition.loop_stop(loop, config) or repetition.tries_stop(loop, results)
    return {**update, "stop": cause} if cause else update
