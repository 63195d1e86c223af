"""What reading a reply needs to know of its run: the tools, what the model was shown and told, and the turn so far."""

import json
from functools import partial

from mendgraph.graph.machine.run_records import is_resuming
from mendgraph.graph.machine.state import AgentState
from mendgraph.graph.machine.tool_runtime import ToolRuntime
from mendgraph.nodes.call_model.prompts.block_prompt import TurnView, view_turn
from mendgraph.nodes.heal.healing import is_unfounded
from mendgraph.nodes.language.dialects import recognised
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.parse.answers import TurnFacts, answer_problems
from mendgraph.nodes.parse.reading import CHECKS_TOOL, Reader, check_call, completed
from mendgraph.nodes.records import CHANGING, CallError, EditForm, ToolCall


def reply_reader(tools: ToolRuntime, state: AgentState, *, told: bool = True) -> Reader:
    """How replies of this turn are read; without what it was `told`, for a reply that is read a second time."""
    context, profile, messages = state["context"], state["profile"], state["messages"]
    blocks = profile.edit_form is EditForm.BLOCKS
    view = view_turn(messages) if blocks else TurnView()
    said = (line for each in state.get("corrections") or [] for line in each.prompt.splitlines())
    sentences = (*view.failures, *view.evidence, *said) if told else ()
    return Reader(
        profile=profile,
        known_tools=tools.registry.names(),
        validate=tools.registry.validate,
        check_answer=partial(answer_problems, schema=context.answer_schema),
        writing_tools=frozenset(spec.name for spec in tools.specs.values() if spec.effect in CHANGING),
        shown_files=tuple(view.files),
        told=sentences if blocks else (),
        turn=_facts(tools, state)._replace(faulty=bool(view.evidence)),
        offered=frozenset(spec.name for spec in tools.offered(context, profile)),
    )


def rescue(reader: Reader, text: str, step: int) -> list[ToolCall | CallError]:
    """Read a reply in another dialect as it is, its arguments checked like any others."""
    checked = [
        check_call(call, f"call_{step}_{index}", json.dumps(call.args, ensure_ascii=False), reader)
        for index, call in enumerate(recognised(text, reader.known_tools))
    ]
    return completed(checked, "", step, reader)


def _facts(tools: ToolRuntime, state: AgentState) -> TurnFacts:
    context, messages = state["context"], state["messages"]
    checking = CHECKS_TOOL in tools.specs
    request = next((message.text for message in reversed(messages) if is_request(message)), "")
    return TurnFacts(
        request=request,
        changed=tuple(dict.fromkeys(change.path for change in state.get("changes") or [])),
        hindered=lambda: context.mode == "read-only" or is_resuming(request) or view_turn(messages).refused,
        met=sum(is_unfounded(attempt.errors) for attempt in state.get("healing_attempts") or []),
        insistent=state["profile"].small,
        checked=checking and context.evidence,
        configured=checking and bool(context.checks),
    )
