"""`mendgraph cassette from-run`: a run of the store becomes a cassette, its files, and a test that plays it again.

The raw requests of a run are not kept, so they are made anew: the run is played in a copy of its workspace on a server
that recites its replies, and once more on the cassette that came of it. Only what went the stored way twice is written.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, zip_longest
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
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.langchain.failures import LESSONS
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.machine.workspace import denied_rules, judged_workspace
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.runs import small_history, thread_config, with_store
from mendgraph.nodes.call_model.endpoint import EMBEDDED_MODEL, EMBEDDED_WINDOW, split_provider
from mendgraph.nodes.call_model.weights import embedded_weights
from mendgraph.nodes.call_model.window import Window
from mendgraph.nodes.execute_tools.files.file_changes import MOST_CHANGES
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.files.workspace import Change, DeleteFile, FileContent, Workspace, WriteFile
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
    StopReason,
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

    def kept(store: Store) -> tuple[StoredRun, StartFiles] | ToolError:
        if isinstance(stored := _stored(store, run), ToolError):
            return stored

        denied = denied_rules(stored.context.denied_paths)
        start = files_at_start(store.folder, str(check_workspace(workspace)), stored.run_id, denied)
        if isinstance(start, ToolError):
            return start

        return (stored, start)

    if isinstance(result := with_store(workspace, kept), ToolError):
        return result

    stored, start = result
    name = name or f"run_{re.sub(r'[^a-z0-9]', '_', stored.run_id[:8].lower())}"
    if not re.fullmatch(r"[a-z0-9_]+", name):
        return invalid(f"A test cannot be named {name!r}: take small letters, digits and underscores.")

    target = os.path.join(start.workspace.root, folder or FOLDER)
    root, configured = tests_root(target, start.workspace.root)
    if isinstance(made := _made(stored, start, os.path.join(root, LIBRARY)), ToolError):
        return made

    module = os.path.relpath(os.path.join(target, f"test_{name}.py"), root)
    cassette = f"{LIBRARY}/{cassette_file.cassette_name(f'{module}::test_{name}', name)}"
    contents = {
        module: render_test(name, stored, made).encode(),
        cassette: cassette_file.render(made.cassette).encode(),
    }
    beside = f"{os.path.dirname(cassette)}/files"
    contents |= {f"{beside}/before/{path}": data for path, data in made.before.items()}
    contents |= {f"{beside}/after/{path}": data for path, data in made.left.items()}

    if made.before or made.left:
        contents[f"{beside}/conftest.py"] = b'collect_ignore_glob = ["*"]  # the files of runs are no tests of ours\n'

    if (problem := _write(root, contents, beside, force=force)) is not None:
        return problem

    paths = tuple(os.path.join(root, path) for path in contents)
    command = shlex.join(["pytest", *([] if configured else ["--rootdir", root]), paths[0]])  # from anywhere
    end = _end(stored.outcomes[-1])
    count = len(made.cassette.exchanges)

    return WrittenCassette(stored.run_id, name, paths, count, len(made.before), end, command)


# --- What the store holds of a run


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
    calls = [item for snapshot in history if snapshot.next == ("guard",) for item in snapshot.values["items"]]
    named = {*(final.get("files_read") or {}), *_named(calls)}
    replies = tuple(_replies(history))

    return StoredRun(
        run_id, first_state["context"], first_state["profile"], requests, replies, outcomes, messages, frozenset(named)
    )


def _stored(store: Store, run: str) -> StoredRun | ToolError:
    if isinstance(record := store.run(run), ToolError):
        return record

    if record.parent:
        return invalid(
            f"The run was forked from {record.parent[:8]}, whose steps are not its own: take a run that is no fork."
        )

    stored = read_run(store.saver, record.run_id)
    ends: list[StopReason] = [] if isinstance(stored, ToolError) else [outcome.reason for outcome in stored.outcomes]
    outside = next((reason for reason in ends if reason.from_outside), None)

    if outside is not None:
        return invalid(f"The run ended with {outside.value}, which is not the model's doing and does not repeat.")

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
    """What stands in the arguments of these calls, as far as it may be a path."""
    for text in _texts([call.arguments for call in calls if isinstance(call, ToolCall)]):
        if "\n" not in text:
            yield text.removeprefix("./").rstrip("/")
        yield from (line.partition(": ")[2].strip() for line in text.splitlines() if line.startswith("*** "))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


# --- Its workspace at the start


@dataclass(frozen=True)
class StartFiles:
    """A workspace at a run's start. `before` are the files that the run changed, None where there was none."""

    workspace: Workspace
    before: Mapping[str, bytes | None]

    def read(self, wanted: Callable[[str], bool]) -> Files | ToolError:
        """The wanted files of those that git would not ignore and that the rules allow."""
        there = [entry.path for entry in self.workspace.walk() if entry.kind == "file"]
        paths = {path for path in there if self.workspace.denied(path) is None and path not in self.before}
        paths |= {path for path, data in self.before.items() if data is not None}
        files: dict[str, bytes] = {}
        remaining = MOST_BYTES
        for path in sorted(filter(wanted, paths)):
            data = self.before.get(path)
            content = FileContent.of(path, data) if data is not None else self.workspace.read_file(path, MOST_BYTES)
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
        before[effect.path] = journal.backup(sha256) if sha256 else None
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


