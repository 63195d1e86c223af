"""What `langgraph dev` starts beside its own: nothing but the look whether there are users, so that it fails early."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from graph.serving.opening import open_desk


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    """Ends the server's start with one line where the tenants file is missing or wrong."""
    open_desk()
    yield


app = Starlette(lifespan=lifespan)
