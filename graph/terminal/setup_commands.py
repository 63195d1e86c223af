"""`mendgraph config`, `doctor`, `model` and `usage`: what runs are set to, what this machine has, what was spent."""

import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.answers import LONGEST_LINE, Line, table, tell, terminal_width, write_object
from mendgraph.graph.terminal.options import options_without_a_task, options_without_events
from mendgraph.graph.terminal.process_end import ExitCode, answer, fail, refused, settings_refused
from mendgraph.nodes.call_model.embedded.weights import WeightsState, weights_path, weights_status
from mendgraph.nodes.language.display import count_of, one_line, plain, usd
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from rich.console import Console

    from mendgraph.graph.configuration.settings_file import Problem, Settings
    from mendgraph.graph.doctor.bundle import Written
    from mendgraph.graph.doctor.examination import Finding
    from mendgraph.graph.spending.store import AccountSpent, ModelDay

config_app = typer.Typer(help="Show settings and who set them; `check` or `trust` a file.", rich_markup_mode=None)
model_app = typer.Typer(help="The embedded local model.", rich_markup_mode=None)


# --- config


def configure(context: typer.Context) -> None:
    """Put what files set below the options that were given; where a file is wrong, say all of it and end here."""
    from mendgraph.graph.configuration.loading import load_configuration

    chosen: opt.Options = context.obj
    found = load_configuration(str(chosen.root), workspace_file=chosen.workspace_file)
    if isinstance(found, tuple):
        raise typer.Exit(settings_refused(chosen, found))
    settings = {**found.values, **chosen.settings}
    if "max_calls_per_turn" in chosen.settings and "max_calls_per_session" in found.values:
        both = chosen.settings["max_calls_per_turn"], found.values["max_calls_per_session"]
        settings["max_calls_per_session"] = max(both)
    if "allowed_private_hosts" in chosen.settings:
        opt.check_private_hosts(settings)
    context.obj = replace(chosen, settings=settings)


@config_app.callback(invoke_without_command=True)
def config(context: typer.Context) -> int:
    """Show all settings of this folder, as `show` does."""
    return int(ExitCode.FINISHED) if context.invoked_subcommand is not None else show(context)


@config_app.command()
def show(context: typer.Context) -> int:
    """Show all settings of a run here, and who set them."""
    from mendgraph.graph.configuration.context import AgentContext
    from mendgraph.graph.configuration.loading import CALLER, DEFAULT, Origin, load_configuration
    from mendgraph.nodes.execute_tools.secrets.redact import Redactor

    chosen = options_without_events(context)
    found = load_configuration(str(chosen.root), workspace_file=chosen.workspace_file)
    if isinstance(found, tuple):
        return settings_refused(chosen, found)
    given = dict(chosen.settings)
    configure(context)
    values = AgentContext(**{"workspace": str(chosen.root), **context.obj.settings}).model_dump(mode="json")
    variables = {name: os.environ.get(each.name) for name, each in found.origins.items()}
    values |= {name: Redactor().text(said) for name, said in variables.items() if said is not None}  # without a login
    origins = {
        **dict.fromkeys(values, Origin(DEFAULT)),
        **found.origins,
        **dict.fromkeys(["workspace", *given], Origin(CALLER)),
    }
    if chosen.as_json:
        settings = {
            name: {"value": value, "origin": origins[name].name, "line": origins[name].line}
            for name, value in values.items()
        }
        return write_object({"settings": settings, "files": list(found.files)})
    rows = table([(name, _as_toml(value), plain(str(origins[name]))) for name, value in values.items()])
    styles = ("dim" if origins[name] == Origin(DEFAULT) else "" for name in values)
    lines = [Line(row.rstrip(), style) for row, style in zip(rows, styles, strict=True)]
    read = ", ".join(found.files) or "none is there"
    return tell([*lines, Line(one_line(f"Files that were read: {read}."), "dim")])


