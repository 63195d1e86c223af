"""The HTTP request of one call: its address, its headers and its bytes. Pure.

The history is not walked: the bytes of its messages are known, and are joined.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from nodes.call_model.endpoint import USUAL_KEY, USUAL_URL, Endpoint
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.call_model.schema_probe import response_format
from nodes.call_model.wire_cache import encoded
from nodes.records import JsonMap

OPENAI_HOST: Final = "api.openai.com"
CUSTOM_HEADERS: Final = "OPENAI_CUSTOM_HEADERS"

_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"([!-~]([ \t!-~]*[!-~])?)?")


def address(endpoint: Endpoint, path: str) -> str:
    """The address of one of the endpoint's services, such as `/chat/completions`; a query stays at the end."""
    root, question, query = (endpoint.base_url or USUAL_URL).partition("?")
    return f"{root.rstrip('/')}{path}{question}{query}"


def headers(endpoint: Endpoint, environment: Mapping[str, str]) -> dict[str, str]:
    """The headers of each request, as the openai SDK sends them, and as its environment variables ask for."""
    sent = {
        "Accept": "application/json",
        "Content-Type": "application/json",
        "User-Agent": f"OpenAI/Python {_sdk_version()}",
        "Authorization": f"Bearer {endpoint.api_key.get_secret_value()}",
    }
    return sent | {name: value for _, name, value in _of_the_environment(endpoint, environment)}


def unsendable_variable(endpoint: Endpoint, environment: Mapping[str, str]) -> str:
    """The environment variable that asks for a header which HTTP does not know; "" where there is none.

    Source: RFC 9110, sections 5.1 and 5.5; beyond ASCII a value is read by each server in its own way.
    """
    for variable, name, value in _of_the_environment(endpoint, environment):
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            return variable
    return ""


def parameters(endpoint: Endpoint, call: Call) -> JsonMap:
    """What the request says beside its messages and tools."""
    limit = "max_completion_tokens" if _is_openai(endpoint) else "max_tokens"
    said: JsonMap = {
        "model": endpoint.model or "unnamed",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": call.prompt.temperature,
        limit: call.max_output_tokens,
    }
    if call.prompt.response_schema is not None:
        # Beside the tools, of which the prompt tells: without them its front would change, and be read anew.
        said["response_format"] = response_format(call.prompt.response_schema)
    if call.seed is not None:
        said["seed"] = call.seed
    if call.prompt.stop:
        said["stop"] = list(call.prompt.stop)
    return said


def body(endpoint: Endpoint, call: Call) -> bytes:
    """The request's bytes. What differs from call to call stands behind the tools, and the messages at the end."""
    return messages_and_tools(call.prompt, encoded(parameters(endpoint, call))[:-1] + b",")


def messages_and_tools(prompt: Prompt, front: bytes = b"{") -> bytes:
    """The prompt itself as a JSON object, behind the fields of `front`."""
    known = prompt.encoded
    tools = (b'"tools":', known.tools, b",") if prompt.tools else ()
    return b"".join((front, *tools, b'"messages":[', b",".join(known.messages), b"]}"))


def _of_the_environment(endpoint: Endpoint, environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Each variable that asks for a header, with the header's name and value.

    They may hold secrets, and like the usual key they are meant for no other endpoint than the one it opens.
    """
    if endpoint.key_variable != USUAL_KEY or endpoint.embedded:
        return
    for name, variable in (("OpenAI-Organization", "OPENAI_ORG_ID"), ("OpenAI-Project", "OPENAI_PROJECT_ID")):
        if variable in environment:
            yield variable, name, environment[variable]
    for line in environment.get(CUSTOM_HEADERS, "").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            yield CUSTOM_HEADERS, name.strip(), value.strip()


def _is_openai(endpoint: Endpoint) -> bool:
    return not endpoint.base_url or OPENAI_HOST in endpoint.base_url


def _sdk_version() -> str:
    try:
        return version("openai")
    except PackageNotFoundError:
        return "0"
