"""The report of a run as one page: HTML that needs no network, no script and no other file."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any, Final

from graph.current_redactor import CurrentRedactor
from graph.open_store import with_store
from graph.report.amounts import DayUse
from graph.report.booked import booked_calls
from graph.report.history import read_history
from graph.report.page_view import PageView, Stored, page_view
from graph.report.texts import LEVELS, Texts, visible
from graph.runs import ListedRun, get_run, list_runs
from graph.spending_report import AccountSpent, account_spent, spent_by_day
from graph.store import Store
from nodes.execute_tools.redact import Redactor
from nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_BYTES: Final = 4_500_000
"""Of a page: a browser and a mail take that."""

_DAYS: Final = 62
"""How far back the spending book goes."""


def report_html(run: str = "", workspace: str = ".", *, secrets: Sequence[str] = ()) -> str | ToolError:
    """The page of a run's report; the run is named by its id or the beginning of it, by default it is the newest one.

    Nothing is changed, and a run that is at work goes on: the page shows what is on the disk. `secrets` are values that
    it does not show, beside those of the environment and whatever has a secret's shape.

    Returns:
        The page; NOT_FOUND or INVALID_ARGUMENT where no single run is meant, IO_ERROR where the store cannot be read.
    """
    made = make_report(run, workspace, secrets=secrets)
    return made if isinstance(made, ToolError) else made.html


@dataclass(frozen=True)
class Report:
    """Which run it is about, and the page."""

    run_id: str
    html: str


def make_report(run: str = "", workspace: str = ".", *, secrets: Sequence[str] = ()) -> Report | ToolError:
    """The same, with the id of the run."""
    found = _found(run, workspace)
    if isinstance(found, ToolError):
        return found
    stored = with_store(workspace, partial(_stored, found, workspace))
    if isinstance(stored, ToolError):
        return stored
    return Report(found.run_id, render(stored, CurrentRedactor(secrets).now()))


def render(stored: Stored, redactor: Redactor) -> str:
    """The page. One that is too large is made again with less of each text, and says what was left out."""
    page = ""
    for bounds in LEVELS:
        page = _rendered(page_view(stored, Texts(redactor, bounds)), redactor)
        if len(page.encode("utf-8")) <= MOST_BYTES:
            break
    return page


def _found(run: str, workspace: str) -> ListedRun | ToolError:
    if run:
        return get_run(run, workspace)
    listed = list_runs(workspace)
    if isinstance(listed, ToolError):
        return listed
    if not listed:
        return ToolError(code=ToolErrorCode.NOT_FOUND, message="There are no runs of this folder yet.")
    return get_run(listed[0].run_id, workspace)


def _stored(run: ListedRun, root: str, store: Store) -> Stored:
    history = read_history(store.saver, run.run_id)
    return Stored(
        run=run,
        history=history,
        booked=booked_calls(run.run_id, run.context.workspace),
        account=_account(run.context.account),
        day=_day(run.updated[:10], run.context.account if run.context.account_days else ""),
        version=metadata.version("mendgraph"),
        made=datetime.now(UTC).isoformat(),
        root=root,
    )


def _day(day: str, account: str) -> DayUse | None:
    """What the runs of an account used on this day, without one all runs; None where the book cannot be read."""
    days = spent_by_day(_DAYS, account=account or None)
    if isinstance(days, ToolError):
        return None
    of_day = [each for each in days if str(each.day) == day]
    tokens = sum(each.input_tokens + each.output_tokens for each in of_day)
    unpriced = sum(each.unpriced_calls for each in of_day)
    return DayUse(day, tokens, sum(each.cost_usd for each in of_day), unpriced)


def _account(account: str) -> AccountSpent | None:
    """What the account has used in all; None where the book cannot be read."""
    found = account_spent(account)
    return None if isinstance(found, ToolError) else found


def _rendered(view: PageView, redactor: Redactor) -> str:
    folder = resources.files("graph.report")
    style = folder.joinpath("report.css").read_text(encoding="utf-8")
    template = _environment(redactor).from_string(folder.joinpath("report.html").read_text(encoding="utf-8"))
    digest = b64encode(sha256(style.encode()).digest()).decode()
    from markupsafe import Markup

    page = template.render(view=view, style=Markup(style), style_hash=Markup(digest))  # noqa: S704 - ours
    return f"{page.strip()}\n"


def _environment(redactor: Redactor) -> "Environment":
    """Everything that a template prints passes `finalize`: what forgot to be cleaned before is cleaned there."""
    from jinja2 import Environment, StrictUndefined

    def finalize(value: Any) -> Any:
        return visible(redactor.text(value)) if type(value) is str else value

    return Environment(
        autoescape=True, finalize=finalize, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
