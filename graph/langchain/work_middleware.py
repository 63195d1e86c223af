"""What guard, redaction and checks do for mendgraph's own agent, as middleware for `create_agent` and deepagents.

A subagent of deepagents does not take over the middleware of the agent that calls it: give it to each.
"""

import asyncio
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired

from langchain.agents.middleware import types
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.types import Command

from mendgraph.graph.langchain.run_middleware import (
    AsyncToolHandler,
    ExtendedResponse,
    ModelCallMiddleware,
    ModelRequest,
    RefusingMiddleware,
    ReplyRecorder,
    RunBlocking,
    Send,
    ToolAnswer,
    ToolHandler,
    is_reading,
)
from mendgraph.nodes.begin_turn.history import HIDDEN_NAME, scrub_requests
from mendgraph.nodes.execute_tools.commands import command_changes as watch
from mendgraph.nodes.execute_tools.engine import Engine
from mendgraph.nodes.execute_tools.evidence.checks import CheckRules, open_checks
from mendgraph.nodes.execute_tools.plain_values import in_words, json_like
from mendgraph.nodes.execute_tools.registry import ActionRegistry, ToolContext
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.execute_tools.tools.run_command import run_checks
from mendgraph.nodes.execute_tools.tools.saving import file_changes
from mendgraph.nodes.execute_tools.trace import TraceSink
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, is_readable_template
from mendgraph.nodes.guard.policy import Rules, is_hidden, judge_content, judge_path, workspace_relative
from mendgraph.nodes.language.display import NO_FILE_CHANGED
from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, is_request
from mendgraph.nodes.language.provider_state import without_secrets
from mendgraph.nodes.loop_check.repetition import MAX_FAILED_TRIES
from mendgraph.nodes.loop_check.step_results import verification
from mendgraph.nodes.parse.answers import MOST_CHECKED
from mendgraph.nodes.records import JsonMap, ToolCall, ToolError, ToolErrorCode, Verification
from mendgraph.nodes.workspace.files.deadline import monotonic_s
from mendgraph.nodes.workspace.files.sandbox import JudgedPaths, check_workspace
from mendgraph.nodes.workspace.files.workspace import Workspace
from mendgraph.nodes.workspace.sandboxes.backends import AUTO

_PATH_ARGUMENT: Final = re.compile(
    r"(?i:.*paths?|(?:.*[_-])?(?:file|file_?name|dir|directory|folder)s?|cwd|root|glob|source|src|dest(ination)?|dst|target)"
)


class FileRulesMiddleware(RefusingMiddleware):
    """Refuses tool calls that name protected files: `.env`, private keys, `/etc`, `.git`, ...

    All arguments with names like paths are checked, at any depth, and lists of them: `path`, `file_path`, `filePath`,
    `paths`, `filename`, `directory`, `src`, `target`, `glob`, and so on. Each path is checked as written and with links
    resolved, from the root of the file system and from `root`. Your own rule receives the resolved absolute path. A
    refused tool is not run: a `ToolMessage` with the status "error" names the rule. Files that a tool opens without
    naming them in an argument are not seen, as in a shell command or a search through a folder.
    """

    def __init__(
        self, rules: Rules = DEFAULT_GUARDRAIL_RULES, *, path_arguments: Iterable[str] = (), root: str = "."
    ) -> None:
        """`path_arguments` are more names of arguments that hold paths. `root` is the folder that the tools work in."""
        super().__init__()
        self._rules = rules
        self._root = root
        self._path_arguments = frozenset(path_arguments)

    def refusal(self, request: types.ToolCallRequest) -> ToolMessage | None:
        """Refuse a call that names a file which a rule protects."""
        call = request.tool_call
        reads = is_reading(call["name"])

        for path in self._paths(call["args"], named=False):
            for name in self._names(path):
                for_write = not (reads and is_readable_template(Path(name)))
                error = judge_path(name, for_write, self._rules, os.path.realpath(self._root))
                if error is not None:
                    return ToolMessage(error.message, name=call["name"], tool_call_id=call["id"] or "", status="error")

        return None

    def _paths(self, value: Any, *, named: bool) -> Iterator[str]:
        """Yield the texts in `value` under names of paths; all texts if the name of the value is one (`named`)."""
        if isinstance(value, dict):
            if named:
                yield from map(str, value)

            for name, item in value.items():
                ours = name in self._path_arguments or _PATH_ARGUMENT.fullmatch(str(name)) is not None
                yield from self._paths(item, named=ours)
        elif isinstance(value, list | tuple):
            for item in value:
                yield from self._paths(item, named=named)
        elif named and isinstance(value, str):
            yield value

    def _names(self, path: str) -> set[str]:
        """Return the path as written and what it resolves to, relative to the root if it lies below."""
        root = os.path.realpath(self._root)
        places = [path]
        with suppress(ValueError):  # no file has such a name
            places += map(os.path.realpath, (os.path.join(root, path), os.path.join(root, path.lstrip("/"))))

        return {workspace_relative(place, root) or place for place in places}


