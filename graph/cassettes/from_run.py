"""`mendgraph cassette from-run`: a run of the store becomes a cassette, its files, and a test that plays it again.

The raw requests of a run are not kept, so they are made anew: the run is played in a copy of its workspace on a server
that recites its replies, and once more on the cassette that came of it. Only what went the stored way twice is written.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest import mock

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import StateSnapshot

from mendgraph.graph.cassettes import cassette_file
from mendgraph.graph.cassettes.player import around, parting
from mendgraph.graph.cassettes.servers import LoopbackServer, Reciter, ReplayServer
from mendgraph.graph.cassettes.tests_folder import change_files, literal, pytest_command, tests_root, write_files
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.langchain.failures import LESSONS
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.serializer import serializer
from mendgraph.graph.machine.workspace import denied_rules, judged_workspace
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.runs import small_history, thread_config, with_store
from mendgraph.nodes.call_model.endpoint import EMBEDDED_MODEL, EMBEDDED_WINDOW, split_provider
from mendgraph.nodes.call_model.weights import embedded_weights
from mendgraph.nodes.call_model.window import Window
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.files.workspace import FileContent, Workspace, WriteFile
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.execute_tools.journal.restoring import net_effects
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.records import (
    JsonMap,
    ModelReply,
    Outcome,
    Profile,
    ToolCall,
    ToolError,
    ToolErrorCode,
    invalid,
    quoted,
)

FOLDER: Final = "tests"
"""Where the test goes where nobody says so."""

LIBRARY: Final = "cassettes"
"""Where cassettes are, below pytest's root directory."""

MOST_FILES: Final = 200
MOST_BYTES: Final = 2_000_000
"""What is kept beside a cassette; a test that needs more is no test of one run."""

Files = Mapping[str, bytes]
"""What the files of a folder hold, by their paths with "/" between the parts."""


@dataclass(frozen=True)
class WrittenCassette:
    """What came of a run: the paths that were written, its exchanges, how it ends, and how the test is started."""

    run_id: str
    name: str
    paths: tuple[str, ...]
    exchanges: int
    files: int
    end: str
    command: str


def cassette_from_run(
    run: str, workspace: str = ".", *, folder: str | None = None, name: str = "", force: bool = False
) -> WrittenCassette | ToolError:
    """Write `test_<name>.py` into the folder, and its cassette and files where the pytest plugin looks for them.

    `folder` is relative to the workspace and `tests` by default, `name` is `run_<id>`. CONFLICT where a file is there
    already, unless `force`, and where the run does not repeat: it then says what differs, and nothing is written.
    """

    def read_store(store: Store) -> tuple[StoredRun, StartFiles] | ToolError:
        stored = _stored(store, run)
        if isinstance(stored, ToolError):
            return stored

        denied = denied_rules(stored.context.denied_paths)
        start = files_at_start(store.folder, str(check_workspace(workspace)), stored.run_id, denied)
        if isinstance(start, ToolError):
            return start

        return (stored, start)

    result = with_store(workspace, read_store)
    if isinstance(result, ToolError):
        return result

    stored, start = result
    name = name or f"run_{re.sub(r'[^a-z0-9]', '_', stored.run_id[:8].lower())}"
    if not re.fullmatch(r"[a-z0-9_]+", name):
        return invalid(f"A test cannot be named {name!r}: take small letters, digits and underscores.")

    target = os.path.join(start.workspace.root, folder or FOLDER)
    root, configured = tests_root(target, start.workspace.root)
    replay = _replayed(stored, start, os.path.join(root, LIBRARY))
    if isinstance(replay, ToolError):
        return replay

    module = os.path.relpath(os.path.join(target, f"test_{name}.py"), root)
    cassette = f"{LIBRARY}/{cassette_file.cassette_name(f'{module}::test_{name}', name)}"
    contents = {
        module: render_test(name, stored, replay).encode(),
        cassette: cassette_file.render(replay.cassette).encode(),
    }
    beside = f"{os.path.dirname(cassette)}/files"
    contents |= {f"{beside}/before/{path}": data for path, data in replay.before.items()}
    contents |= {f"{beside}/after/{path}": data for path, data in replay.after.items()}

    if replay.before or replay.after:
        contents[f"{beside}/conftest.py"] = b'collect_ignore_glob = ["*"]  # the files of runs are no tests of ours\n'

    problem = write_files(root, contents, beside, force=force)
    if problem is not None:
        return problem

    paths = tuple(os.path.join(root, path) for path in contents)
    command = pytest_command(paths[0], root, configured=configured)
    end = _end(stored.outcomes[-1])
    count = len(replay.cassette.exchanges)

    return WrittenCassette(stored.run_id, name, paths, count, len(replay.before), end, command)