@config_app.command()
def check(context: typer.Context, file: opt.SettingsFile = None) -> int:
    """Check your settings and this folder's, or a file.

    Every problem is named with file, line and field.
    """
    from mendgraph.graph.configuration import loading
    from mendgraph.graph.configuration.settings_file import Settings, parse_settings
    from mendgraph.nodes.execute_tools.store.user_files import SETTINGS_FILE, read_user_file

    chosen = options_without_events(context)
    found: list[Settings | tuple[Problem, ...]]
    if file is None:
        found = [loading.read_user_settings(os.environ), loading.read_workspace_settings(str(chosen.root))]
    else:
        text = read_user_file(file)
        if isinstance(text, ToolError):
            return refused(chosen, text)
        of_user = os.path.basename(file) != SETTINGS_FILE
        found = [parse_settings(text, loading.shown(file), of_user=of_user)]
    problems = [problem for each in found if isinstance(each, tuple) for problem in each]
    if problems:
        return settings_refused(chosen, problems)
    good = [each for each in found if isinstance(each, Settings) and each.file]
    if chosen.as_json:
        return write_object({"files": [{"file": each.file, "settings": sorted(each.values)} for each in good]})
    return tell([Line(one_line(_checked(each))) for each in good] or [Line("There is no file of settings.")])


@config_app.command()
def trust(context: typer.Context, forget: opt.Forget = False) -> int:
    """Trust the .mendgraph.toml of this folder.

    It may then allow more than you do, so read it first. A file that is changed later has to be trusted again.
    """
    from mendgraph.graph.configuration.loading import read_workspace_settings
    from mendgraph.nodes.execute_tools.store import user_files

    chosen = options_without_events(context)
    own = read_workspace_settings(str(chosen.root))
    if not forget and isinstance(own, tuple):
        return settings_refused(chosen, own)
    if not forget and not (own and not isinstance(own, tuple) and own.file):
        message = f"There is no {user_files.SETTINGS_FILE} in this folder to trust."
        return refused(chosen, ToolError(code=ToolErrorCode.NOT_FOUND, message=message))
    sha256 = "" if forget or isinstance(own, tuple) else own.sha256
    problem = user_files.trust(str(chosen.root), sha256)
    if problem is not None:
        return refused(chosen, problem)
    if chosen.as_json:
        return write_object({"trusted": bool(sha256), "sha256": sha256})
    if isinstance(own, tuple) or not sha256:
        return tell([Line(f"{user_files.SETTINGS_FILE} of this folder is not trusted any more")])
    sets = [Line(one_line(f"  {name} = {_as_toml(value)}", LONGEST_LINE)) for name, value in own.values.items()]
    return tell([Line(f"trusted {own.file} as it is now; it sets"), *sets])


def _as_toml(value: Any) -> str:
    """A value as TOML would have it, where it has one."""
    return one_line("-" if value is None else json.dumps(value, ensure_ascii=False), 60)


def _checked(settings: "Settings") -> str:
    listed = f" ({', '.join(settings.values)})" if settings.values else ""
    return f"{settings.file} is fine: {count_of(len(settings.values), 'setting')}{listed}"


# --- doctor

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "off": "dim"}
_LONGEST = 600
_LEAST_ROOM = 40
"""Columns that a finding needs beside its name; where there are fewer, it stands below."""

Offline = Annotated[bool, typer.Option("--offline", help="Ask no endpoint.")]
Deep = Annotated[bool, typer.Option("--deep", help="Read the embedded model whole, and compare its SHA-256.")]
AsBundle = Annotated[bool, typer.Option("--bundle", help="Write a report for a bug: a ZIP file, without secrets.")]
BundleFile = Annotated[Path | None, typer.Argument(metavar="FILE.zip", help="Where --bundle writes it.")]
OfRun = Annotated[str, typer.Option("--run", metavar="RUN", help="With --bundle: what a run did, by its id.")]
WithMessages = Annotated[
    bool, typer.Option("--include-messages", help="With --bundle and --run: also what was said in it.")
]