_BESIDE_CONTENT: Final = ("tool_calls", "invalid_tool_calls", "additional_kwargs", "response_metadata")
"""Fields of messages that hold words, of which an endpoint is sent some."""


class RedactionMiddleware(types.AgentMiddleware[types.AgentState[Any], Any, Any]):
    """Removes secrets from user messages and tool results before the model sees them.

    Secrets are the values of `secrets`, secret values of environment variables, and texts that look like a key or a
    password. `[redacted secret]` replaces them. Results and their artifacts are cleaned before they reach the state,
    user messages before the first model call. LangGraph stores the input before any middleware runs, so pass
    `mendgraph.serializer()` to the checkpointer. Text of the model is not changed.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` are values that are never shown; the environment is read now."""
        super().__init__()
        self._redactor = Redactor((*secrets, *known_values(os.environ)))

    def before_model(self, state: types.AgentState[Any], runtime: Any) -> dict[str, Any]:  # noqa: ARG002 - LangChain's
        """Put clean messages of people in the place of those that hold a secret."""
        clean = scrub_requests(state["messages"], self._redactor.text)
        return {"messages": [new for new, old in zip(clean, state["messages"], strict=True) if new is not old]}

    def wrap_tool_call(self, request: types.ToolCallRequest, handler: ToolHandler) -> ToolAnswer:
        """Run the tool, and clean its result."""
        clean: ToolAnswer = self.clean(handler(request))
        return clean

    async def awrap_tool_call(self, request: types.ToolCallRequest, handler: AsyncToolHandler) -> ToolAnswer:
        """Run the tool, and clean its result."""
        clean: ToolAnswer = self.clean(await handler(request))
        return clean

    def clean(self, answer: Any) -> Any:
        """Return the result of a tool without secrets: a message, a command, or a list of them."""
        if isinstance(answer, list | tuple):
            return type(answer)(map(self.clean, answer))
        if isinstance(answer, Command):
            return self._clean_command(answer)
        if isinstance(answer, BaseMessage):
            return self._clean_message(answer)
        if isinstance(answer, dict | str):
            return self._redactor.content(answer)

        return answer

    def _clean_command(self, command: Command[Any]) -> Command[Any]:
        update = command.update
        if isinstance(update, dict) and "messages" in update:
            update = {**update, "messages": self.clean(update["messages"])}
        elif isinstance(update, list | tuple):
            update = [(key, self.clean(value) if key == "messages" else value) for key, value in update]

        return replace(command, update=update)

    def _clean_message(self, message: BaseMessage) -> BaseMessage:
        is_text = isinstance(message.content, str)
        blocks = [message.content] if is_text else message.content
        blocks = without_secrets({"content": blocks}, self._redactor.text)["content"]
        clean: dict[str, Any] = {"content": blocks[0] if is_text else blocks}

        if message.name and self._redactor.text(message.name) != message.name:
            clean["name"] = HIDDEN_NAME

        for name in _BESIDE_CONTENT:
            value = getattr(message, name, None)
            if value:
                clean[name] = self._redactor.content(value)

        if isinstance(message, ToolMessage):
            artifact = json_like(message.artifact, other=in_words)
            safe = self._redactor.content(artifact)
            if safe != artifact:
                clean["artifact"] = safe

        return message.model_copy(update=clean)


