"""How the replies of a turn are read, and what is counted and logged of those that had to be repaired.

A reply is read by the turn's tools and its profile, and for a small model by what happened in the turn.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mendgraph.graph.machine.run_records import is_resuming
from mendgraph.graph.machine.small_models import answer_judge, block_form
from mendgraph.graph.machine.state import AgentState, Update
from mendgraph.graph.machine.turn_tools import COMMAND_TOOL, NETWORK_TOOL, TurnTools
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.heal.healing import is_unfounded
from mendgraph.nodes.language.history import last_request, results_in, texts_in
from mendgraph.nodes.parse.answers import TurnFacts, answer_problems
from mendgraph.nodes.parse.reading import CHECKS_TOOL, Reader
from mendgraph.nodes.records import CallError, Effect, LoopRecord, Reading, ToolCall, ToolSpec, net_changes


def reply_reader(turn: TurnTools, state: AgentState, offered: Sequence[ToolSpec] | None = None) -> Reader:
    """How replies of this turn are read. `offered` are the tools that its model was told of, where that is known."""
    context = turn.context
    machine = turn.machine
    profile = state["profile"]
    messages = state["messages"]
    attempts = state.get("healing_attempts") or []

    if offered is None:
        offered = turn.offered(profile)

    facts = TurnFacts(
        changed=tuple(net_changes(state.get("changes") or [])),
        change_required=context.require_changes,
        checked=CHECKS_TOOL in machine.specs and bool(context.evidence or context.checks or context.require_checks),
    )
    blocks = block_form(profile)
    reader = Reader(
        profile=profile,
        known_tools=machine.registry.names(),
        validate=machine.registry.validate,
        check_answer=partial(answer_problems, schema=context.response_format, built=machine.response_format),
        writing_tools=machine.tools_with_effect(Effect.WRITE),
        turn=facts,
        offered=frozenset(spec.name for spec in offered),
        paths_of=turn.paths_of,
        schema_of=machine.schema_of,
        texts=lambda: texts_in(results_in(messages)),
        looking=machine.tools_with_effect(Effect.NONE, Effect.READ),
        blocks=None if blocks is None else blocks.reader(messages, len(attempts)),
    )

    if not profile.small:
        return reader

    corrections = sum(is_unfounded(attempt.errors) for attempt in attempts)
    settled = facts.changed or corrections >= context.healing(profile).max_claims
    judge = answer_judge(
        profile,
        messages,
        settled=bool(settled) or is_resuming(last_request(messages)),
        acting_tools=machine.tools_with_effect(Effect.EXECUTE, Effect.NETWORK) - {COMMAND_TOOL, NETWORK_TOOL},
        read_only=context.mode == "read-only",
    )
    return reader._replace(judge_answer=judge)


# --- Repairs: what is counted and logged of them

Counts = dict[str, int]
OpenLog = Callable[[], RunLog]


def count_parse(open_log: OpenLog, state: AgentState, update: Update) -> Counts:
    """A reply that can be used ends the open corrections."""
    corrections = state.get("corrections") or []
    if not corrections or update["reading"] is Reading.MALFORMED:
        return {}

    open_log().healed(state.get("step", 0), len(corrections))
    return {"healed": 1}


def foreign_formats(items: Sequence[ToolCall | CallError]) -> list[str]:
    """The foreign call formats of these calls, without repetition."""
    return sorted({item.format for item in items if isinstance(item, ToolCall) and item.format})


def count_heal(open_log: OpenLog, state: AgentState, update: Update) -> Counts:
    """Count a reply that is read as it is, or asked for again. The terminal node logs a run that ends because of it."""
    step = state.get("step", 0)
    corrections = state.get("corrections") or []

    if "reading" in update:
        log = open_log()
        log.rescued(step, foreign_formats(state["items"]))

        if corrections:
            log.healed(step, len(corrections))

        return {"rescued": 1, "healed": int(bool(corrections))}

    if "corrections" not in update:
        return {}

    open_log().asked_again(step, state["errors"], len(update["corrections"]))
    return {"asked_again": 1}


def count_tools(update: Update, specs: Mapping[str, ToolSpec]) -> Counts:
    """Results of tools that read, which show a part of what there is."""
    read = [result for result in update["results"] if result.tool in specs and specs[result.tool].effect is Effect.READ]
    return {"truncated": sum(_is_truncated(result.result.data) for result in read)}


def count_loop_check(open_log: OpenLog, state: AgentState, update: Update) -> Counts:
    """Actions that were overridden in this step, or called again in spite of that."""
    before = {override.signature: override.repeats for override in (state.get("loop") or LoopRecord()).overrides}
    repeated = [override for override in update["loop"].overrides if before.get(override.signature) != override.repeats]
    for override in repeated:
        open_log().repeated(state.get("step", 0), override, new=override.signature not in before)

    overrides = sum(override.signature not in before for override in repeated)
    return {"loops": int(bool(repeated)), "overrides": overrides}


def _is_truncated(data: Mapping[str, Any]) -> bool:
    return bool(data.get("has_more") or data.get("clipped"))
