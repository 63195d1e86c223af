"""A task that nobody watches: it works in a git worktree on a branch of its own, and ends in a commit and a report.

The task may be a stranger's issue, and answers and names of files are a model's. What a forge such as GitHub reads
quotes them, so that they mention nobody, close nothing and start nothing.
"""

import json
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import load_prices
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.runs.run_words import command_line, short_id
from mendgraph.graph.runs.runs import get_run
from mendgraph.nodes.call_model.ledger import find_price
from mendgraph.nodes.execute_tools.copies.workspace_copies import (
    INSTALLED,
    Copy,
    commit_branch,
    leave_branch,
    make_branch,
    open_copy,
)
from mendgraph.nodes.execute_tools.processes.git import find_identity
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.execute_tools.store.run_folder import data_folder, workspace_folder
from mendgraph.nodes.language.display import count_of, one_line, plain, usd
from mendgraph.nodes.records import JsonMap, Outcome, OutcomeKind, ToolError

_WORKTREES: Final = "worktrees"
_MAX_COST_USD: Final = 5.0
"""What a task may cost whose model has a known price."""


class Published(NamedTuple):
    """What became of the work: its `branch`, `commit` and `worktree`, each "" where there is none.

    `said` is for people, `report` the text of a pull request; `problem` is what could not be done.
    """

    branch: str
    commit: str
    worktree: str
    said: str
    report: str
    problem: ToolError | None

    def as_map(self) -> JsonMap:
        """What programs get of it."""
        return {"branch": self.branch, "commit": self.commit, "worktree": self.worktree}


class Unattended(NamedTuple):
    """The worktree of a task, whose workspace is `root`.

    `wanted` are the `task`, the `branch`, whether to `commit`, and where the `report` goes: a file, "-" or "".
    """

    root: str
    copy: Copy
    wanted: Mapping[str, Any]

    def installed(self) -> tuple[str, ...]:
        """Folders in the person's own workspace of what is installed for the project, which its tests have to see."""
        links = (os.path.join(self.root, name) for name in INSTALLED)
        return tuple(os.path.realpath(link) for link in links if os.path.islink(link))

    def first_words(self) -> Sequence[str]:
        """Where it works, what is not there, and how to go on if it is cut off."""
        where = f"It works on the branch {self.wanted['branch']} from commit {self.copy.base[:9]}, in {self.root}"
        return (where, *self.copy.notes, f"If it is cut off, go on with: {command_line(self.root, 'resume')}")

    def publish(
        self, result: RunResult, context: AgentContext, models: Sequence[str], scrub: Callable[[str], str]
    ) -> Published:
        """Commit what was changed, if that is wanted and allowed, and take away what nobody needs any more."""
        known, outcome, branch = get_run(result.run_id, self.root), result.outcome, self.wanted["branch"]
        files = outcome.changed_files if isinstance(known, ToolError) else known.files
        passed, checked = _checks(outcome)
        finished = outcome.kind is OutcomeKind.FINISHED
        allowed = finished and (passed or not files or not context.require_checks)
        made: str | ToolError = ""
        if self.wanted["commit"] and allowed and files:
            about = (f"Changed: {_some(files)}.", checked, f"Run {result.run_id} of mendgraph, model: {_some(models)}.")
            made = self._commit(files, scrub(commit_message(self.wanted["task"], about)))
        commit, problem = ("", made) if isinstance(made, ToolError) else (made, None)
        over = allowed and problem is None and (self.wanted["commit"] or not files)
        problem = leave_branch(self.copy) if over else problem
        if commit:
            said = f"Committed {count_of(len(files), 'file')} to the branch {branch} ({commit[:9]})"
        elif over:
            said = "Nothing was changed: there is no commit, and no branch"
        else:
            why = "" if allowed else f", as {'nothing checked it' if finished else 'it did not finish'}"
            said = f"Nothing is committed{why}: the work is on the branch {branch}, in {self.root}"
        report = scrub(pull_request(self, result, context, files, models))
        return Published(branch * (not over or bool(commit)), commit, self.root * (not over), said, report, problem)

    def _commit(self, files: Sequence[str], message: str) -> str | ToolError:
        identity = find_identity(self.root)
        return identity if isinstance(identity, ToolError) else commit_branch(self.copy, files, message, identity)


def begin(workspace: str, task: str, run_id: str, **wanted: Any) -> Unattended | ToolError:
    """Make the worktree of a task, which wants a `commit` and a `report`, or not.

    The error says what is missing: a repository, a commit in it, somebody in whose name to commit.
    """
    path = os.path.abspath(workspace)
    problems = (find_identity(path) if wanted["commit"] else None, workspace_folder(path))
    if (problem := next((each for each in problems if isinstance(each, ToolError)), None)) is not None:
        return problem
    task = Redactor(known_values(os.environ)).text(task)
    words = re.match(r".{0,40}(?![a-z0-9])", "-".join(re.findall(r"[a-z0-9]{1,40}", task.lower())) or "-")
    name = f"{words[0] if words else ''}-{short_id(run_id)}".strip("-")
    folder = os.path.join(os.path.abspath(data_folder()), _WORKTREES, name)
    made = make_branch(path, folder, {**wanted, "task": task, "branch": f"mendgraph/{name}"})
    return made if isinstance(made, ToolError) else Unattended(made.root, made, made.wanted)


