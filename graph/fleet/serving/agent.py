"""What the configurations beside name: the machine for several users, as the tenants file has them, and its guard."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware

from mendgraph.graph.fleet.serving.admission import open_admitter
from mendgraph.graph.fleet.serving.machine import served
from mendgraph.graph.fleet.serving.request_guard import RequestGuard
from mendgraph.graph.machine.build import build_graph

graph = served(build_graph(), open_admitter)


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    """Ends the start of `langgraph dev` with one line where the tenants file is missing or wrong."""
    open_admitter()
    yield


app = Starlette(lifespan=lifespan, middleware=[Middleware(RequestGuard)])
