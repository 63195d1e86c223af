"""What `langgraph dev` starts beside its own for several users: a look whether there are any, and the guard."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware

from mendgraph.graph.fleet.serving.opening import open_desk
from mendgraph.graph.fleet.serving.request_guard import RequestGuard


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    """Ends the server's start with one line where the tenants file is missing or wrong."""
    open_desk()
    yield


app = Starlette(lifespan=lifespan, middleware=[Middleware(RequestGuard)])
