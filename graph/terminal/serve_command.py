"""`mendgraph serve`: the agent for a team, as an Agent-Protocol server of which there may be several."""

import secrets
from typing import Annotated

import typer

from graph.terminal.run_commands import options_without_a_task, refused
from nodes.records import ToolError, ToolErrorCode

NewToken = Annotated[
    bool, typer.Option("--new-token", help="Print a new token, and what the tenants file holds of it.")
]
Host = Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen at; 0.0.0.0 is every one.")]
Port = Annotated[int, typer.Option("--port", metavar="PORT", min=1, max=65_535, help="Port to listen at.")]
Configuration = Annotated[
    bool, typer.Option("--configuration", help="Print the file that `langgraph dev --config` takes, for one machine.")
]


def serve(
    context: typer.Context,
    host: Host = "127.0.0.1",
    port: Port = 2026,
    new_token: NewToken = False,
    configuration: Configuration = False,
) -> int:
    """Serve the agent to several users, over the Agent Protocol.

    MENDGRAPH_TENANTS names the file with the users, MENDGRAPH_STORE_URL the PostgreSQL database. Start as many of these
    as you like with the same two, on one machine or several that see the same folders.
    """
    chosen = options_without_a_task(context)
    if new_token:
        return _tell_token()
    from graph.serving.engine import CONFIGURATION, run_server
    from graph.serving.opening import CannotServeError

    if configuration:
        typer.echo(CONFIGURATION)
        return 0
    try:
        return run_server(host, port)
    except CannotServeError as error:
        return refused(chosen, ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=str(error)))


def _tell_token() -> int:
    from graph.serving.tenants import token_hash

    token = f"mg_{secrets.token_urlsafe(32)}"
    typer.echo(f"token, for the user alone:   {token}")
    typer.echo(f'line for the tenants file:   token_sha256 = ["{token_hash(token)}"]')
    return 0