# --- A run in the store


@dataclass(frozen=True)
class StoredRun:
    """A run from its first request to its last end. `named` is what its calls name, which may be paths."""

    run_id: str
    context: AgentContext
    profile: Profile
    requests: tuple[str, ...]
    replies: tuple[ModelReply, ...]
    outcomes: tuple[Outcome, ...]
    messages: tuple[AnyMessage, ...]
    named: frozenset[str]


def read_run(saver: BaseCheckpointSaver[Any], run_id: str) -> StoredRun | ToolError:
    """What the run went through, or why that cannot be played again.

    Raises:
        StoreError: a checkpoint cannot be read.
    """
    history = [*reversed([*small_history(saver, run_id)])]
    problem = _problem(history)
    if problem:
        return invalid(problem)

    final = build_graph(saver).get_state(thread_config(run_id)).values
    messages = tuple(final.get("messages") or ())
    requests = tuple(message.text for message in messages if is_request(message))
    outcomes = tuple(snapshot.values["outcome"] for snapshot in history if not snapshot.next)

    if len(requests) != len(outcomes):
        return invalid(
            f"The run has {len(requests)} requests and {len(outcomes)} ends: a turn of it was cut off, and what was"
            " said in it is not known. Take a run whose turns have all ended."
        )

    first_state = next(snapshot.values for snapshot in history if snapshot.next == ("call_model",))
    calls: list[Any] = []
    for snapshot in history:
        if snapshot.next == ("guard",):
            calls += snapshot.values["items"]

    named = {*(final.get("files_read") or {}), *_named(calls)}
    replies = tuple(_replies(history))

    return StoredRun(
        run_id, first_state["context"], first_state["profile"], requests, replies, outcomes, messages, frozenset(named)
    )


def _stored(store: Store, run: str) -> StoredRun | ToolError:
    record = store.run(run)
    if isinstance(record, ToolError):
        return record

    if record.parent:
        return invalid(
            f"The run was forked from {record.parent[:8]}, whose steps are not its own: take a run that is no fork."
        )

    stored = read_run(store.saver, record.run_id)
    if isinstance(stored, ToolError):
        return stored

    for outcome in stored.outcomes:
        reason = outcome.reason
        if reason.from_outside:
            return invalid(f"The run ended with {reason.value}, which is not the model's doing and does not repeat.")

    return stored


def _problem(history: Sequence[StateSnapshot]) -> str:
    """Why this history cannot be played again; "" where it can."""
    if not history or history[-1].next:
        return "The run has not ended: `mendgraph resume` goes on with it."

    if not any(snapshot.next == ("call_model",) for snapshot in history):
        if any(snapshot.next == ("begin_turn",) for snapshot in history):
            return f"The run ended before a model was called: {history[-1].values['outcome'].message}"
        return "Of the run no step is kept but its end: only runs with durability sync or async can be played again."

    for snapshot in history:
        step = snapshot.values.get("step", 0)
        if (snapshot.metadata or {}).get("source") in {"update", "fork"}:
            return f"The run was forked or taken up again at step {step}: take a run that went on by itself."
        if (snapshot.values.get("window") or Window()).summary:
            return f"In step {step} the conversation was summarised: take a shorter run."
        if snapshot.interrupts:
            return f"In step {step} a person was asked, and the answer cannot be played again: take a run in mode auto."
    return ""


def _replies(history: Sequence[StateSnapshot]) -> Iterator[ModelReply]:
    """What the model said; a checkpoint after `call_model` holds what came of the call."""
    for before, snapshot in pairwise(history):
        if before.next == ("call_model",):
            reply = snapshot.values.get("reply")
        else:
            reply = None
        if reply is not None and not reply.preloaded:
            yield reply


