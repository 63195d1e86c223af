"""How many tokens a prompt has for the embedded model: its server is asked to render and to split it.

Two requests to this machine, which cost less than reading one page of the prompt would.
Source: llama.cpp's server, POST /apply-template and POST /tokenize.
"""

from typing import Any, Final

import httpx2

from nodes.call_model.prompt import Prompt
from nodes.records import JsonMap

TIMEOUT_S: Final = 5.0

_NO_ANSWER: Final = (httpx2.HTTPError, ValueError, TypeError, LookupError, RecursionError)


async def count_tokens(client: httpx2.AsyncClient, base_url: str, prompt: Prompt) -> int | None:
    """The prompt's tokens, or None where the server does not tell."""
    root = base_url.removesuffix("/v1")
    asked: JsonMap = {"messages": list(prompt.messages), **({"tools": list(prompt.tools)} if prompt.tools else {})}
    try:
        rendered = await client.post(f"{root}/apply-template", json=asked, timeout=TIMEOUT_S)
        text = {"content": _document(rendered)["prompt"], "add_special": False, "parse_special": True}
        split = await client.post(f"{root}/tokenize", json=text, timeout=TIMEOUT_S)
        return len(_document(split)["tokens"])
    except _NO_ANSWER:
        return None


def _document(response: httpx2.Response) -> Any:
    return response.raise_for_status().json()
