"""Replay of a recorded run in a copy of its workspace, with another model, prompt or limits, compared with the run.

The original is read from its checkpoints and its journal; nothing of it is run again, and its workspace is not changed.
"""

import os
import shutil
import stat
from base64 import b64decode
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from uuid import uuid4

from langchain_core.messages import AnyMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.models import MachineModels, TurnModel
from mendgraph.graph.machine.options import context_overrides, with_defaults
from mendgraph.graph.machine.run_records import RunRecord, is_resuming
from mendgraph.graph.machine.workspace import file_rules, judged_workspace
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.report.history import START, History, read_history
from mendgraph.graph.runs.events import Asked, Event
from mendgraph.graph.runs.images import Image
from mendgraph.graph.runs.run import Session, split_options
from mendgraph.graph.runs.runs import (
    begin_fork,
    call_after,
    run_diffs,
    small_history,
    thread_config,
    with_store,
    with_store_alone,
)
from mendgraph.nodes.call_model.endpoint import address_for
from mendgraph.nodes.call_model.window import WHOLE
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.language.display import short_id
from mendgraph.nodes.language.history import is_added, is_typed
from mendgraph.nodes.records import ModelReply, Outcome, OutcomeKind, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.copies.workspace_copies import Copy, delete_copy, make_copy
from mendgraph.nodes.workspace.files.change_records import FileState
from mendgraph.nodes.workspace.files.sandbox import StrPath, check_workspace
from mendgraph.nodes.workspace.files.workspace import Change, DeleteFile, FileContent, Workspace, WriteFile
from mendgraph.nodes.workspace.journal.journal import Journal
from mendgraph.nodes.workspace.journal.restoring import change_in_batches, net_effects
from mendgraph.nodes.workspace.processes.git import HEAD, find_repository, list_uncommitted
from mendgraph.nodes.workspace.store.run_folder import workspace_folder_path


@dataclass(frozen=True)
class RunFigures:
    """How a run ended, and what it took, with all that its thread spent.

    `checks` is the kind of its verification, `ran` names the checks. `nodes` are the visited nodes in order, after the
    step if the replay begins at one. `cost_usd` is None if a price is unknown.
    """

    run_id: str
    model: str
    kind: str
    reason: str
    checks: str
    ran: tuple[str, ...]
    changed_files: tuple[str, ...]
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    nodes: tuple[str, ...]

    @property
    def rank(self) -> int:
        """2 for FINISHED with checks that passed, 1 for FINISHED, 0 for every other end."""
        if self.kind != OutcomeKind.FINISHED:
            return 0

        return 2 if self.checks == "passed" else 1


@dataclass(frozen=True)
class Replay:
    """A run beside its replay.

    `diff` has what the replay changed, without secrets, `copy` is the workspace that it worked in, "" if that is
    removed, and `notes` say what is not in it.
    """

    original: RunFigures
    replay: RunFigures
    from_step: int
    diff: str
    copy: str
    notes: tuple[str, ...]

    @property
    def is_worse(self) -> bool:
        """Whether the replay has no answer where the run had one, or no passing check where the run had one."""
        return self.replay.rank < self.original.rank

    def __str__(self) -> str:
        """Return both ends in one line."""
        ends = [f"{end.kind} ({end.reason}), checks {end.checks}" for end in (self.original, self.replay)]
        return f"run {short_id(self.original.run_id)}: {ends[0]}; replay: {ends[1]}"


class _File(NamedTuple):
    """The content of a file, None if it does not exist, and its permission bits, None to keep them."""

    data: bytes | None
    mode: int | None = None


class _Original(NamedTuple):
    """A recorded run, and the start of its replay: the `state` at a step, {} for a start with the first request.

    `typed` is what a person typed after it, `files` those that the run has changed, as they were then.
    """

    record: RunRecord
    figures: RunFigures
    step: int
    state: Mapping[str, Any]
    typed: Sequence[AnyMessage]
    files: Mapping[str, _File]