def _named(calls: Sequence[Any]) -> Iterator[str]:
    """The texts in the arguments of these calls that may be paths."""
    for text in _texts([call.arguments for call in calls if isinstance(call, ToolCall)]):
        if "\n" not in text:
            yield text.removeprefix("./").rstrip("/")

        for line in text.splitlines():
            if line.startswith("*** "):
                yield line.partition(": ")[2].strip()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


# --- Its workspace at the start


@dataclass(frozen=True)
class StartFiles:
    """A workspace at a run's start. `before` are the files that the run changed, None where there was none."""

    workspace: Workspace
    before: Mapping[str, bytes | None]

    def read(self, is_needed: Callable[[str], bool]) -> Files | ToolError:
        """The needed files among those that git does not ignore and that the rules allow."""
        existing = [entry.path for entry in self.workspace.walk() if entry.kind == "file"]
        paths = {path for path in existing if self.workspace.denied(path) is None and path not in self.before}
        paths |= {path for path, data in self.before.items() if data is not None}
        files: dict[str, bytes] = {}
        remaining = MOST_BYTES

        for path in sorted(filter(is_needed, paths)):
            data = self.before.get(path)
            content: FileContent | ToolError
            if data is None:
                content = self.workspace.read_file(path, MOST_BYTES)
            else:
                content = FileContent.of(path, data)

            if isinstance(content, ToolError):
                return content

            files[path] = content.data
            remaining -= len(content.data)
            if len(files) > MOST_FILES or remaining < 0:
                return invalid(
                    f"The run needs more than {MOST_FILES} files or {MOST_BYTES:,} bytes of its workspace, more than is"
                    " kept beside a test. Let a .gitignore name what it does not need, or run the task in a smaller"
                    " folder."
                )
        return files


def files_at_start(
    records: str, root: str, run_id: str, rules: tuple[FileGuardrailRule, ...] = ()
) -> StartFiles | ToolError:
    """The workspace at `root` before the run, without what these `rules` deny; `records` is the folder of its journal.

    Raises:
        StoreError: the journal cannot be read.
    """
    journal = Journal(records)
    before: dict[str, bytes | None] = {}
    for effect in net_effects(journal.changes_of(run_id)):
        sha256 = effect.before.sha256
        before[effect.path] = None
        if sha256:
            before[effect.path] = journal.backup(sha256)

        if sha256 and before[effect.path] is None:
            message = f"What {quoted(effect.path)} held before the run is gone or damaged."
            return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    return StartFiles(judged_workspace(root, (*DEFAULT_GUARDRAIL_RULES, *rules)), before)


def _secret_in(files: Files) -> ToolError | None:
    """The refusal of the first file that holds a secret."""
    redactor = Redactor(tuple(known_values(os.environ)))
    for path, data in files.items():
        text = data.decode("utf-8", "replace")
        secrets = cassette_file.secrets_in(text)
        if secrets or redactor.unnamed(text) != text:
            if secrets:
                what = f"a secret in line {secrets[0]}"
            else:
                what = "a secret of the environment"
            message = (
                f"{quoted(path)} holds {what}, and the test would need the file: take the secret out of it, or let a"
                " .gitignore name it, and run the task again."
            )
            return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=(path,))
    return None


# --- Replay


@dataclass(frozen=True)
class Replay:
    """A cassette that was played: the settings of its test, the files before and after, and those that it deleted."""

    cassette: cassette_file.CassetteFile
    settings: JsonMap
    before: Files
    after: Files
    deleted: tuple[str, ...]


def _replayed(stored: StoredRun, start: StartFiles, library: str) -> Replay | ToolError:
    """The replay with the files that the run names; if it does not repeat the run, with all files."""

    def is_named(path: str) -> bool:
        """Whether the file, or a folder that it lies in, was named."""
        parts = path.split("/")
        return any("/".join(parts[:length]) in stored.named for length in range(1, len(parts) + 1))

    def is_own(path: str) -> bool:
        """Whether it is no file of an earlier cassette."""
        return not os.path.join(start.workspace.root, path).startswith(f"{library}/")

    few = start.read(
        lambda path: path in start.before or is_named(path) or (path.endswith(".gitignore") and is_own(path))
    )
    if isinstance(few, ToolError):
        return few
    result = _played(stored, few)
    if isinstance(result, Replay):
        return result
    every = start.read(lambda path: is_own(path) or is_named(path))
    if isinstance(every, ToolError):
        return result.model_copy(update={"message": f"{result.message} {every.message}"})
    if every == few:
        return result

    return _played(stored, every)


