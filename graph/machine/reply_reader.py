"""How the replies of a turn are read, and what the audit log says of unusable ones.

A reply is read by the turn's tools and its profile, and for a small model by what happened in the turn.
"""

from collections.abc import Sequence
from functools import partial

from mendgraph.graph.machine.begin_turn import TurnServices
from mendgraph.graph.machine.run_records import is_resuming
from mendgraph.graph.machine.small_models import answer_judge, block_form
from mendgraph.graph.machine.state import AgentState, Update
from mendgraph.graph.machine.turn_tools import NETWORK_TOOL
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.heal.healing import is_unfounded
from mendgraph.nodes.language.command_lines import COMMAND_TOOL, SHELL_TOOL
from mendgraph.nodes.language.history import last_request, results_in, texts_in
from mendgraph.nodes.parse.answers import TurnFacts, answer_problems
from mendgraph.nodes.parse.reading import CHECKS_TOOL, Reader
from mendgraph.nodes.records import CallError, Effect, LoopRecord, Reading, ToolCall, net_changes


def reply_reader(turn: TurnServices, state: AgentState) -> Reader:
    """Return the reader of this turn's replies."""
    context = turn.context
    machine = turn.tools.machine
    profile = state["profile"]
    messages = state["messages"]
    attempts = state.get("healing_attempts") or []
    offered = turn.call_plan(state).tools
    facts = TurnFacts(
        changed=tuple(net_changes(state.get("changes") or [])),
        change_required=context.require_changes,
        checked=CHECKS_TOOL in machine.specs
        and bool(context.evidence or context.checks or context.require_checks or context.diagnostics),
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
        paths_of=turn.tools.paths_of,
        schema_of=machine.schema_of,
        texts=lambda: texts_in(results_in(messages)),
        looking=machine.tools_with_effect(Effect.NONE, Effect.READ),
        blocks=None if blocks is None else blocks.reader(messages, len(attempts)),
    )

    if not profile.small:
        return reader

    corrections = sum(is_unfounded(attempt.errors) for attempt in attempts)
    settled = facts.changed or corrections >= context.healing(profile).max_claims
    neutral = {COMMAND_TOOL, SHELL_TOOL, NETWORK_TOOL}
    judge = answer_judge(
        profile,
        messages,
        settled=bool(settled) or is_resuming(last_request(messages)),
        acting_tools=machine.tools_with_effect(Effect.EXECUTE, Effect.NETWORK) - neutral,
        read_only=context.is_read_only,
    )
    return reader._replace(judge_answer=judge)


def foreign_formats(items: Sequence[ToolCall | CallError]) -> list[str]:
    """Return the foreign call formats of these calls, without repetition."""
    return sorted({item.format for item in items if isinstance(item, ToolCall) and item.format})


# --- What is logged of repairs; each function returns how many there were, by kind


def log_parse(log: RunLog, state: AgentState, update: Update) -> dict[str, int]:
    """Log that a usable reply ends the open corrections."""
    corrections = state.get("corrections") or []
    if not corrections or update["reading"] is Reading.MALFORMED:
        return {}

    log.healed(state.get("step", 0), len(corrections))
    return {"healed": 1}


def log_heal(log: RunLog, state: AgentState, update: Update) -> dict[str, int]:
    """Log a reply that is read as it is, or asked for again. The terminal node logs a run that ends because of it."""
    step = state.get("step", 0)
    corrections = state.get("corrections") or []

    if "reading" in update:
        log.rescued(step, foreign_formats(state["items"]))
        if corrections:
            log.healed(step, len(corrections))
        return {"rescued": 1, "healed": int(bool(corrections))}

    if not update.get("corrections"):
        return {}

    log.asked_again(step, state["errors"], len(update["corrections"]))
    return {"asked_again": 1}


def log_loop_check(log: RunLog, state: AgentState, update: Update) -> dict[str, int]:
    """Log the actions that were overridden in this step, or called again in spite of that."""
    repeats_before = {
        override.signature: override.repeats for override in (state.get("loop") or LoopRecord()).overrides
    }
    repeated = 0
    overridden = 0

    for override in update["loop"].overrides:
        before = repeats_before.get(override.signature)
        if before == override.repeats:
            continue

        log.repeated(state.get("step", 0), override, new=before is None)
        repeated = 1
        overridden += before is None

    return {"loops": repeated, "overrides": overridden}