def replay_run(
    run: str,
    workspace: StrPath = ".",
    *,
    from_step: int | None = None,
    copy: StrPath | None = None,
    **options: Any,
) -> Replay | ToolError:
    """Repeat a recorded run in a copy of its workspace, and compare both.

    The copy has the current files, including uncommitted ones; files that the run changed have their content at that
    step. Calls that need a person's approval are refused.

    Args:
        run: the id of a run that has ended, or the beginning of it.
        workspace: the folder of the run; it is not changed.
        from_step: the replay has the conversation, the budget and the files of the run after this step. By default it
            begins with the first request.
        copy: a new or empty folder outside of the workspace, in which the copy is kept. By default it is removed.
        options: those of `run_task` that replace what the run had, such as `model` and `system_prompt`. A `model` of
            another provider has its own address, and the run's fallback models are left out, unless they are given.

    Returns:
        Both runs, or a ToolError: the run has not ended, the step is none to begin after, or no copy can be made.

    Raises ValueError: an option is not valid.
    """
    root = check_workspace(workspace)
    if isinstance(root, ToolError):
        return root

    original = with_store(root, lambda store: _read_original(store, root, run, from_step))
    if isinstance(original, ToolError):
        return original

    if copy is not None:
        folder = os.path.abspath(copy)
        return _check_place(root, folder) or _replay_in(folder, root, original, options, keep=True)

    with TemporaryDirectory(prefix="mendgraph-replay-", ignore_cleanup_errors=True) as base:
        return _replay_in(os.path.join(base, "copy"), root, original, options, keep=False)


def _check_place(root: str, folder: str) -> ToolError | None:
    """Return why this folder cannot take a copy: what is in it would be overwritten, or it would be in the copy."""
    place = os.path.realpath(folder)
    if os.path.commonpath([place, root]) == root:
        return invalid(f"{quoted(folder)} is in the workspace: name a folder outside of it.")

    if os.path.lexists(place) and not (os.path.isdir(place) and not os.listdir(place)):
        message = f"{quoted(folder)} exists and is not an empty folder: name another one."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message)

    return None


def _replay_in(
    folder: str, root: str, original: _Original, options: Mapping[str, Any], *, keep: bool
) -> Replay | ToolError:
    """Replay the run in a copy in the folder, which stays if it is to be kept and the replay comes to an end."""
    run_id = uuid4().hex
    copy: Copy | ToolError | None = None
    replay: Replay | ToolError | None = None
    try:
        copy = _make_copy(root, folder)
        if isinstance(copy, ToolError):
            return copy

        problem = _fill(copy, root, original)
        if problem is not None:
            return problem

        replay = _compared(original, run_id, copy, options, keep=keep)
        return replay
    finally:
        if not (keep and isinstance(replay, Replay)):
            _remove_copy(copy, folder, run_id)


def _compared(
    original: _Original, run_id: str, copy: Copy, options: Mapping[str, Any], *, keep: bool
) -> Replay | ToolError:
    play = _play(original, run_id, copy, options)
    if isinstance(play, ToolError):
        return play

    figures, diff = play
    return Replay(
        original=original.figures,
        replay=figures,
        from_step=original.step,
        diff=diff,
        copy=copy.root if keep else "",
        notes=copy.notes,
    )


# --- The original


def _read_original(store: Store, root: str, run: str, from_step: int | None) -> _Original | ToolError:
    record = store.run(run)
    if isinstance(record, ToolError):
        return record

    history = read_history(store.saver, record.run_id)
    outcome = history.values.get("outcome")
    if record.state != "ended" or outcome is None:
        return invalid("The run has not ended, so there is nothing to compare: `mendgraph resume` continues it.")

    step = from_step
    if step is None:
        step = record.forked_at or 0

    state: Mapping[str, Any] = {}
    if step or record.parent:
        due = call_after(small_history(store.saver, record.run_id), step)
        if isinstance(due, ToolError):
            return due

        state = build_graph(store.saver).get_state(due.config).values

    files = _files_after(Journal(store.folder), _judged(root, record.context), record.run_id, step)
    if isinstance(files, ToolError):
        return files

    figures = _figures(record.run_id, outcome, history, step if state else None)
    values = build_graph(store.saver).get_state(thread_config(record.run_id)).values
    typed = [*filter(is_typed, values.get("messages", ()))]
    typed_before = [*filter(is_typed, state.get("messages", ()))]
    return _Original(record, figures, step, state, typed[len(typed_before) :], files)


def _judged(root: str, context: AgentContext) -> Workspace:
    return judged_workspace(root, file_rules(context.denied_paths))