def _played(stored: StoredRun, files: Files) -> Replay | ToolError:
    """Record on a server that repeats the replies, in one folder, and replay that in another one."""
    if (refused := _secret_in(files)) is not None:
        return refused
    context = _context(stored)
    with Reciter(context.model or "", stored.replies) as reciter:
        after = _play(stored, files, lambda folder: context.model_copy(update=_at(folder, reciter)))
    if isinstance(after, ToolError):
        return after
    if context.window_tokens is None:
        window = {}
    else:
        window = {"window_tokens": str(context.window_tokens)}
    settings = cassette_file.settings_of(context, context.model or "", embedded=False, **window)
    cassette = cassette_file.CassetteFile(
        recorded_from=f"run {stored.run_id[:8]}", settings=settings, exchanges=tuple(reciter.exchanges)
    )
    fixture_settings = settings_in_test(context, settings)
    with ReplayServer(cassette) as server:
        again = _play(
            stored, files, lambda folder: cassette_file.context_on(settings, fixture_settings, folder, server.base_url)
        )
    if server.misses:
        request = server.misses[0].partition("What usually")[0].strip()
        return _unrepeated(f"in another folder it asks for something else: {request}")
    if isinstance(again, ToolError):
        return again
    if server.unplayed:
        return _unrepeated(f"what was said was not asked for again: {server.player.unplayed[0]}")
    changed_files = {path: data for path, data in after.items() if files.get(path) != data}
    deleted = tuple(path for path in files if path not in after)
    return Replay(cassette, fixture_settings, files, changed_files, deleted)


def _at(folder: str, server: LoopbackServer) -> JsonMap:
    return {"workspace": folder, "base_url": server.base_url}


def _play(stored: StoredRun, files: Files, context: Callable[[str], AgentContext]) -> Files | ToolError:
    """Work on the requests of a run again, in a folder with these files; returns its files at the end.

    The run's records and its spending are stored in a temporary folder, which the environment names, so a process plays
    one run at a time. CONFLICT where the run does not repeat.
    """
    saver = InMemorySaver(serde=serializer())
    with TemporaryDirectory(prefix="mendgraph-replay-") as base:
        folder = os.path.join(base, "workspace")
        os.mkdir(folder)
        workspace = Workspace(folder, lambda *_: None)
        problem = change_files(workspace, [WriteFile(path, data) for path, data in files.items()])
        if problem is not None:
            return problem
        LESSONS.clear()  # as a test does
        with (
            mock.patch.dict(os.environ, {DATA_DIR_VARIABLE: os.path.join(base, "data")}),
            Session(context(folder), checkpointer=saver, thread_id=stored.run_id) as session,
        ):
            for request in stored.requests:
                session.work(request)
            played = read_run(saver, stored.run_id)
        if isinstance(played, ToolError):
            return played
        difference = first_difference(stored, played)
        if difference:
            return _unrepeated(difference)
        after: dict[str, bytes] = {}
        for entry in workspace.walk():
            if entry.kind != "file":
                continue

            content = workspace.read_file(entry.path)
            if isinstance(content, FileContent):
                after[content.path] = content.data
            if len(after) == 2 * MOST_FILES:
                break

        return after


