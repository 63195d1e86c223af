"""One prompt of an editor at work: its events as updates for the client, and the client's decisions and answers."""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast
from uuid import uuid4

from acp import helpers, schema
from acp.interfaces import Client

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import Asked, CallsRead, Event, Rescued, StepDone, ToolStarted
from mendgraph.graph.runs.run import Session
from mendgraph.graph.terminal.approval import Decisions
from mendgraph.graph.terminal.json_output import plain_values
from mendgraph.graph.terminal.outcome_lines import outcome_lines
from mendgraph.graph.terminal.output import Line
from mendgraph.graph.terminal.run_view import FinishedCall, Prose, RunView
from mendgraph.graph.terminal.visible_text import VisibleText, edits_in_blocks
from mendgraph.nodes import records
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.guard.approval_formats import (
    Action,
    ApprovalAnswer,
    AskedCall,
    CallDecision,
    is_about_limit,
    is_question,
)
from mendgraph.nodes.language.display import fenced, inline_code, result_words, target_of

_KINDS: Final[Mapping[records.Effect, schema.ToolKind]] = {
    records.Effect.READ: "read",
    records.Effect.WRITE: "edit",
    records.Effect.EXECUTE: "execute",
    records.Effect.NETWORK: "fetch",
}
"""The protocol's name for a tool with this effect; other calls are not shown: they write the plan, or answer."""
_PLAN_STATUS: Final[Mapping[records.PlanStatus, schema.PlanEntryStatus]] = {
    records.PlanStatus.PENDING: "pending",
    records.PlanStatus.IN_PROGRESS: "in_progress",
    records.PlanStatus.DONE: "completed",
}
_LASTING: Final = {
    "approve_prefix": "Always in this session",
    "approve_for_run": "Always in this session",
    "approve_always": "Always in this folder",
}
"""The beginning of the name of an option that allows more than the call."""

Update = Any  # one of the protocol's session updates


