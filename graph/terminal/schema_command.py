"""`mendgraph schema`: the JSON Schema of what `--json` and `--json-lines` write."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from graph.terminal.process_end import ExitCode


class Form(StrEnum):
    """What programs are given."""

    JSON = "json"
    JSON_LINES = "json-lines"


def schema(
    form: Annotated[Form, typer.Argument(metavar="[json|json-lines]", help="Of which option.")] = Form.JSON,
) -> int:
    """Print the JSON Schema of what --json or --json-lines write."""
    from graph.terminal.json_output import line_schema, object_schema

    found = object_schema() if form is Form.JSON else line_schema()
    typer.echo(json.dumps(found, indent=2, sort_keys=True))
    return ExitCode.FINISHED
