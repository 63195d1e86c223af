"""`mendgraph cassette from-run`: make a cassette, its files, and a test that replays them, of a stored run.

The requests of a run are not stored, so they are made again: the run is played in a copy of its workspace on its stored
replies, and once more on the resulting cassette. Files are written only if both plays match the stored run.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest import mock

from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.cassettes.cassette_file import CassetteFile, cassette_name, context_on, render, settings_of
from mendgraph.graph.cassettes.player import Player, excerpt, first_difference
from mendgraph.graph.cassettes.reciter import Reciter
from mendgraph.graph.cassettes.recorder import REPLAY_URL, Answers, CassetteMissError, replayed
from mendgraph.graph.cassettes.stored_run import Files, StartFiles, StoredRun, read_files, read_run, read_start_files
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.langchain.failures import LESSONS
from mendgraph.graph.machine.serializer import serializer
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.runs import with_store
from mendgraph.nodes.call_model.endpoint import EMBEDDED_MODEL, EMBEDDED_WINDOW, split_provider
from mendgraph.nodes.call_model.weights import embedded_weights
from mendgraph.nodes.records import JsonMap, Outcome, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.sandbox import check_workspace
from mendgraph.nodes.workspace.files.workspace import Change, DeleteFile, FileContent, Workspace, WriteFile
from mendgraph.nodes.workspace.journal.restoring import change_in_batches
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE

FOLDER: Final = "tests"
"""Default folder of the test."""

LIBRARY: Final = "cassettes"
"""The folder of cassettes below pytest's root directory."""

_PYTEST_FILES: Final = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml"),
    *("tox.ini", "setup.cfg", "setup.py"),
)
"""Files that mark pytest's root directory. Source: pytest's reference, "Configuration file formats"."""


_CONFTEST: Final = b'collect_ignore_glob = ["*"]  # the files of runs are no tests of ours\n'
"""Keeps pytest from collecting tests among the files of a run."""


