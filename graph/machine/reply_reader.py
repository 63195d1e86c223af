"""How the replies of a turn are read: by its tools, its profile, and for a small model by what happened in it."""

from collections.abc import Callable, Sequence
from functools import partial

from mendgraph.graph.machine.permits import COMMAND_TOOL, NETWORK_TOOL
from mendgraph.graph.machine.run_records import is_resuming
from mendgraph.graph.machine.state import AgentState
from mendgraph.graph.machine.tool_runtime import ToolRuntime
from mendgraph.nodes.call_model.prompts.block_prompt import shown_files
from mendgraph.nodes.call_model.prompts.turn_view import TurnView, said_since, used_tools, view_turn
from mendgraph.nodes.heal.healing import is_unfounded
from mendgraph.nodes.language.history import is_request, last_request, results_in, texts_in
from mendgraph.nodes.parse.answers import TurnFacts, answer_problems
from mendgraph.nodes.parse.reading import CHECKS_TOOL, Reader
from mendgraph.nodes.records import EditForm, Effect, ExtractionError, ToolSpec, net_changes


def reply_reader(tools: ToolRuntime, state: AgentState, offered: Sequence[ToolSpec] | None = None) -> Reader:
    """How replies of this turn are read."""
    context = state["context"]
    profile = state["profile"]
    messages = state["messages"]

    if profile.edit_form is EditForm.BLOCKS:
        view = view_turn(messages)
    else:
        view = TurnView()

    attempts = state.get("healing_attempts") or []
    request = last_request(messages)
    turn = TurnFacts(
        request=request,
        changed=tuple(net_changes(state.get("changes") or [])),
        change_required=context.require_changes,
        checked=CHECKS_TOOL in tools.specs and bool(context.evidence or context.checks or context.require_checks),
    )
    reader = Reader(
        profile=profile,
        known_tools=tools.registry.names(),
        validate=tools.registry.validate,
        check_answer=partial(answer_problems, schema=context.response_format, built=tools.response_format),
        writing_tools=frozenset(spec.name for spec in tools.specs.values() if spec.effect is Effect.WRITE),
        shown_files=shown_files(request, view, view.failed_steps + len(attempts)),
        turn=turn,
        offered=frozenset(spec.name for spec in (offered or tools.offered(context, profile))),
        paths_of=tools.paths_of,
        schema_of=lambda name: tools.specs[name].parameters if name in tools.specs else {},
        texts=lambda: texts_in(results_in(messages)),
        looking=frozenset(spec.name for spec in tools.specs.values() if spec.effect in {Effect.NONE, Effect.READ}),
    )

    if profile.small:
        return reader._replace(judge_answer=_judge_of(tools, state, turn, view))

    return reader


def _judge_of(
    tools: ToolRuntime, state: AgentState, turn: TurnFacts, view: TurnView
) -> Callable[[str], ExtractionError | None]:
    """What holds the answers of a small model against what happened in the turn."""
    from mendgraph.nodes.small_model.answers import AnswerFacts, answer_error

    context = state["context"]
    messages = state["messages"]
    attempts = state.get("healing_attempts") or []
    acting = {spec.name for spec in tools.specs.values() if spec.effect in {Effect.EXECUTE, Effect.NETWORK}}
    acting -= {COMMAND_TOOL, NETWORK_TOOL}
    # Others may have done what a request to go on asks for, and tools of the user's may have done it elsewhere.
    elsewhere = is_resuming(turn.request) or said_since(messages) or used_tools(messages) & acting
    claims = sum(is_unfounded(attempt.errors) for attempt in attempts)
    facts = AnswerFacts(
        request=turn.request,
        settled=bool(turn.changed or elsewhere) or claims >= context.healing(state["profile"]).max_claims,
        faulty=bool(view.evidence),
        hindered=context.mode == "read-only" or view_turn(messages).refused,
        first=sum(map(is_request, messages)) == 1,
    )

    return partial(answer_error, facts=facts)
