"""`mendgraph cassette from-run`: a run of the store becomes a cassette, its files, and a test that plays it again.

The raw requests of a run are not kept, so they are made anew: the run is played in a copy of its workspace while its
replies are recited, and once more on the cassette that came of it. Only what went the stored way twice is written.
"""

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from configparser import ConfigParser, Error as IniError
from dataclasses import dataclass
from typing import Any, Final

from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange, context_on, render, scrubbed, settings_of
from mendgraph.graph.cassettes.naming import cassette_name
from mendgraph.graph.cassettes.player import REPLAY_URL
from mendgraph.graph.cassettes.replayed_run import (
    KEEPS_TESTS_OUT,
    MOST_FILES,
    Files,
    Reciter,
    Replayer,
    RunCourse,
    StartFiles,
    anything_goes,
    course_difference,
    files_at_start,
    files_in,
    play,
    playground,
    read_course,
    secret_in,
    write_files,
)
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.runs import with_store
from mendgraph.nodes.call_model.embedded.weights import CONTEXT_TOKENS, embedded_weights
from mendgraph.nodes.call_model.endpoint import EMBEDDED_MODEL, split_provider
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.files.workspace import DeleteFile, FileContent, Workspace, WriteFile
from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor
from mendgraph.nodes.language.documents import DocumentProblem, read_toml
from mendgraph.nodes.records import JsonMap, Outcome, Profile, StopReason, ToolError, ToolErrorCode

FOLDER: Final = "tests"
"""Where the test goes where nobody says so."""

NOT_COLLECTED: Final = 'collect_ignore_glob = ["*"]  # the files of runs are no tests of ours\n'

_UNREPEATABLE: Final = frozenset(reason for reason in StopReason if reason.from_outside)
"""Ends that the model has no part in."""

_NAME = re.compile(r"[a-z0-9_]+")


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


@dataclass(frozen=True)
class _Kept:
    """What the store and the workspace hold of a run."""

    run_id: str
    course: RunCourse
    start: StartFiles


@dataclass(frozen=True)
class _Made:
    """A cassette that has been played, with the files before and after."""

    cassette: CassetteFile
    given: JsonMap
    before: Files
    after: Files


def cassette_from_run(
    run: str, workspace: str = ".", *, folder: str | None = None, name: str = "", force: bool = False
) -> WrittenCassette | ToolError:
    """Write `test_<name>.py` into the folder, and its cassette and files where the pytest plugin looks for them.

    `folder` is relative to the workspace and `tests` by default, `name` is `run_<id>`. CONFLICT where a file is there
    already, unless `force`, and where the run does not repeat: it then says at which step, and nothing is written.
    """
    kept = with_store(workspace, lambda store: _kept(store, run, workspace))
    if isinstance(kept, ToolError):
        return kept
    name = name or f"run_{re.sub(r'[^a-z0-9]', '_', kept.run_id[:8].lower())}"
    if not _NAME.fullmatch(name):
        return _invalid(f"A test cannot be named {name!r}: take small letters, digits and underscores.")
    target = os.path.join(kept.start.workspace.root, folder or FOLDER)
    made = _made(kept)
    return made if isinstance(made, ToolError) else _write(kept, made, target, name, force=force)


def _kept(store: Store, run: str, workspace: str) -> _Kept | ToolError:
    record = store.run(run)
    if isinstance(record, ToolError):
        return record
    if record.parent:
        return _invalid(
            f"The run was forked from {record.parent[:8]}, whose steps are not its own: take a run that is no fork."
        )
    course = read_course(store.saver, record.run_id)
    if isinstance(course, ToolError):
        return course
    for outcome in course.outcomes:
        if outcome.reason in _UNREPEATABLE:
            return _invalid(
                f"The run ended with {outcome.reason.value}, which is not the model's doing and does not repeat."
            )
    start = files_at_start(store.folder, str(check_workspace(workspace)), record.run_id)
    return start if isinstance(start, ToolError) else _Kept(record.run_id, course, start)


# --- Playing


def _made(kept: _Kept) -> _Made | ToolError:
    """The cassette with the fewest files that play; where none does, the problem is the one with all files."""
    few = kept.start.touched(kept.course)
    if isinstance(few, ToolError):
        return few
    made = _played(kept, few)
    if isinstance(made, _Made):
        return made
    every = kept.start.every(kept.course)
    if isinstance(every, ToolError):
        return made.model_copy(update={"message": f"{made.message} {every.message}"})
    return made if every == few else _played(kept, every)


