"""The tables of docs/reference/, made from the code when `make docs` builds the site.

A page marks a table's place with a comment such as `<!-- table: settings -->`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from mendgraph.graph.cli import app
from mendgraph.graph.configuration.context import SETTINGS, AgentContext
from mendgraph.graph.terminal.process_end import MEANINGS
from mendgraph.nodes.language.formats.table import FORMATS
from mendgraph.nodes.records import OutcomeKind, StopReason


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put each table where its comment stands, and name functions whose files are not part of the site without a link.

    An unknown table ends the build (KeyError).
    """
    markdown = re.sub(r"\[(`\w+`)\]\(\.\./(?:graph|nodes)/[\w/]+\.py\)", r"\1", markdown)
    return re.sub(r"<!-- table: (\w+) -->", lambda match: "\n".join(TABLES[match[1]]()), markdown)


def rows(header: Sequence[str], body: Iterator[Sequence[str]]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)

    for cells in body:
        escaped = [cell.replace("\n", " ") if "`" in cell else cell.replace("|", "\\|") for cell in cells]
        yield f"| {' | '.join(escaped)} |"


def settings() -> Iterator[str]:
    """Every field of AgentContext."""
    return rows(("Field and option", "Type and default", "What it does"), map(setting_row, AgentContext.model_fields))


def setting_row(name: str) -> Sequence[str]:
    """One field: its name and option, its type and default, its description."""
    field = AgentContext.model_fields[name]
    annotation = getattr(field.annotation, "__name__", None)
    if annotation is None or "[" in repr(field.annotation):
        annotation = re.sub(r"(?:[a-z_]+\.)+", "", repr(field.annotation))

    names = f"`{name}`"
    if option := SETTINGS[name].option:
        names += f"<br>`{option.replace(',', ', ')}`"

    default = f"`{field.get_default(call_default_factory=True)!r}`"
    return (names, f"`{annotation}`<br>{default}", field.description or "")


def commands() -> Iterator[str]:
    """The help text of each command."""
    for words in command_names(get_command(app)):
        help_text = CliRunner().invoke(app, [*words, "--help"], prog_name="mendgraph").output
        yield f"## mendgraph {' '.join(words)}".rstrip()
        yield f"\n```text\n{help_text.strip()}\n```\n"


def command_names(command: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words that name a command and each command below it."""
    yield above
    below: Mapping[str, Any] = getattr(command, "commands", {})
    for name, subcommand in below.items():
        if not subcommand.hidden:
            yield from command_names(subcommand, (*above, name))


def exit_codes() -> Iterator[str]:
    """The exit codes of the command."""
    return rows(("Exit code", "Meaning"), ((str(int(code)), meaning) for code, meaning in MEANINGS.items()))


def stop_reasons() -> Iterator[str]:
    """Why a run ends, and how to continue."""
    return rows(("Reason", "Outcome", "How to continue"), map(stop_row, StopReason))


def stop_row(reason: StopReason) -> Sequence[str]:
    """One reason: its name, the kind of the outcome, the remedy."""
    if reason is StopReason.ANSWERED:
        kind = OutcomeKind.FINISHED
    elif reason.is_limit:
        kind = OutcomeKind.BUDGET_STOP
    else:
        kind = OutcomeKind.SYSTEM_ERROR

    return (f"`{reason.value}`", f"`{kind.value}`", reason.how_to_go_on)


def formats() -> Iterator[str]:
    """Each format in which a call is read, with an example."""
    for call_format in FORMATS:
        example = call_format.example("read_file", {"path": "calc.py"})
        yield f"**{call_format.name}**\n\n~~~~text\n{example}\n~~~~\n"


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "settings": settings,
    "commands": commands,
    "exit_codes": exit_codes,
    "stop_reasons": stop_reasons,
    "formats": formats,
}