# --- Playing


@dataclass(frozen=True)
class Made:
    """A cassette that has been played: the settings of its test, the files before, and those that it left and took."""

    cassette: cassette_file.CassetteFile
    given: JsonMap
    before: Files
    left: Files
    gone: tuple[str, ...]


def _made(stored: StoredRun, start: StartFiles, library: str) -> Made | ToolError:
    """The cassette with the files that the run named; where that does not play, with all files."""

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
    if isinstance(result, Made):
        return result
    every = start.read(lambda path: is_own(path) or is_named(path))
    if isinstance(every, ToolError):
        return result.model_copy(update={"message": f"{result.message} {every.message}"})
    return result if every == few else _played(stored, every)


def _played(stored: StoredRun, files: Files) -> Made | ToolError:
    """Record on a server that recites, in one folder, and play that in another one."""
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
    return Made(cassette, fixture_settings, files, changed_files, tuple(path for path in files if path not in after))


def _at(folder: str, server: LoopbackServer) -> JsonMap:
    return {"workspace": folder, "base_url": server.base_url}


def _play(stored: StoredRun, files: Files, context: Callable[[str], AgentContext]) -> Files | ToolError:
    """Work on the requests of a run anew, in a folder with these files; what it holds then.

    The run's records and its spending are kept in a place of their own, which is gone at the end. The environment says
    where that is, so one process plays one run at a time. CONFLICT where it does not go the same way.
    """
    saver = InMemorySaver(serde=serializer())
    with TemporaryDirectory(prefix="mendgraph-replay-") as base:
        folder = os.path.join(base, "workspace")
        os.mkdir(folder)
        workspace = Workspace(folder, lambda *_: None)
        problem = _change(workspace, [WriteFile(path, data) for path, data in files.items()])
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
        found = (workspace.read_file(entry.path) for entry in workspace.walk() if entry.kind == "file")
        contents = islice((content for content in found if isinstance(content, FileContent)), 2 * MOST_FILES)
        return {content.path: content.data for content in contents}


