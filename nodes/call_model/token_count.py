"""How many tokens a prompt has for the embedded model: its server is asked to render and to split it.

Two requests to this machine, which cost less than reading one page of the prompt would.
Source: llama.cpp's server, POST /apply-template and POST /tokenize.
"""

from typing import Any, Final

import httpx2

from nodes.call_model.prompt import Prompt
from nodes.call_model.request import messages_and_tools
from nodes.call_model.wire_cache import encoded

TIMEOUT_S: Final = 5.0

_NO_ANSWER: Final = (httpx2.HTTPError, ValueError, TypeError, LookupError, RecursionError)


def count_tokens(client: httpx2.Client, base_url: str, prompt: Prompt) -> int | None:
    """The prompt's tokens, or None where the server does not tell."""
    root = base_url.removesuffix("/v1")
    try:
        rendered = client.post(f"{root}/apply-template", content=messages_and_tools(prompt), timeout=TIMEOUT_S)
        split = client.post(f"{root}/tokenize", content=_question(rendered), timeout=TIMEOUT_S)
        return _count(split)
    except _NO_ANSWER:
        return None


async def acount_tokens(client: httpx2.AsyncClient, base_url: str, prompt: Prompt) -> int | None:
    """Count without blocking the event loop."""
    root = base_url.removesuffix("/v1")
    try:
        rendered = await client.post(f"{root}/apply-template", content=messages_and_tools(prompt), timeout=TIMEOUT_S)
        split = await client.post(f"{root}/tokenize", content=_question(rendered), timeout=TIMEOUT_S)
        return _count(split)
    except _NO_ANSWER:
        return None


def _question(rendered: httpx2.Response) -> bytes:
    return encoded({"content": _document(rendered)["prompt"], "add_special": False, "parse_special": True})


def _count(split: httpx2.Response) -> int:
    return len(_document(split)["tokens"])


def _document(response: httpx2.Response) -> Any:
    return response.raise_for_status().json()