def _files_after(journal: Journal, workspace: Workspace, run: str, step: int) -> Mapping[str, _File] | ToolError:
    """Return the files that the run has changed as they were after the step, also if its changes were reverted."""
    changes = journal.changes_of(run, reverted=True)
    later = journal.changes_of(run, step + 1, reverted=True)
    tokens = {change.token for change in later}
    states = {effect.path: effect.after for effect in net_effects([c for c in changes if c.token not in tokens])}
    states |= {effect.path: effect.before for effect in net_effects(later)}

    files: dict[str, _File] = {}
    for path, state in states.items():
        data = _stored_bytes(journal, workspace, path, state)
        if state.sha256 and data is None:
            message = f"What {quoted(path)} held after step {step} is not stored, and the file has been changed since."
            return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

        files[path] = _File(data, state.mode)

    return files


def _stored_bytes(journal: Journal, workspace: Workspace, path: str, state: FileState) -> bytes | None:
    """Return the bytes of this state of a file, from the journal or from the workspace."""
    data = journal.backup(state.sha256) if state.sha256 else None
    if data is not None or not state.sha256:
        return data

    content = workspace.read_file(path)
    if isinstance(content, FileContent) and content.sha256 == state.sha256:
        return content.data

    return None


def _figures(run_id: str, outcome: Outcome, history: History, step: int | None) -> RunFigures:
    """Return the figures of a run; with a step its nodes are those from the call after it."""
    visits: Sequence[Any] = history.visits
    if step is not None:
        visits = [*dropwhile(lambda visit: visit.node != "call_model" or visit.before.get("step", 0) < step, visits)]

    reply = history.values.get("reply") or ModelReply()
    context = history.values.get("context") or AgentContext()
    usage = outcome.usage
    return RunFigures(
        run_id=run_id,
        model=reply.model or context.model or "",
        kind=outcome.kind.value,
        reason=outcome.reason.value,
        checks=outcome.verified.kind,
        ran=outcome.verified.ran,
        changed_files=outcome.changed_files,
        calls=usage.get("total_calls", 0),
        input_tokens=usage.get("total_input_tokens", 0),
        output_tokens=usage.get("total_output_tokens", 0),
        cost_usd=usage.get("cost_usd", 0.0),
        nodes=tuple(visit.node for visit in visits if visit.node != START),
    )


# --- The copy


def _make_copy(root: str, folder: str) -> Copy | ToolError:
    copy = make_copy(root, HEAD, folder)
    if isinstance(copy, ToolError):  # it is in no repository
        copy = make_copy(root, "", folder)

    return copy


def _remove_copy(copy: Copy | ToolError | None, folder: str, run_id: str) -> None:
    """Remove the copy, finished or not, with the records of the replay."""
    if isinstance(copy, Copy):
        with_store(copy.root, lambda store: store.delete(run_id))
        shutil.rmtree(workspace_folder_path(copy.root), ignore_errors=True)

    delete_copy(folder)


def _fill(copy: Copy, root: str, original: _Original) -> ToolError | None:
    """Give the copy the workspace's uncommitted files and the run's own.

    Denied files, links and what is installed are left out.
    """
    repository = find_repository(root)
    if isinstance(repository, ToolError):
        return repository

    names = () if repository is None else list_uncommitted(repository)
    if isinstance(names, ToolError):
        return names

    files: dict[str, _File] = {}
    source = _judged(root, original.record.context)

    for name in names:
        if any(name.startswith(f"{folder}/") for folder in copy.installed):
            continue

        content = source.read_file(name)
        path = os.path.join(root, name)
        if not os.path.lexists(path):
            files[name] = _File(None)
        elif isinstance(content, FileContent) and not os.path.islink(path):
            files[name] = _File(content.data, stat.S_IMODE(os.lstat(path).st_mode))

    return _put_files(copy.root, {**files, **original.files})


def _put_files(root: str, files: Mapping[str, _File]) -> ToolError | None:
    workspace = Workspace(root, lambda *_: None)
    changes: list[Change] = []

    for path, file in files.items():
        sha256 = ""
        current = workspace.read_file(path)
        if isinstance(current, FileContent):
            sha256 = current.sha256

        if file.data is not None:
            changes.append(WriteFile(path, file.data, sha256, file.mode, even_read_only=True))
        elif sha256:
            changes.append(DeleteFile(path, sha256, even_read_only=True))

    return change_in_batches(workspace, changes)