_MOST_TURNS: Final = 64  # turns at once whose files at their beginning are remembered, up to 50 MB of texts each
_LIMITS: Final = watch.WatchLimits(before_s=10.0, after_s=10.0)
_FAILED: Final = "The files that you changed do not pass their checks:\n{reason}\nFix them, then answer again."
_FORGOTTEN: Final = watch.Unwatched("the files at the beginning of this turn are not known to this process")


class EvidenceState(types.AgentState[Any]):
    """`verified` says what the checks of the turn's changes came to: a `Verification` as JSON."""

    verified: NotRequired[Annotated[JsonMap, types.OmitFromInput]]
    evidence: NotRequired[Annotated[JsonMap, types.PrivateStateAttr]]


class EvidenceMiddleware(ModelCallMiddleware):
    """Runs checks of the changed files when an agent ends, and sends a failure back to the model.

    The workspace is compared with its state at the beginning of the turn, so it works with any tools. For changed files
    it runs examples in docstrings and the request, the project's tests, and `checks`, in a read-only sandbox. Failures
    from before the turn do not count. The fourth failure ends the agent. If a limit, a guardrail, a filter or other
    middleware ends the agent, it is not sent back.

    The state's `verified` has the fields of `Outcome.verified`. `kind` is "passed" (`ran` names the checks, `lines` the
    changed lines that they executed), "indistinct" (only tests of the turn pass, and they passed before too),
    "contradicted" (`reason` says what failed) or "none" (`reason` says why nothing was run).
    """

    state_schema = EvidenceState

    def __init__(
        self, workspace: str, *, checks: Sequence[str] = (), timeout_s: float = 60.0, sandbox: str = AUTO
    ) -> None:
        """`checks` are commands that must pass, such as "pytest -q"; all checks together take `timeout_s` seconds.

        `sandbox` is a value of the setting of that name.

        Raises ValueError: the workspace is no folder to work in, or a check is no command line.
        """
        super().__init__()
        rules = DEFAULT_GUARDRAIL_RULES
        judge = partial(judge_path, rules=rules)
        contents = partial(judge_content, rules=rules)
        root = check_workspace(workspace)
        runner = None

        if isinstance(root, str):
            check_rules = CheckRules(tuple(checks), timeout_s, sandbox=sandbox)
            runner = open_checks(root, check_rules, partial(is_hidden, rules=rules), contents)

        for problem in (root, runner):
            if isinstance(problem, ToolError) and problem.code is not ToolErrorCode.UNAVAILABLE:
                raise ValueError(problem.message)

        self._context = ToolContext(Workspace(str(root), judge, contents=contents), timeout_s=timeout_s, checks=runner)
        self._engine = Engine(ActionRegistry([run_checks]), TraceSink(), redactor=Redactor(known_values(os.environ)))
        self._paths = JudgedPaths(str(root), judge, contents=contents)
        self._index = watch.FileIndex()
        self._before: OrderedDict[str, watch.Snapshot | watch.Unwatched] = OrderedDict()

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:  # noqa: ARG002 - LangChain's
        """Take a snapshot of the workspace."""
        turn = secrets.token_hex(8)
        with self._index.lock:
            self._before[turn] = watch.snapshot(self._paths, self._index, _LIMITS, monotonic_s() + _LIMITS.before_s)
            if len(self._before) > _MOST_TURNS:
                self._before.popitem(last=False)

        return {"evidence": {"turn": turn, "tries": 0, "request": _request_id(state["messages"]), "answer": ""}}

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        """Take a snapshot of the workspace, in a thread."""
        return await asyncio.to_thread(self.before_agent, state, runtime)

    async def answer(
        self,
        request: ModelRequest,
        send: Send,
        recorder: ReplyRecorder,
        run_blocking: RunBlocking,  # noqa: ARG002
    ) -> ExtendedResponse:
        """Remember what the model itself has answered."""
        response = await send(request)
        state: Any = request.state
        turn = state.get("evidence")

        if turn is None:
            return ExtendedResponse(response)

        answer = ""
        if recorder.is_reply(response):
            answer = _digest(response.result[0])

        return ExtendedResponse(response, Command(update={"evidence": {**turn, "answer": answer}}))

    @types.hook_config(can_jump_to=["model"])
    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any]:  # noqa: ARG002 - LangChain's
        """Judge the changes: the record for the state, and what is wrong, for the model."""
        turn = state.get("evidence")
        messages = state["messages"]
        if turn is None or not _is_turn(turn, messages):
            return {"verified": Verification(reason=_FORGOTTEN.reason).model_dump(mode="json")}

        compared = watch.changes_since(self._paths, _LIMITS, self._before.get(turn["turn"], _FORGOTTEN))
        verified = Verification(reason=NO_FILE_CHANGED)

        if isinstance(compared, watch.Unwatched):
            verified = Verification(reason=compared.reason)
        elif compared.changes.files:
            verified = self._verified(compared.changes.files)

        update: dict[str, Any] = {"verified": verified.model_dump(mode="json")}

        tries = turn["tries"] + 1
        if verified.kind == "contradicted" and tries < MAX_FAILED_TRIES and _is_answer_of_model(turn, state):
            failure = HumanMessage(_FAILED.format(reason=verified.reason), name=RESULT_MESSAGE_NAME)
            return {**update, "evidence": {**turn, "tries": tries}, "messages": [failure], "jump_to": "model"}

        self._before.pop(turn["turn"], None)
        return update

    @types.hook_config(can_jump_to=["model"])
    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        """Judge the changes, in a thread; see `after_agent`."""
        return await asyncio.to_thread(self.after_agent, state, runtime)

    def _verified(self, files: tuple[watch.CommandChange, ...]) -> Verification:
        """Return the result of the checks of changed files."""
        contents = {file.effect.before.sha256: file.before_data for file in files}
        changes = file_changes(watch.CommandChanges(files))
        paths = [file.effect.path for file in files]
        call = ToolCall(call_id="", tool="run_checks", arguments={"paths": paths[:MOST_CHECKED]}, raw_arguments="")
        context = replace(self._context, changes=changes, backup=contents.get)

        return verification(call, self._engine.run_sync(call, context).result, paths) or Verification()


def _request_id(messages: Sequence[AnyMessage]) -> str | None:
    """Return the id of the last message of a person."""
    return next((message.id for message in reversed(messages) if is_request(message)), None)


def _is_turn(turn: JsonMap, messages: Sequence[AnyMessage]) -> bool:
    """Return whether the remembered turn is the one that ends: its request is the last, or is summarized."""
    request = turn["request"]
    return _request_id(messages) == request or all(message.id != request for message in messages)


def _is_answer_of_model(turn: JsonMap, state: Any) -> bool:
    """Return whether the agent ends with the model's answer, unchanged."""
    last = next((message for message in reversed(state["messages"]) if isinstance(message, AIMessage)), None)
    if state.get("jump_to") == "end":  # other middleware has set it in the step before
        return False
    if last is None or (last.tool_calls and state.get("structured_response") is None):
        return False

    return bool(turn["answer"] == _digest(last))


def _digest(message: BaseMessage) -> str:
    return sha256(message.text.encode("utf-8", "surrogatepass")).hexdigest()