@dataclass(frozen=True)
class WrittenCassette:
    """The files that were written of a run, its exchanges, its outcome, and the command that starts its test."""

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

    `folder` is relative to the workspace, `name` is `run_<id>` by default. CONFLICT if a file exists already, unless
    `force`, or if the run does not repeat: then it says what differs, and nothing is written.
    """

    def read_store(store: Store) -> tuple[StoredRun, StartFiles] | ToolError:
        record = store.run(run)
        if isinstance(record, ToolError):
            return record

        stored = read_run(store.saver, record.run_id)
        if isinstance(stored, ToolError):
            return stored

        start = read_start_files(store, str(check_workspace(workspace)), stored)
        if isinstance(start, ToolError):
            return start

        return (stored, start)

    result = with_store(workspace, read_store)
    if isinstance(result, ToolError):
        return result

    stored, start = result
    name = name or f"run_{re.sub(r'[^a-z0-9]', '_', stored.run_id[:8].lower())}"
    if not re.fullmatch(r"[a-z0-9_]+", name):
        return invalid(f"A test cannot be named {name!r}: use lowercase letters, digits and underscores.")

    target = os.path.join(start.workspace.root, folder or FOLDER)
    root = pytest_root(target, start.workspace.root)
    replay = _replay(stored, start, os.path.join(root, LIBRARY))
    if isinstance(replay, ToolError):
        return replay

    module = os.path.relpath(os.path.join(target, f"test_{name}.py"), root)
    cassette = f"{LIBRARY}/{cassette_name(f'{module}::test_{name}', name)}"
    beside = f"{os.path.dirname(cassette)}/files"
    contents = {module: render_test(name, stored, replay).encode(), cassette: render(replay.cassette).encode()}
    contents |= replay.contents(beside)

    problem = _write_files(root, contents, beside, force=force)
    if problem is not None:
        return problem

    paths = tuple(os.path.join(root, path) for path in contents)
    return WrittenCassette(
        run_id=stored.run_id,
        name=name,
        paths=paths,
        exchanges=len(replay.cassette.exchanges),
        files=len(replay.before),
        end=_end(stored.outcomes[-1]),
        command=shlex.join(["pytest", "--rootdir", root, paths[0]]),
    )


# --- Replay


@dataclass(frozen=True)
class Replay:
    """A cassette that repeats its run: the settings of its test, the files before and after, and the deleted ones."""

    cassette: CassetteFile
    settings: JsonMap
    before: Files
    after: Files
    deleted: tuple[str, ...]

    def contents(self, folder: str) -> Files:
        """Return the files as they are written beside the cassette."""
        contents = {f"{folder}/before/{path}": data for path, data in self.before.items()}
        contents |= {f"{folder}/after/{path}": data for path, data in self.after.items()}
        if contents:
            contents[f"{folder}/conftest.py"] = (
                b'collect_ignore_glob = ["*"]  # the files of runs are no tests of ours\n'
            )

        return contents


def _replay(stored: StoredRun, start: StartFiles, library: str) -> Replay | ToolError:
    """Replay with the files that the run has read or changed; if that does not repeat the run, with all files."""

    def is_cassette(path: str) -> bool:
        return os.path.join(start.workspace.root, path).startswith(f"{library}/")

    def is_needed(path: str) -> bool:
        is_ignore_file = path.endswith(".gitignore") and not is_cassette(path)
        return path in start.before or path in stored.files_read or is_ignore_file

    few = start.read(is_needed)
    if isinstance(few, ToolError):
        return few

    replay = _replay_with(stored, few)
    if isinstance(replay, Replay):
        return replay

    every = start.read(lambda path: not is_cassette(path) or path in stored.files_read)
    if isinstance(every, ToolError):
        return replay.model_copy(update={"message": f"{replay.message} {every.message}"})
    if every == few:
        return replay

    return _replay_with(stored, every)


def _replay_with(stored: StoredRun, files: Files) -> Replay | ToolError:
    """Play the run on its replies, and again in another folder on the cassette of that."""
    context = _replay_context(stored)
    reciter = Reciter(context.model or "", stored.replies)
    after = _play(stored, files, context, reciter)
    if isinstance(after, ToolError):
        return after

    window = {}
    if context.window_tokens is not None:
        window = {"window_tokens": str(context.window_tokens)}

    settings = settings_of(context, context.model or "", embedded=False, **window)
    cassette = CassetteFile(
        recorded_from=f"run {stored.run_id[:8]}", settings=settings, exchanges=tuple(reciter.exchanges)
    )
    overrides = settings_in_test(context, settings)
    player = Player(cassette, "the cassette")
    again = _play(stored, files, context_on(settings, overrides, context.workspace, REPLAY_URL), player)
    if isinstance(again, ToolError):
        return again
    if player.unplayed:
        return _unrepeated(f"an exchange was not requested again: {player.unplayed[0]}")

    changed = {path: data for path, data in after.items() if files.get(path) != data}
    deleted = tuple(path for path in files if path not in after)
    return Replay(cassette, overrides, files, changed, deleted)


def _play(stored: StoredRun, files: Files, context: AgentContext, player: Answers) -> Files | ToolError:
    """Play the requests of a run in a folder with these files; return its files afterwards.

    Records and spending are stored in a temporary folder, which the environment names, so a process plays one run at a
    time. CONFLICT if the run does not repeat.
    """
    saver = InMemorySaver(serde=serializer())
    LESSONS.clear()  # as the fixture does

    with TemporaryDirectory(prefix="mendgraph-replay-") as base:
        folder = os.path.join(base, "workspace")
        os.mkdir(folder)
        workspace = Workspace(folder, lambda *_: None)
        problem = change_in_batches(workspace, [WriteFile(path, data) for path, data in files.items()])
        if problem is not None:
            return problem

        context = context.model_copy(update={"workspace": folder, "base_url": REPLAY_URL, "hooks": "off"})
        try:
            with (
                mock.patch.dict(os.environ, {DATA_DIR_VARIABLE: os.path.join(base, "data")}),
                replayed(player),
                Session(context, checkpointer=saver, thread_id=stored.run_id) as session,
            ):
                for request in stored.requests:
                    session.work(request)

                played = read_run(saver, stored.run_id)
        except CassetteMissError as error:
            request = str(error).partition("What usually")[0].strip()
            return _unrepeated(f"in another folder it asks for something else: {request}")
        except ImportError as error:
            return ToolError(code=ToolErrorCode.UNAVAILABLE, message=str(error))

        if isinstance(played, ToolError):
            return _unrepeated(played.message.rstrip("."))
        if difference := difference_of(stored, played):
            return _unrepeated(difference)

        return read_files(workspace)


def _replay_context(stored: StoredRun) -> AgentContext:
    """Return the run's settings for a replayed endpoint, which has the chat completions API.

    Fallback models and limits that several runs share do not apply to a replay.
    """
    context = stored.context
    profile = stored.profile
    model_name = next((reply.model for reply in stored.replies if reply.model), "unnamed")
    if context.model and context.model != EMBEDDED_MODEL:
        model_name = context.model

    _, model = split_provider(model_name)
    changes: JsonMap = {
        "model": model,
        "protocol": profile.protocol.value,
        "use_responses_api": None,
        "fallback_models": (),
        "max_tokens_per_day": None,
        "max_cost_usd_per_day": None,
        "account": "",
        "max_tokens_per_account": None,
        "max_cost_usd_per_account": None,
    }
    if not profile.steps_down:  # a form that is set does not step down
        changes["edit_form"] = profile.edit_form.value
    if profile.embedded:
        changes["model"] = embedded_weights().model
        changes["window_tokens"] = context.window_tokens or EMBEDDED_WINDOW

    return context.model_copy(update=changes)


def difference_of(stored: StoredRun, played: StoredRun) -> str:
    """Return the first difference of two plays of a run as a sentence without its full stop, or ""."""
    pairs = zip_longest(_story(stored), _story(played), fillvalue="nothing")
    for number, (before, after) in enumerate(pairs, start=1):
        if before != after:
            start = first_difference(before, after)
            return f"message {number} was {excerpt(before, start)}, and is now {excerpt(after, start)}"

    return ""


def _story(run: StoredRun) -> Iterator[str]:
    """Yield the messages and outcomes as texts, without the name of the folder."""
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


# --- The test


def settings_in_test(context: AgentContext, pinned: Mapping[str, str]) -> JsonMap:
    """Return the settings of a run that the fixture does not set, in the order of `AgentContext`."""
    usual = context_on(pinned, {}, context.workspace, context.base_url or "")
    settings = {}
    for name in AgentContext.model_fields:
        value = getattr(context, name)
        if name != "base_url" and value != getattr(usual, name):
            settings[name] = value

    return settings


def render_test(name: str, stored: StoredRun, replay: Replay) -> str:
    """Return the text of the test file."""
    outcome = stored.outcomes[-1]
    arguments = ["tmp_path", *(f"{setting}={_literal(value)}" for setting, value in replay.settings.items())]
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
        *(f"        session.work({_literal(request)})" for request in stored.requests),
        "        outcome = session.result().outcome",
        f'    assert (outcome.kind, outcome.reason) == ("{outcome.kind.value}", "{outcome.reason.value}")',
        *_assertions([*replay.after], 'assert (tmp_path / path).read_bytes() == (files / "after" / path).read_bytes()'),
        *_assertions(replay.deleted, "assert not (tmp_path / path).exists()"),
    ]
    return "\n".join(lines) + "\n"


def _assertions(paths: Sequence[str], line: str) -> list[str]:
    if not paths:
        return []
    return [f"    for path in [{', '.join(map(_literal, paths))}]:", f"        {line}"]


def _literal(value: Any) -> str:
    """Return a value as Python code, a plain text in double quotes."""
    if isinstance(value, str) and value.isprintable() and not {'"', "\\"} & set(value):
        return f'"{value}"'

    return repr(value)


def pytest_root(target: str, workspace: str) -> str:
    """Return pytest's root directory: the nearest folder with a configuration of pytest, else the workspace.

    Outside of the workspace the target itself is the default. Source: pytest's reference, "Initialization".
    """
    real = folder = os.path.realpath(target)
    while folder != os.path.dirname(folder):
        if any(os.path.isfile(os.path.join(folder, name)) for name in _PYTEST_FILES):
            return folder

        folder = os.path.dirname(folder)

    if real.startswith(f"{workspace.rstrip('/')}/"):
        return workspace

    return real


def _write_files(root: str, contents: Files, beside: str, *, force: bool) -> ToolError | None:
    """Write the files, and delete others in the folder `beside`; CONFLICT if one exists with other content."""
    if not os.path.isdir(root):
        os.makedirs(root)

    workspace = Workspace(root, lambda *_: None)
    changes: list[Change] = []

    for path, data in contents.items():
        sha256 = ""
        if workspace.exists(path):
            current = workspace.read_file(path)
            if isinstance(current, ToolError):
                return current

            sha256 = current.sha256
            if not force and current.data != data:
                message = f"{quoted(os.path.join(root, path))} exists: choose another --name, or pass --force."
                return ToolError(code=ToolErrorCode.CONFLICT, message=message)

        changes.append(WriteFile(path, data, expected_sha256=sha256))

    for entry in list(workspace.walk(beside)):
        if entry.kind == "file" and entry.path not in contents:
            content = workspace.read_file(entry.path)
            if isinstance(content, FileContent):
                changes.append(DeleteFile(content.path, content.sha256))

    return change_in_batches(workspace, changes)