@dataclass
class Turn:
    """One prompt at work: its events as updates for the client, and the client's decisions on calls."""

    client: Client
    session: Session
    tools: Mapping[str, Tool]
    takes_forms: bool = False
    task: "asyncio.Task[Any] | None" = field(default_factory=asyncio.current_task)
    _stopped: str = ""
    _shown_calls: set[str] = field(default_factory=set)
    _plan: records.Plan = field(default_factory=records.Plan)
    _id_prefix: str = field(default_factory=lambda: uuid4().hex[:8])  # call ids are unique in one reply only

    def __post_init__(self) -> None:
        self._view = RunView(visible_text(self.tools, self.session.context))

    def stop(self, by: str) -> None:
        """End early; see `Session.stop`."""
        self._stopped = by
        self.session.stop(by)

    async def run(self, request: str, images: Sequence[bytes], notes: list[str]) -> records.Outcome:
        """Work on the request and its images with updates to the client; return the outcome."""
        while notes:
            await self._send([helpers.update_agent_thought_text(notes.pop(0))])

        approval = await self._follow(self.session.astream(request, images=images))
        while approval is not None:
            approval = await self._follow(self.session.aanswer(await self._decide(approval)))

        outcome = self.session.result().outcome
        ending = "\n\n".join(line.text.strip() for line in outcome_lines(outcome))
        for text in (outcome.answer, ending):
            await self._send(self._view_updates(self._view.answer(text)))

        return outcome

    async def _follow(self, events: AsyncGenerator[Event, None]) -> Asked | None:
        event: Event | None = None
        async with aclosing(events):
            async for event in events:
                if self._stopped:  # before the turn was open
                    self.session.stop(self._stopped)

                await self._send(self._updates(event))

        return event if isinstance(event, Asked) else None

    async def _send(self, updates: Iterable[Update]) -> None:
        """Send updates without secrets; if the client has gone, `end` stops the turn."""
        for update in updates:
            with suppress(ConnectionError):
                await self.client.session_update(self.session.thread_id, self._scrubbed(update))

    def _scrubbed(self, update: Update) -> Any:
        return type(update).model_validate(plain_values(update, self.session.scrub))

    def _updates(self, event: Event) -> Iterator[Update]:
        yield from self._view_updates(self._view.read(event))

        if isinstance(event, CallsRead | Rescued):
            for call in event.calls:
                if isinstance(call, records.ToolCall) and not call.implied and self.tools[call.tool].effect in _KINDS:
                    self._shown_calls.add(call.call_id)
                    yield helpers.start_tool_call(self._id(call), status="pending", **self._describe(call))
        elif isinstance(event, ToolStarted) and event.call.call_id in self._shown_calls:
            yield helpers.update_tool_call(self._id(event.call), status="in_progress")
        elif isinstance(event, StepDone) and event.plan is not None and event.plan != self._plan:
            self._plan = event.plan
            yield helpers.update_plan(
                helpers.plan_entry(step.title, status=_PLAN_STATUS[step.status]) for step in event.plan.steps
            )

    def _view_updates(self, items: Iterable[Prose | FinishedCall | Line]) -> Iterator[Update]:
        for item in items:
            if isinstance(item, Line):
                yield helpers.update_agent_thought_text(f"{item.text}\n")
            elif isinstance(item, Prose):
                gap = ""
                if item.begins_reply and not item.begins_turn:
                    gap = "\n\n"

                yield helpers.update_agent_message_text(gap + item.text)
            elif item.result.call_id in self._shown_calls:
                yield self._finished(item.result)

    def _finished(self, result: records.CallResult) -> Update:
        content = [_text(inline_code(result_words(result.result))), *map(self._diff, result.changes)]
        status: schema.ToolCallStatus = "failed"
        if result.result.ok:
            status = "completed"

        return helpers.update_tool_call(
            self._id(result), status=status, content=content, raw_output=result.result.as_map()
        )

    def _describe(self, call: records.ToolCall) -> dict[str, Any]:
        tool = self.tools[call.tool]
        title = call.tool
        target = target_of(call.arguments)
        if target:
            title = f"{call.tool} {inline_code(target)}"

        locations = []
        for name in tool.path_fields:
            path = call.arguments.get(name)
            if isinstance(path, str):
                locations.append(schema.ToolCallLocation(path=os.path.join(self.session.context.workspace, path)))

        return {"title": title, "kind": _KINDS[tool.effect], "locations": locations, "raw_input": call.arguments}

    def _diff(self, change: records.FileChange) -> Any:
        """The complete file before and after, or its diff as text if it was changed since."""
        texts = []
        for sha256 in (change.sha256_before, change.sha256_after):
            content: bytes | None = b""
            if sha256:
                content = self.session.file_content(change.path, sha256)
            if content is None:
                return _text(fenced(change.diff, "diff"))

            texts.append(content.decode(errors="replace"))

        path = os.path.join(self.session.context.workspace, change.path)
        old, new = texts
        if not change.sha256_before:
            return helpers.tool_diff_content(path, new)

        return helpers.tool_diff_content(path, new, old)

    def _id(self, call: records.ToolCall | records.CallResult) -> str:
        return f"{self._id_prefix}-{call.call_id}"

    # --- Approvals

    async def _decide(self, approval: Asked) -> ApprovalAnswer:
        decisions = Decisions()
        for call in cast("list[AskedCall]", approval.request["calls"]):
            if is_question(call):
                decision = await self._answer(call)
            elif is_about_limit(call):
                decision = await self._raise_limit(call)
            else:
                action = decisions.allowed_before(call) or await self._permission(call)
                decision = CallDecision(action=action)

            if not decisions.add(call, decision):
                break

        return decisions.answer()

    async def _answer(self, call: AskedCall) -> CallDecision:
        """The person's answer to the model: in their words if the client has forms, otherwise one of the choices."""
        if self.takes_forms:
            return await self._answer_in_form(call)

        choices = call["arguments"]["choices"]
        if not choices:
            return CallDecision(action="nobody")

        answer = await self._choose(call, {**{choice: choice for choice in choices}, "": "No answer"})
        if answer is None:
            return CallDecision(action="stop")

        return CallDecision(action="answer", answer=answer)

    async def _raise_limit(self, call: AskedCall) -> CallDecision:
        (value,) = call["arguments"].values()
        answer = await self._choose(call, {"approve": f"Raise to {value:,}", "": "Stop"})
        return CallDecision(action="approve" if answer else "stop")

    async def _choose(self, call: AskedCall, names: Mapping[str, str]) -> str | None:
        """Return the option that the person chooses for a question without a call; None if they stop the prompt."""
        options = []
        for option, name in names.items():
            kind: schema.PermissionOptionKind = "allow_once" if option else "reject_once"
            options.append(schema.PermissionOption(option_id=option, name=name, kind=kind))

        question = schema.ToolCallUpdate(tool_call_id=f"{self._id_prefix}-question", title=call["preview"]["text"])
        response = await self.client.request_permission(self.session.thread_id, self._scrubbed(question), options)
        if isinstance(response.outcome, schema.AllowedOutcome):
            return response.outcome.option_id

        return None

    async def _answer_in_form(self, call: AskedCall) -> CallDecision:
        answer = schema.ElicitationStringPropertySchema(type="string")
        form = schema.ElicitationSchema(properties={"answer": answer}, required=["answer"])
        mode = schema.ElicitationFormSessionMode(session_id=self.session.thread_id, requested_schema=form)
        response = await self.client.create_elicitation(self.session.scrub(call["preview"]["text"]), mode)
        if response.action == "cancel":
            return CallDecision(action="stop")

        content = getattr(response, "content", None) or {}
        return CallDecision(action="answer", answer=str(content.get("answer", "")))

    async def _permission(self, call: AskedCall) -> Action:
        """The person's decision on one call; a client that cancels a prompt answers its open questions itself.

        Raises:
            ConnectionError: the client has gone; the run goes on waiting for a person.
        """
        options = [schema.PermissionOption(option_id="approve", name="Allow", kind="allow_once")]
        for answer, allows in call["choices"].items():
            name = f"{_LASTING[answer]}: {allows}"
            options.append(schema.PermissionOption(option_id=answer, name=name, kind="allow_always"))

        options.append(schema.PermissionOption(option_id="reject", name="Reject", kind="reject_once"))
        item = cast("records.ToolCall", [*self._view.calls.values()][call["index"]])
        request = schema.ToolCallUpdate(
            tool_call_id=self._id(item),
            status="pending",
            content=[_text(_question_text(call))],
            **self._describe(item),
        )
        response = await self.client.request_permission(self.session.thread_id, self._scrubbed(request), options)
        if isinstance(response.outcome, schema.AllowedOutcome):
            return cast("Action", response.outcome.option_id)  # an option that was not offered is a rejection

        return "stop"


# --- Texts for the client


def _question_text(call: AskedCall) -> str:
    """Return the rule that asks for a person, and the preview of the call."""
    preview = call["preview"]
    rule = call["rule"]
    if call.get("why"):
        rule += f": {inline_code(call['why'])}"

    language = "text"
    if preview["kind"] == "diff":
        language = "diff"

    text = f"{rule}\n\n{fenced(preview['text'], language)}"
    if preview["truncated"]:
        text += "\n\nNot all of it is shown here."

    return text


def visible_text(tools: Iterable[str], context: AgentContext) -> VisibleText:
    """Return the filter for the prose of a model with these tools."""
    return VisibleText(frozenset(tools), blocks=edits_in_blocks(context, os.environ))


def _text(text: str) -> Any:
    return helpers.tool_content(helpers.text_block(text))
