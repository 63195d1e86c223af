"""How the replies of a turn are read: by its tools, its profile, and for a small model by what happened in it."""

from collections.abc import Iterable, Sequence
from functools import partial

from mendgraph.graph.machine.permits import COMMAND_TOOL, NETWORK_TOOL
from mendgraph.graph.machine.run_records import is_resuming
from mendgraph.graph.machine.small_models import answer_judge, block_form
from mendgraph.graph.machine.state import AgentState
from mendgraph.graph.machine.tool_runtime import ToolRuntime
from mendgraph.nodes.heal.healing import is_unfounded
from mendgraph.nodes.language.history import last_request, results_in, texts_in
from mendgraph.nodes.parse.answers import TurnFacts, answer_problems
from mendgraph.nodes.parse.reading import CHECKS_TOOL, Reader
from mendgraph.nodes.records import Effect, ToolSpec, net_changes


def reply_reader(tools: ToolRuntime, state: AgentState, offered: Sequence[ToolSpec] | None = None) -> Reader:
    """How replies of this turn are read; `offered` are the tools that the model is told of, where they are prepared."""
    context = state["context"]
    profile = state["profile"]
    messages = state["messages"]
    attempts = state.get("healing_attempts") or []
    specs = tools.specs
    turn = TurnFacts(
        changed=tuple(net_changes(state.get("changes") or [])),
        change_required=context.require_changes,
        checked=CHECKS_TOOL in specs and bool(context.evidence or context.checks or context.require_checks),
    )
    blocks = block_form(profile)
    reader = Reader(
        profile=profile,
        known_tools=tools.registry.names(),
        validate=tools.registry.validate,
        check_answer=partial(answer_problems, schema=context.response_format, built=tools.response_format),
        writing_tools=_tools_of(specs.values(), Effect.WRITE),
        turn=turn,
        offered=frozenset(spec.name for spec in (offered or tools.offered(context, profile))),
        paths_of=tools.paths_of,
        schema_of=lambda name: specs[name].parameters if name in specs else {},
        texts=lambda: texts_in(results_in(messages)),
        looking=_tools_of(specs.values(), Effect.NONE, Effect.READ),
        blocks=None if blocks is None else blocks.reader(messages, len(attempts)),
    )

    if not profile.small:
        return reader

    corrections = sum(is_unfounded(attempt.errors) for attempt in attempts)
    settled = turn.changed or corrections >= context.healing(profile).max_claims
    judge = answer_judge(
        profile,
        messages,
        settled=bool(settled) or is_resuming(last_request(messages)),
        acting_tools=_tools_of(specs.values(), Effect.EXECUTE, Effect.NETWORK) - {COMMAND_TOOL, NETWORK_TOOL},
        read_only=context.mode == "read-only",
    )
    return reader._replace(judge_answer=judge)


def _tools_of(specs: Iterable[ToolSpec], *effects: Effect) -> frozenset[str]:
    return frozenset(spec.name for spec in specs if spec.effect in effects)