def _played(kept: _Kept, files: Files) -> _Made | ToolError:
    """Record in one folder, and play that in another one."""
    refused = secret_in(files, Redactor(tuple(known_values(os.environ))))
    if refused is not None:
        return refused
    course, context = kept.course, _context(kept.course)
    with playground(files) as folder:
        if isinstance(folder, ToolError):
            return folder
        reciter = Reciter(context.model or "", course.turns)
        recorded = play(course, context.model_copy(update={"workspace": folder}), reciter)
        problem = _compared(course, recorded)
        after = files_in(folder, 2 * MOST_FILES)
    if problem is not None:
        return problem
    cassette = CassetteFile(
        recorded_from=f"run {kept.run_id[:8]}",
        settings=_settings(context),
        exchanges=tuple(map(_clean, reciter.exchanges)),
    )
    given = settings_in_test(context, cassette.settings)
    with playground(files) as folder:
        if isinstance(folder, ToolError):
            return folder
        replayer = Replayer(cassette)
        again = play(course, context_on(cassette.settings, given, folder, REPLAY_URL), replayer)
    player = replayer.player
    if player.misses:
        return _unrepeated(
            f"in another folder it asks for something else: {player.misses[0].partition('What usually')[0].strip()}"
        )
    problem = _compared(course, again)
    if problem is None and player.unplayed:
        return _unrepeated(f"what was said was not asked for again: {player.unplayed[0]}")
    return problem or _Made(cassette, given, files, after)


def _compared(stored: RunCourse, played: RunCourse | ToolError) -> ToolError | None:
    if isinstance(played, ToolError):
        return played
    difference = course_difference(stored, played)
    if difference and any(MARK in call.raw_arguments for call in stored.calls):
        difference += f" (a call held a value that is stored as {MARK}, so it cannot be made again)"
    return _unrepeated(difference) if difference else None


def _unrepeated(difference: str) -> ToolError:
    message = f"The run does not repeat: {difference}. Nothing was written."
    return ToolError(code=ToolErrorCode.CONFLICT, message=message)


def _context(course: RunCourse) -> AgentContext:
    """The run's own settings, on the replayed endpoint, which speaks chat completions whatever the run's own spoke.

    Other models and limits of many runs play no part in a replay.
    """
    context, profile = course.context, course.profile
    said = next((reply.model for turn in course.turns for reply in turn.replies if reply.model), "unnamed")
    named = context.model if context.model and context.model != EMBEDDED_MODEL else said
    changes = {
        "model": embedded_weights().model if profile.embedded else split_provider(named)[1],
        "base_url": REPLAY_URL,
        "use_responses_api": None,
        "fallback_models": (),
        "max_tokens_per_day": None,
        "max_cost_usd_per_day": None,
        "account": "",
        "max_tokens_per_account": None,
        "max_cost_usd_per_account": None,
        "window_tokens": context.window_tokens or (CONTEXT_TOKENS if profile.embedded else None),
    }
    same = context.model_copy(update=changes)
    pinned = same.model_copy(update={"protocol": profile.protocol.value, "edit_form": profile.edit_form.value})
    alike = _profile(pinned) == _profile(same)  # a form that somebody chose is not stepped down from
    return pinned if alike or _profile(same).edit_form is not profile.edit_form else same


def _profile(context: AgentContext) -> Profile:
    return context.profile(embedded=False, model=context.model or "")


def _settings(context: AgentContext) -> dict[str, str]:
    """What the cassette keeps of them; see `mendgraph.graph.cassettes.fixture`."""
    window = {} if context.window_tokens is None else {"window_tokens": str(context.window_tokens)}
    return settings_of(context, context.model or "", embedded=False, **window)


def _clean(exchange: Exchange) -> Exchange:
    known = known_values(os.environ)
    bodies = {"request": scrubbed(exchange.request, known), "response": scrubbed(exchange.response, known)}
    return exchange.model_copy(update=bodies)


# --- Writing