def _context(stored: StoredRun) -> AgentContext:
    """The run's settings for a replayed endpoint, which has the chat completions API.

    Fallback models and limits of several runs do not apply to a replay.
    """
    context = stored.context
    profile = stored.profile
    model_name = next((reply.model for reply in stored.replies if reply.model), "unnamed")
    if context.model and context.model != EMBEDDED_MODEL:
        model_name = context.model

    _, model = split_provider(model_name)
    window_tokens = context.window_tokens
    if profile.embedded:
        model = embedded_weights().model
        window_tokens = window_tokens or EMBEDDED_WINDOW

    changes = {
        "model": model,
        "use_responses_api": None,
        "fallback_models": (),
        "max_tokens_per_day": None,
        "max_cost_usd_per_day": None,
        "account": "",
        "max_tokens_per_account": None,
        "max_cost_usd_per_account": None,
        "window_tokens": window_tokens,
    }
    same = context.model_copy(update=changes)
    usual = same.profile(embedded=False, model=same.model or "")
    pinned = same.model_copy(update={"protocol": profile.protocol.value, "edit_form": profile.edit_form.value})
    # A form that somebody chose is not stepped down from.
    alike = pinned.profile(embedded=False, model=same.model or "") == usual
    if alike or usual.edit_form is not profile.edit_form:
        return pinned
    return same  # a chosen form steps down from nothing


def first_difference(stored: StoredRun, played: StoredRun) -> str:
    """The first difference in one sentence without its full stop; "" where there is none.

    The names of the folders in which they ran make no difference.
    """
    pairs = zip_longest(_story(stored), _story(played), fillvalue="nothing")
    for number, (before, after) in enumerate(pairs, start=1):
        if before != after:
            at = parting(before, after)
            return f"message {number} was {around(before, at)}, and is now {around(after, at)}"

    return ""


def _story(run: StoredRun) -> Iterator[str]:
    """The messages and the outcomes as texts, without the name of the folder."""
    for message in run.messages:
        text = f"{message.type}: {message.text}"
        if isinstance(message, AIMessage) and message.tool_calls:
            text += str([(call["name"], call["args"]) for call in message.tool_calls])

        yield text.replace(run.context.workspace, "<workspace>")

    yield from map(_end, run.outcomes)


def _end(outcome: Outcome) -> str:
    return f"{outcome.kind.value} ({outcome.reason.value})"


def _unrepeated(difference: str) -> ToolError:
    message = f"The run does not repeat: {difference}. Nothing was written."
    return ToolError(code=ToolErrorCode.CONFLICT, message=message)


# --- Writing


def settings_in_test(context: AgentContext, pinned: Mapping[str, str]) -> JsonMap:
    """The settings of a run that the fixture does not set, in the order of `AgentContext`."""
    usual = cassette_file.context_on(pinned, {}, context.workspace, context.base_url or "")
    fields = [name for name in AgentContext.model_fields if name != "base_url"]
    return {name: getattr(context, name) for name in fields if getattr(context, name) != getattr(usual, name)}


def render_test(name: str, stored: StoredRun, replay: Replay) -> str:
    """The text of the test file."""
    outcome = stored.outcomes[-1]
    arguments = ["tmp_path"]
    for setting, value in replay.settings.items():
        arguments.append(f"{setting}={literal(value)}")

    imports = []
    setup = []
    if replay.before or replay.after:
        imports = ["from pathlib import Path", ""]
        setup = ['    files = Path(mendgraph_cassette.path).parent / "files"']
    if replay.before:
        imports.insert(0, "import shutil")
        setup.append('    shutil.copytree(files / "before", tmp_path, dirs_exist_ok=True)')

    lines = [
        f'"""The run {stored.run_id[:8]} once more, on what its model said."""',
        "",
        *imports,
        "import pytest",
        "",
        "from mendgraph import Session",
        "",
        "",
        f'@pytest.mark.mendgraph_cassette("{name}")',
        f"def test_{name}(mendgraph_cassette, tmp_path):",
        *setup,
        f"    with Session(mendgraph_cassette.context({', '.join(arguments)})) as session:",
        *(f"        session.work({literal(request)})" for request in stored.requests),
        "        outcome = session.result().outcome",
        f'    assert (outcome.kind, outcome.reason) == ("{outcome.kind.value}", "{outcome.reason.value}")',
        *_asserted([*replay.after], 'assert (tmp_path / path).read_bytes() == (files / "after" / path).read_bytes()'),
        *_asserted(replay.deleted, "assert not (tmp_path / path).exists()"),
    ]
    return "\n".join(lines) + "\n"


def _asserted(paths: Sequence[str], line: str) -> list[str]:
    if paths:
        return [f"    for path in [{', '.join(map(literal, paths))}]:", f"        {line}"]
    return []