def taken_up(root: str) -> Unattended | None:
    """The task whose worktree this folder is in, None where it is no such one."""
    folder, real = os.path.join(os.path.realpath(data_folder()), _WORKTREES), os.path.realpath(root)
    name = os.path.relpath(real, folder).split(os.sep)[0]
    copy = None if name in {os.curdir, os.pardir} else open_copy(os.path.join(folder, name))
    return None if copy is None or not copy.wanted else Unattended(real, copy, copy.wanted)


def cost_limit(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A limit on the cost, where the settings name one model, whose price is known, and no limit."""
    prices, model = load_prices(), settings.get("model")
    known = model and not isinstance(prices, ToolError) and find_price(prices, model) is not None
    return {} if not known or settings.get("fallback_models") else {"max_cost_usd": _MAX_COST_USD}


# --- What a forge reads. Pure

_FORGE: Final = re.compile(r"[@#]+(?=\w)|(?<=\bGH)-(?=\d)|\bhttps?://", re.IGNORECASE)
"""What makes mentions and references to issues out of text; words in brackets, such as [skip ci], are orders."""

_MOST_QUOTED: Final = 8_000  # characters; GitHub takes 65,536 in all
_MOST_FILES: Final = 100


def commit_message(task: str, about: Sequence[str]) -> str:
    """The message of a commit: a subject of 72 characters at most, made from the task, and what there is to know."""
    first = next(filter(str.strip, task.splitlines()), task)
    subject = textwrap.shorten(plain(first), 72, placeholder="...")
    subject = subject if len(subject) > len("...") else one_line(first, 72)
    body = "\n".join(textwrap.fill(one_line(each, 1_000), 72, break_long_words=False) for each in about)
    return f"{_inert(subject)}\n\n{_inert(body)}\n"


def pull_request(
    task: Unattended, result: RunResult, context: AgentContext, files: Sequence[str], models: Sequence[str]
) -> str:
    """The text of a pull request, as Markdown: what was asked, what came of it, and how to come to it again."""
    outcome = result.outcome
    ended = f"{outcome.kind.value} ({outcome.reason.value})"
    more = f"- and {len(files) - _MOST_FILES} more" if files[_MOST_FILES:] else ""
    words = ["mendgraph", "--unattended", *(["--model", context.model] if context.model else []), "--"]
    usual, told = AgentContext.unattended().model_dump(mode="json"), {"workspace", "model", "readable_folders"}
    said = context.model_dump(mode="json", exclude=told).items()
    chosen = [f"# {name} = {json.dumps(value)}" for name, value in said if value != usual[name]]
    again = [f"git switch --detach {task.copy.base}", *chosen, shlex.join([*words, task.wanted["task"]])]
    parts = {
        "What was asked": _quoted(task.wanted["task"]),
        "What was changed": "\n".join([f"- {_code(each)}" for each in files[:_MOST_FILES]] + [more]) or "No file.",
        "How it was checked": _inert(_checks(outcome)[1]),
        "How it ended": f"{ended}, in run {_code(result.run_id)}:\n\n{_quoted(outcome.answer or outcome.message)}",
        "What it used": _used(outcome.usage, context, models),
        "How to do it again": _quoted("\n".join(again), "sh"),
    }
    texts = "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items())
    return f"{texts}\n\nMade by mendgraph, unattended. Texts in boxes are quoted: of who asked, and of the model.\n"


def _checks(outcome: Outcome) -> tuple[bool, str]:
    """Whether the changes were checked, and that in words."""
    passed = outcome.checks == "passed"
    return passed, "Its checks passed." if passed else "Not checked."


def _used(used: JsonMap, context: AgentContext, models: Sequence[str]) -> str:
    cost, most_cost = used.get("cost_usd"), context.max_cost_usd
    rows = {
        "model calls": (used.get("calls_in_current_turn", 0), context.max_calls_per_turn),
        "input tokens": (used.get("total_input_tokens", 0), context.max_input_tokens_per_session),
        "output tokens": (used.get("total_output_tokens", 0), context.max_output_tokens_per_session),
        "seconds": (round(used.get("seconds_in_current_turn", 0.0)), context.max_seconds),
        "cost": ("no price is known" if cost is None else usd(cost), most_cost and usd(most_cost)),
    }

    def cell(value: Any) -> str:
        return "no limit" if value is None else value if isinstance(value, str) else f"{value:,.0f}"

    lines = [f"| {name} | {cell(count)} | {cell(most)} |" for name, (count, most) in rows.items()]
    return "\n".join([f"Model: {', '.join(map(_code, models))}", "", "| | used | limit |", "|---|---|---|", *lines])


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:20], *[f"and {len(names) - 20} more"] * bool(names[20:])])


def _inert(text: str) -> str:
    while (found := _FORGE.sub("", text)) != text:  # what is left may come together to another one
        text = found
    return text.translate({ord("["): "(", ord("]"): ")", ord("<"): "(", ord(">"): ")"})


def _code(text: str) -> str:
    """The text as code in a line of Markdown."""
    line = one_line(text)
    fence = "`" * (_longest_run(line) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"`{line}`"


def _quoted(text: str, language: str = "text") -> str:
    """The text as a block of code, which nothing in it can end."""
    shown = plain("\n".join(text.splitlines()))
    shown = shown if len(shown) <= _MOST_QUOTED else f"{shown[: _MOST_QUOTED - 3]}..."
    fence = "`" * max(3, _longest_run(shown) + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