def _write(kept: _Kept, made: _Made, target: str, name: str, *, force: bool) -> WrittenCassette | ToolError:
    course, outcome = kept.course, kept.course.outcomes[-1]
    left = {path: data for path, data in made.after.items() if made.before.get(path) != data}
    gone = tuple(path for path in made.before if path not in made.after)
    root, configured = tests_root(target, kept.start.workspace.root)
    library = library_of(root)
    if isinstance(library, ToolError):
        return library
    module = os.path.relpath(os.path.join(target, f"test_{name}.py"), root)
    cassette = f"{library}/{cassette_name(f'{module}::test_{name}', name)}"
    beside = f"{os.path.dirname(cassette)}/files"
    tested = TestedRun(name, kept.run_id, made.given, course.requests, outcome, bool(made.before), tuple(left), gone)
    contents = {
        module: render_test(tested).encode(),
        cassette: render(made.cassette).encode(),
        **{f"{beside}/before/{path}": data for path, data in made.before.items()},
        **{f"{beside}/after/{path}": data for path, data in left.items()},
    }
    if made.before or left:
        contents[f"{beside}/{KEEPS_TESTS_OUT}"] = NOT_COLLECTED.encode()
    workspace, below = _workspace_of(root)
    changes = _changes(workspace, {f"{below}{path}": data for path, data in contents.items()}, force=force)
    if isinstance(changes, ToolError):
        return changes
    stale = _stale(workspace, f"{below}{beside}", {change.path for change in changes})
    problem = write_files(workspace, [*changes, *stale])
    if problem is not None:
        return problem
    paths = tuple(os.path.join(root, path) for path in contents)
    end = f"{outcome.kind.value} ({outcome.reason.value})"
    command = shlex.join(["pytest", *([] if configured else ["--rootdir", root]), paths[0]])  # from anywhere
    return WrittenCassette(kept.run_id, name, paths, len(made.cassette.exchanges), len(made.before), end, command)


def _changes(workspace: Workspace, contents: Files, *, force: bool) -> list[WriteFile] | ToolError:
    """How the files are written; CONFLICT where one is there already, unless `force`."""
    changes: list[WriteFile] = []
    for path, data in contents.items():
        there = workspace.read_file(path) if workspace.exists(path) else None
        if isinstance(there, ToolError):
            return there
        if there and not force and there.data != data:
            message = f"{quoted(os.path.join(workspace.root, path))} is there already: take another --name, or --force."
            return ToolError(code=ToolErrorCode.CONFLICT, message=message)
        changes.append(WriteFile(path, data, expected_sha256=there.sha256 if there else ""))
    return changes


def _stale(workspace: Workspace, folder: str, written: Collection[str]) -> list[DeleteFile]:
    """What another cassette of this name had beside it, so that nothing of that is played."""
    found = [entry.path for entry in workspace.walk(folder) if entry.kind == "file" and entry.path not in written]
    contents = [workspace.read_file(path) for path in found]
    return [DeleteFile(each.path, each.sha256) for each in contents if isinstance(each, FileContent)]


def _workspace_of(target: str) -> tuple[Workspace, str]:
    """The nearest folder above the target that is there, and the rest of the way with a "/" at its end."""
    root, rest = os.path.realpath(target), ""
    while not os.path.isdir(root):
        root, name = os.path.split(root)
        rest = f"{name}/{rest}"
    return anything_goes(root), rest


_ROOM = 55
"""Characters for further arguments on the line of the session."""


@dataclass(frozen=True)
class TestedRun:
    """What the test says: settings, each turn's request, the last end, the files that the run left, or took away."""

    __test__ = False

    name: str
    run_id: str
    given: JsonMap
    requests: tuple[str, ...]
    outcome: Outcome
    has_files: bool
    left: tuple[str, ...]
    gone: tuple[str, ...]


def settings_in_test(context: AgentContext, pinned: Mapping[str, str]) -> JsonMap:
    """The settings of a run that the fixture does not give by itself, in the order of the form."""
    usual = context_on(pinned, {}, context.workspace, context.base_url or "")
    return {
        name: value for name in AgentContext.model_fields if (value := getattr(context, name)) != getattr(usual, name)
    }


def render_test(run: TestedRun) -> str:
    """The text of the test file."""
    lines = [
        f'"""The run {run.run_id[:8]} once more, on what its model said."""',
        "",
        *(["import shutil"] if run.has_files else []),
        *(["from pathlib import Path"] if run.has_files or run.left else []),
        *([""] if run.has_files or run.left else []),
        "import pytest",
        "",
        "from mendgraph import Session",
        "",
        "",
        f'@pytest.mark.mendgraph_cassette("{run.name}")',
        f"def test_{run.name}(mendgraph_cassette, tmp_path):",
        *(['    files = Path(mendgraph_cassette.path).parent / "files"'] if run.has_files or run.left else []),
        *(['    shutil.copytree(files / "before", tmp_path, dirs_exist_ok=True)'] if run.has_files else []),
        f"    with Session(mendgraph_cassette.context(tmp_path{_arguments(run.given)})) as session:",
        *(f"        session.work({_text(request)})" for request in run.requests),
        "        outcome = session.result().outcome",
        f'    assert (outcome.kind, outcome.reason) == ("{run.outcome.kind.value}", "{run.outcome.reason.value}")',
        *_asserted(run.left, 'assert (tmp_path / path).read_bytes() == (files / "after" / path).read_bytes()'),
        *_asserted(run.gone, "assert not (tmp_path / path).exists()"),
    ]
    return "\n".join(lines) + "\n"