def _context(stored: StoredRun) -> AgentContext:
    """The run's own settings, on a replayed endpoint, which speaks chat completions whatever the run's own spoke.

    Other models and limits of many runs play no part in a replay.
    """
    context = stored.context
    profile = stored.profile
    model_name = next((reply.model for reply in stored.replies if reply.model), "unnamed")
    if context.model and context.model != EMBEDDED_MODEL:
        named = context.model
    else:
        named = model_name
    changes = {
        "model": embedded_weights().model if profile.embedded else split_provider(named)[1],
        "use_responses_api": None,
        "fallback_models": (),
        "max_tokens_per_day": None,
        "max_cost_usd_per_day": None,
        "account": "",
        "max_tokens_per_account": None,
        "max_cost_usd_per_account": None,
        "window_tokens": context.window_tokens or (EMBEDDED_WINDOW if profile.embedded else None),
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
    """The first thing that differs, in one sentence without its full stop; "" where both went the same way.

    The name of the folder that each of them was played in makes no difference.
    """
    for number, (was, now) in enumerate(zip_longest(_story(stored), _story(played), fillvalue="nothing"), start=1):
        if was != now:
            at = parting(was, now)
            return f"message {number} was {around(was, at)}, and is now {around(now, at)}"
    return ""


def _story(run: StoredRun) -> Iterator[str]:
    """What was said, and how each turn ended, without the name of the folder."""
    for message in run.messages:
        calls = [(call["name"], call["args"]) for call in message.tool_calls] if isinstance(message, AIMessage) else ""
        yield f"{message.type}: {message.text}{calls or ''}".replace(run.context.workspace, "<workspace>")
    yield from map(_end, run.outcomes)


def _end(outcome: Outcome) -> str:
    return f"{outcome.kind.value} ({outcome.reason.value})"


def _unrepeated(difference: str) -> ToolError:
    message = f"The run does not repeat: {difference}. Nothing was written."
    return ToolError(code=ToolErrorCode.CONFLICT, message=message)


# --- Writing


def _write(root: str, contents: Files, beside: str, *, force: bool) -> ToolError | None:
    """Write the files; CONFLICT where one is there already, unless `force`. What else is `beside` goes then."""
    if not os.path.isdir(root):
        os.makedirs(root)
    workspace = Workspace(root, lambda *_: None)
    changes: list[Change] = []
    for path, data in contents.items():
        current = workspace.read_file(path) if workspace.exists(path) else None
        if isinstance(current, ToolError):
            return current
        if current and not force and current.data != data:
            message = f"{quoted(os.path.join(root, path))} is there already: take another --name, or --force."
            return ToolError(code=ToolErrorCode.CONFLICT, message=message)
        changes.append(WriteFile(path, data, expected_sha256=current.sha256 if current else ""))
    old = [entry.path for entry in workspace.walk(beside) if entry.kind == "file" and entry.path not in contents]
    read = (workspace.read_file(path) for path in old)
    changes += [DeleteFile(content.path, content.sha256) for content in read if isinstance(content, FileContent)]
    return _change(workspace, changes)


def _change(workspace: Workspace, changes: Sequence[Change]) -> ToolError | None:
    """Make all of them; few enough are made all or none."""
    for start in range(0, len(changes), MOST_CHANGES):
        done = workspace.change_files(changes[start : start + MOST_CHANGES])
        if isinstance(done, ToolError):
            return done
    return None


def settings_in_test(context: AgentContext, pinned: Mapping[str, str]) -> JsonMap:
    """The settings of a run that the fixture does not give by itself, in the order of the form."""
    usual = cassette_file.context_on(pinned, {}, context.workspace, context.base_url or "")
    fields = [name for name in AgentContext.model_fields if name != "base_url"]
    return {name: value for name in fields if (value := getattr(context, name)) != getattr(usual, name)}


def render_test(name: str, stored: StoredRun, made: Made) -> str:
    """The text of the test file."""
    outcome = stored.outcomes[-1]
    has_files = bool(made.before or made.left)
    settings = [
        f"{name}={_text(value) if isinstance(value, str) else repr(value)}" for name, value in made.given.items()
    ]
    lines = [
        f'"""The run {stored.run_id[:8]} once more, on what its model said."""',
        "",
        *(["import shutil"] if made.before else []),
        *(["from pathlib import Path", ""] if has_files else []),
        "import pytest",
        "",
        "from mendgraph import Session",
        "",
        "",
        f'@pytest.mark.mendgraph_cassette("{name}")',
        f"def test_{name}(mendgraph_cassette, tmp_path):",
        *(['    files = Path(mendgraph_cassette.path).parent / "files"'] if has_files else []),
        *(['    shutil.copytree(files / "before", tmp_path, dirs_exist_ok=True)'] if made.before else []),
        f"    with Session(mendgraph_cassette.context({', '.join(['tmp_path', *settings])})) as session:",
        *(f"        session.work({_text(request)})" for request in stored.requests),
        "        outcome = session.result().outcome",
        f'    assert (outcome.kind, outcome.reason) == ("{outcome.kind.value}", "{outcome.reason.value}")',
        *_asserted([*made.left], 'assert (tmp_path / path).read_bytes() == (files / "after" / path).read_bytes()'),
        *_asserted(made.gone, "assert not (tmp_path / path).exists()"),
    ]
    return "\n".join(lines) + "\n"


def _asserted(paths: Sequence[str], line: str) -> list[str]:
    if paths:
        return [f"    for path in [{', '.join(map(_text, paths))}]:", f"        {line}"]
    return []


def _text(text: str) -> str:
    """A literal in double quotes where it can be one; whatever is not printable is escaped."""
    plain = text.isprintable() and not {'"', "\\"} & {*text}
    return f'"{text}"' if plain else repr(text)


_CONFIGURATIONS: Final = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml"),
    *("tox.ini", "setup.cfg", "setup.py"),
)
"""The files that pytest reads first, in its order. Source: its reference, "Configuration file formats"."""


def tests_root(target: str, workspace: str) -> tuple[str, bool]:
    """What pytest takes for its root directory where it runs tests in `target`, and whether it finds that by itself.

    It is the nearest folder above that is set up for pytest, or the workspace, or outside of it the target.
    Source: pytest's reference, "Initialization: determining rootdir and configfile".
    """
    real = folder = os.path.realpath(target)
    while folder != os.path.dirname(folder):
        if any(os.path.isfile(os.path.join(folder, name)) for name in _CONFIGURATIONS):
            return folder, True
        folder = os.path.dirname(folder)
    return (workspace if real.startswith(f"{workspace.rstrip('/')}/") else real), False