# --- The play


def _play(
    original: _Original, run_id: str, copy: Copy, options: Mapping[str, Any]
) -> tuple[RunFigures, str] | ToolError:
    """Play the run in its copy; return its figures and the diff of what it changed."""
    changes, session_options = split_options(options)
    changes |= _overrides(original.record.context, options)

    if original.state:
        state = _state_in(copy, original.state, changes, options.get("model"))
        problem = with_store_alone(
            copy.root,
            "mendgraph replay",
            lambda store, _: begin_fork(store, run_id, state, original.record, original.step),
        )
        if problem is not None:
            return problem

    context = _context_in(copy, original.record.context, changes)
    with Session(context, **{**session_options, "thread_id": run_id, "checkpointer": None}) as session:
        outcome = _send_requests(session, original)
        diffs = run_diffs(run_id, copy.root)
        if isinstance(diffs, ToolError):
            return diffs

        diff = session.scrub("".join(file.diff for file in diffs))

    history = with_store(copy.root, lambda store: read_history(store.saver, run_id))
    if isinstance(history, ToolError):
        return history

    return _figures(run_id, outcome, history, None), diff


def _overrides(context: AgentContext, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the context that the other options decide, unless the options name these fields as well."""
    overrides: dict[str, Any] = context_overrides(with_defaults({"system_prompt": options.get("system_prompt")}))
    model = options.get("model")
    if model is not None and "fallback_models" not in options:
        overrides["fallback_models"] = ()

    if isinstance(model, str):
        overrides["model"] = model
        if "base_url" not in options:
            overrides["base_url"] = address_for(model, context.model, context.base_url)

    return overrides


def _context_in(copy: Copy, context: AgentContext, changes: Mapping[str, Any]) -> AgentContext:
    """Return the context with these changes, in the copy. Raises ValueError: one of them is not valid."""
    fields = {**dict(context), **changes, "workspace": copy.root, "hooks": "off"}  # nobody trusts those of a copy
    fields["readable_folders"] = (*fields["readable_folders"], *copy.installed.values())
    return AgentContext(**fields)


def _state_in(copy: Copy, state: Mapping[str, Any], changes: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return the state at a step for the middle of a turn with these changes, which `begin_turn` makes elsewhere."""
    prompt = changes.get("system_prompt")
    context = _context_in(copy, state["context"], {**changes, "system_prompt": ""})
    values: dict[str, Any] = {**state, "context": context}

    if prompt is not None:
        values["system_prompt"] = [prompt]

    if changes or model is not None:
        models = MachineModels(model, Redactor, None)
        values["profile"] = TurnModel(models, context).profile()
        values["window"] = (state.get("window") or WHOLE).model_copy(update={"tokens": None})
        models.close()

    return values


def _send_requests(session: Session, original: _Original) -> Outcome:
    """Resume the turn of the state, send the requests that follow it, and return the last outcome.

    What a person added to a turn is read after its first step.
    """
    outcome = None
    typed = deque(original.typed)
    if original.state:
        _add_messages(session, typed)
        outcome = _outcome_of(session, deque(session.resume(), maxlen=1)[0])

    while typed:
        request = typed.popleft()
        _add_messages(session, typed)
        is_done = outcome is not None and outcome.kind is OutcomeKind.FINISHED
        if not (is_done and is_resuming(request.text)):
            outcome = _outcome_of(session, session.work(request.text, images=_images_of(request)))

    return outcome or session.result().outcome


def _add_messages(session: Session, typed: deque[AnyMessage]) -> None:
    """Add the words that precede the next request to the turn that begins, and drop what the last one has not read."""
    session.unread_messages()
    while typed and is_added(typed[0]):
        session.add_message(typed.popleft().text)


def _images_of(request: AnyMessage) -> list[Image]:
    blocks = [block for block in request.content if isinstance(block, dict)]
    return [b64decode(block["base64"]) for block in blocks if block.get("type") == "image" and "base64" in block]


def _outcome_of(session: Session, event: Event) -> Outcome:
    """Return how the turn ends; what needs a person's approval is refused."""
    while isinstance(event, Asked):
        event = session.work_on("nobody")

    return session.result().outcome
