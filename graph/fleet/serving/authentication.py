"""Who asks, and what of a server's own things they may see: the `auth` of the configurations beside.

Everything that is not allowed here is refused: users have their own threads and those threads' runs, and the one
assistant that is everybody's. The agent keeps nothing in the server's store.
"""

from collections.abc import Mapping
from typing import Any

from langgraph_sdk import Auth

from mendgraph.graph.fleet.serving.admission import open_admitter

auth = Auth()

OWNER = "owner"
"""The key of a thread's metadata that says whose it is."""


def token_of(headers: Mapping[Any, Any]) -> str:
    """The bearer token among the headers, "" where there is none. Servers give them as text or as bytes."""
    for name, value in headers.items():
        if _text(name).lower() == "authorization":
            scheme, _, token = _text(value).partition(" ")
            return token.strip() if scheme.lower() == "bearer" else ""
    return ""


@auth.authenticate
async def authenticate(headers: dict[str, str]) -> Auth.types.MinimalUserDict:
    """The user who has this token."""
    tenant = open_admitter().tenants.of_token(token_of(headers))
    if tenant is None:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Send the header Authorization: Bearer <token>.")
    return {"identity": tenant.name, "display_name": tenant.name, "is_authenticated": True}


@auth.on
async def refuse(ctx: Auth.types.AuthContext, value: Any) -> bool:  # noqa: ARG001 - the signature is the server's
    """Whatever nobody has thought of. Some servers ask for runs by themselves, and have looked whose they are."""
    return str(ctx.resource) == "runs"


@auth.on.threads
async def own_threads(ctx: Auth.types.AuthContext, value: Any) -> dict[str, str]:
    """A thread belongs to whoever made it; nobody else learns that it is there."""
    if isinstance(value, dict) and (value.get("kwargs") or {}).get("webhook"):
        raise Auth.exceptions.HTTPException(status_code=422, detail="A run may not have a webhook here.")
    if isinstance(value, dict) and ctx.action in {"create", "create_run", "update"}:
        metadata = value.get("metadata")
        if isinstance(metadata, dict):
            metadata[OWNER] = ctx.user.identity  # in its place: servers look at this very map
        else:
            value["metadata"] = {OWNER: ctx.user.identity}
    return {OWNER: ctx.user.identity}


async def known_assistants(ctx: Auth.types.AuthContext, value: Any) -> bool:  # noqa: ARG001 - the same
    """There is one, the machine itself, and nobody makes others: settings come with each request."""
    return True


auth.on.assistants.read(known_assistants)
auth.on.assistants.search(known_assistants)


def _text(raw: Any) -> str:
    return raw.decode("latin-1") if isinstance(raw, bytes) else str(raw)