def doctor(
    context: typer.Context,
    file: BundleFile = None,
    offline: Offline = False,
    deep: Deep = False,
    bundle: AsBundle = False,
    run: OfRun = "",
    include_messages: WithMessages = False,
    force: opt.Force = False,
) -> int:
    """Check this machine, and say what to do.

    It looks at model, sandbox, store, programs and settings; exit code 1 where there is a problem.

    Options of a run, such as --model, are honoured. Nothing is written unless --bundle asks for it.
    """
    if not bundle and (file is not None or run or include_messages or force):
        context.fail("FILE.zip, --run, --include-messages and --force belong to --bundle")
    if include_messages and not run:
        context.fail("--include-messages needs --run RUN")
    from mendgraph.graph.doctor.examination import examine, is_fine, report

    chosen = options_without_events(context)
    root = str(chosen.root)
    found = examine(root, chosen.settings, offline=offline, deep=deep, workspace_file=chosen.workspace_file)
    if bundle:
        from mendgraph.graph.doctor.bundle import write_bundle

        path = str(file or f"mendgraph-{re.sub(r'[^A-Za-z0-9]', '-', run[:8]) or 'doctor'}.zip")
        made = write_bundle(path, found, root, run, include_messages=include_messages, force=force)
        return answer(chosen, made, asdict, bundle_lines)
    answer(chosen, found, report, lambda found: finding_lines(found, terminal_width()))
    return ExitCode.FINISHED if is_fine(found) else ExitCode.FINDINGS


def finding_lines(found: "tuple[Finding, ...]", columns: int | None = None) -> list[Line]:
    """A line for each finding, and one for what to do about it; wrapped where a terminal has so many columns."""
    from mendgraph.graph.doctor.examination import summary

    width = max((len(each.name) for each in found), default=0)
    lines = []
    for each in found:
        head = f"{each.status.value:<8} {each.name:<{width}}  "
        told = _wrapped(head, one_line(each.found, _LONGEST), columns)
        lines += [Line(text, _STYLES[each.status.value]) for text in told]
        if each.remedy:
            lines += map(Line, _wrapped(" " * len(head), f"-> {one_line(each.remedy, _LONGEST)}", columns))
    return [*lines, Line(summary(found), "bold")]