def _asserted(paths: Sequence[str], line: str) -> list[str]:
    return [f"    for path in [{', '.join(map(_text, paths))}]:", f"        {line}"] if paths else []


def _arguments(given: JsonMap) -> str:
    """Further arguments of a call that has one already: on its line, or each on a line of its own."""
    arguments = [f"{name}={_literal(value)}" for name, value in given.items()]
    line = "".join(f", {each}" for each in arguments)
    if len(line) <= _ROOM:
        return line
    return ",\n" + "".join(f"        {each},\n" for each in arguments) + "    "


def _literal(value: Any) -> str:
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    """A literal in double quotes where it can be one; whatever is not printable is escaped."""
    plain = text.isprintable() and not {'"', "\\"} & {*text}
    return f'"{text}"' if plain else repr(text)


LIBRARY: Final = "cassettes"
"""Where the plugin looks, below the root directory, where the option does not say otherwise."""

_OPTION: Final = "mendgraph_cassettes"
_OWN_FILES: Final = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
_CONFIGURATIONS: Final = (*_OWN_FILES, "pyproject.toml", "tox.ini", "setup.cfg")
"""The files that pytest reads, in its order. Source: its reference, "Configuration file formats"."""


def tests_root(target: str, workspace: str) -> tuple[str, bool]:
    """What pytest takes for its root directory where it runs tests in `target`, and whether it finds that by itself.

    It is the nearest folder above that is set up for pytest, or the workspace, or outside of it the target.
    Source: pytest's reference, "Initialization: determining rootdir and configfile".
    """
    real = folder = os.path.realpath(target)
    while folder != os.path.dirname(folder):
        if any(os.path.isfile(os.path.join(folder, name)) for name in (*_CONFIGURATIONS, "setup.py")):
            return folder, True
        folder = os.path.dirname(folder)
    return (workspace if real.startswith(f"{workspace.rstrip('/')}/") else real), False


def library_of(root: str) -> str | ToolError:
    """The folder of cassettes, relative to the root directory; one outside of it is refused.

    INVALID_ARGUMENT also says which file of settings cannot be read: pytest would not start there.
    """
    for name in _CONFIGURATIONS:
        path = os.path.join(root, name)
        if not os.path.isfile(path):
            continue
        content = anything_goes(root).read_file(name)
        if isinstance(content, ToolError):
            return content
        tables = _tables(name, content.data)
        if isinstance(tables, str):
            return _invalid(f"{quoted(path)} cannot be read, so pytest would not start: {tables}.")
        if tables or name in _OWN_FILES:  # pytest reads on in no other file
            return _below(root, name, next((each[_OPTION] for each in tables if _OPTION in each), LIBRARY))
    return LIBRARY


def _tables(name: str, data: bytes) -> list[Mapping[str, Any]] | str:
    """Those that pytest takes its options from, or why the file cannot be read."""
    parser = ConfigParser(interpolation=None, strict=False, allow_no_value=True)
    try:
        text = data.decode("utf-8")
        if not name.endswith(".toml"):
            parser.read_string(text)
            return [parser[each] for each in ("pytest", "tool:pytest") if each in parser]
    except (ValueError, IniError) as error:
        return str(error).partition("\n")[0]
    document = read_toml(text)
    if isinstance(document, DocumentProblem):
        return document.message
    tool = document.get("tool")
    pytest = tool.get("pytest") if isinstance(tool, dict) else None
    found = (document.get("pytest"), pytest, pytest.get("ini_options") if isinstance(pytest, dict) else None)
    return [each for each in found if isinstance(each, Mapping)]


def _below(root: str, name: str, option: object) -> str | ToolError:
    path = os.path.relpath(os.path.join(root, option), root) if isinstance(option, str) and option else ".."
    if path != ".." and not path.startswith(f"..{os.sep}"):
        return path.replace(os.sep, "/")
    return _invalid(
        f"{_OPTION} in {quoted(os.path.join(root, name))} is {option!r}, which is no folder below it: name one"
        " there, or write the test elsewhere with --output."
    )


def _invalid(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