def _wrapped(head: str, text: str, columns: int | None) -> list[str]:
    """The text beside its head, or below it where there is little room; no word is cut: it may be a path to copy."""
    if columns is None:
        return [head + text]
    beside = columns - len(head) >= _LEAST_ROOM
    indent = " " * (len(head) if beside else 2)
    lines = textwrap.wrap(
        text,
        columns,
        initial_indent=head if beside else indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines if beside or not head.strip() else [head.rstrip(), *lines]


def bundle_lines(made: "Written") -> list[Line]:
    """Where the report lies, what is inside, and how the matter is reproduced."""
    inside = [Line(f"  {name}: {what}", "dim") for name, what in made.files.items()]
    said = Line("Secrets, your name and your home folder are taken out; look through it before you share it.")
    again = [Line(f"To reproduce: {one_line(each, _LONGEST)}") for each in made.reproduce]
    return [Line(one_line(f"wrote {made.path}", _LONGEST)), *inside, said, *again]


# --- model

EXTRA_HINT = 'not installed: run `uv sync --extra local` or `pip install "mendgraph[local]"`'


@model_app.command()
def pull(context: typer.Context) -> int:
    """Fetch the weights (1.1 GB): resumable, verified.

    Once for all projects.
    """
    from mendgraph.nodes.call_model.embedded.pull import PullFailure, pull_weights

    chosen = options_without_events(context)
    with shown_pull() as progress:
        pulled = pull_weights(progress)
    if isinstance(pulled, PullFailure):
        code = ExitCode.INTERRUPTED if pulled.interrupted else ExitCode.SYSTEM_ERROR
        return fail(chosen.forms, code, plain(pulled.message))
    how = "was already there" if pulled.source == "cache" else "is in place and verified"
    said = Line(f"the model {how}: {pulled.path} ({_gigabytes(pulled.size_bytes)})")
    return write_object(asdict(pulled)) if chosen.as_json else tell([said])


@model_app.command()
def status(context: typer.Context) -> int:
    """Say whether the embedded model can be used; exit code 0 if it can."""
    chosen = options_without_events(context)
    with shown_pull() as progress:
        found = weights_status(progress=progress)
    has_server = find_spec("xllamacpp") is not None
    usable = has_server and found.state is WeightsState.READY
    if chosen.as_json:
        write_object({**asdict(found), "extra_installed": has_server, "usable": usable})
    else:
        size = f"{_gigabytes(found.bytes_present)} of {_gigabytes(found.bytes_expected)}"
        remedy = "" if found.state is WeightsState.READY else ": run `mendgraph model pull`"
        extra = "installed" if has_server else EXTRA_HINT
        said = (f"weights: {found.state.value} ({size}){remedy}", f"file: {found.path}", f'extra "local": {extra}')
        tell(map(Line, said))
    return ExitCode.FINISHED if usable else ExitCode.SYSTEM_ERROR


@model_app.command()
def serve(context: typer.Context, port: opt.Port = 0) -> int:
    """Serve the embedded model on this machine until Ctrl-C."""
    from mendgraph.nodes.call_model.embedded.local_model import serve_in_foreground, why_unavailable

    chosen = options_without_events(context)
    announce = partial(_announce, as_json=chosen.as_json)
    failure = why_unavailable() or serve_in_foreground(weights_path(), port, announce)
    return ExitCode.FINISHED if failure is None else fail(chosen.forms, ExitCode.SYSTEM_ERROR, plain(failure.message))


def _announce(base_url: str, *, as_json: bool) -> None:
    if as_json:
        write_object({"base_url": base_url})
    else:
        tell([Line(f"serving on {base_url} until Ctrl-C; use it with OPENAI_BASE_URL={base_url}")])


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


@contextmanager
def shown_pull(console: "Console | None" = None) -> Iterator[Callable[[str, int, int], None]]:
    """Show a pull or a check of the weights on standard error: a bar, or without a terminal a line for each phase."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    console = console or Console(stderr=True)
    live = console.is_terminal and not console.is_dumb_terminal
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not live)
    phase = ""

    def show(doing: str, done: int, total: int) -> None:
        nonlocal phase
        if doing == phase:
            for task in bar.task_ids:
                bar.update(task, completed=done, total=total)
            return
        phase = doing
        if not live:
            console.file.write(f"{phase}\n")
            console.file.flush()
            return
        bar.start()
        for task in bar.task_ids:
            bar.remove_task(task)
        # A resumed pull begins where the last one stopped; from zero, its rate would count what was there already.
        bar.add_task(phase, total=total, completed=done)

    try:
        yield show
    finally:
        bar.stop()


# --- usage

_COUNTS = {
    "calls": "CALLS",
    "input_tokens": "IN",
    "cached_tokens": "CACHED",
    "cache_write_tokens": "WRITTEN",
    "output_tokens": "OUT",
    "reasoning_tokens": "REASONING",
}
_ONLY_IF_ANY = frozenset({"cache_write_tokens", "reasoning_tokens"})


def usage(
    context: typer.Context, days: opt.Days = 7, account: opt.AccountShown = None, accounts: opt.Accounts = False
) -> int:
    """Show what model calls have used, by day (UTC) and model, or by account.

    All folders count together, as they do for the limits of days and accounts.
    """
    from mendgraph.graph.spending.store import accounts_spent, spent_by_day

    if accounts and opt.is_given(context, "days"):
        context.fail("--accounts shows all that was ever used: omit --days")
    # --account is an option of runs as well, and is read as that wherever it stands.
    given: opt.Options = context.obj
    account = given.settings.get("account", account)
    context.obj = replace(given, given=tuple(each for each in given.given if each != "--account"))
    chosen, today = options_without_a_task(context), datetime.now(UTC).date()
    if not accounts:
        return answer(
            chosen,
            spent_by_day(days, account=account),
            day_objects,
            lambda found: day_lines(found, days, today, account),
        )
    found = accounts_spent()
    if isinstance(found, ToolError):
        return refused(chosen, found)
    shown = [each for each in found if account is None or each.account == account]
    return answer(chosen, shown, account_objects, lambda shown: account_lines(shown, today, account))


def account_lines(spent: Sequence["AccountSpent"], today: date, account: str | None = None) -> list[Line]:
    """A table with a line for each account; `account` is the only one that was asked for."""
    if not spent:
        return [Line(f"No model was called yet{_of_account(account)}.")]
    rows = [
        (
            one_line(each.account) or "(none)",
            "today" if each.last_day == today else str(each.last_day),
            f"{each.calls:,}",
            f"{each.tokens:,}",
            _money(each.cost_usd, each.unpriced),
        )
        for each in spent
    ]
    return _spent_lines(("ACCOUNT", "LAST USED", "CALLS", "TOKENS", "COST"), rows, _sum(spent, "unsettled"))


def account_objects(spent: Sequence["AccountSpent"]) -> list[dict[str, Any]]:
    """The same for programs: the account that was used last comes first."""
    return [{**each.model_dump(mode="json"), "cost_usd": round(each.cost_usd, 9)} for each in spent]


def day_lines(spent: Sequence["ModelDay"], days: int, today: date, account: str | None = None) -> list[Line]:
    """A table: a line for each model of each day, and one for the day where it had several models.

    Tokens written into a cache and tokens of reasoning have a column where there are any.
    """
    if not spent:
        since = "today" if days == 1 else f"in the last {days} days"
        return [Line(f"No model was called {since} (UTC){_of_account(account)}.")]
    counts = [each for each in _COUNTS if each not in _ONLY_IF_ANY or _sum(spent, each)]
    rows: list[tuple[str, ...]] = []
    for day, models in groupby(spent, attrgetter("day")):
        listed = list(models)
        shown = [(one_line(each.model) or "(the default)", [each]) for each in listed]
        if len(listed) > 1:
            shown.append(("(all)", listed))
        names = ["today" if day == today else str(day)] + [""] * (len(shown) - 1)
        for name, (model, of) in zip(names, shown, strict=True):
            cost = _money(_sum(of, "cost_usd"), _sum(of, "unpriced_calls"))
            rows.append((name, model, *(f"{_sum(of, count):,}" for count in counts), cost))
    return _spent_lines(("DAY", "MODEL", *(_COUNTS[each] for each in counts), "COST"), rows, _sum(spent, "unsettled"))


def day_objects(spent: Sequence["ModelDay"]) -> list[dict[str, Any]]:
    """The same for programs: the days, newest first, each with its models; no digits that adding up has made."""
    return [
        {
            "day": str(day),
            "models": [
                {
                    **each.model_dump(mode="json"),
                    "cost_usd": round(each.cost_usd, 9),
                    "seconds": round(each.seconds, 3),
                }
                for each in models
            ],
        }
        for day, models in groupby(spent, attrgetter("day"))
    ]


def _of_account(account: str | None) -> str:
    if account is None:
        return ""
    return f" for the account {account!r}" if account else " by runs that name no account"


def _spent_lines(head: Sequence[str], rows: Sequence[Sequence[str]], unsettled: int) -> list[Line]:
    first, *lines = table([head, *rows], right=range(2, len(head) - 1))
    said = f"{unsettled:,} calls of these have no end yet, or were killed: they count as what was reserved for them."
    notes = [Line(said, "dim")] if unsettled else []
    return [Line(first.rstrip(), "bold"), *(Line(line.rstrip()) for line in lines), *notes]


def _sum(spent: "Iterable[ModelDay | AccountSpent]", count: str) -> Any:
    return sum(getattr(each, count) for each in spent)


def _money(known: float, unpriced: int) -> str:
    if not unpriced:
        return usd(known) if known else ""
    return f"{usd(known)} and {unpriced} without a price" if known else "no price known"
