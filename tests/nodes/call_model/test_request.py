import json
from importlib.metadata import PackageNotFoundError

import openai
import pytest
from pydantic import SecretStr

from nodes.call_model.endpoint import Endpoint
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.call_model.request import address, body, headers, messages_and_tools, unsendable_variable

ENDPOINT = Endpoint(model="m", base_url="http://llm.test/v1", api_key=SecretStr("hunter2-hunter2"))
MESSAGES = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Fix 😀\ud800.py"})
TOOL = {"type": "function", "function": {"name": "read_file", "description": "Read.", "parameters": {}}}


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("", "https://api.openai.com/v1/chat/completions"),
        ("http://llm.test/v1", "http://llm.test/v1/chat/completions"),
        ("http://llm.test/v1/", "http://llm.test/v1/chat/completions"),
        ("http://llm.test/a%2Fb?api-version=1", "http://llm.test/a%2Fb/chat/completions?api-version=1"),
    ],
)
def test_where_calls_go(base_url: str, expected: str) -> None:
    assert address(Endpoint(model="m", base_url=base_url), "/chat/completions") == expected


@pytest.mark.parametrize(
    "environment",
    [{}, {"OPENAI_ORG_ID": "o", "OPENAI_PROJECT_ID": "p"}, {"OPENAI_CUSTOM_HEADERS": "X-A: b\nnone\nUser-Agent: me"}],
)
def test_the_headers_are_those_of_the_sdk(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with openai.OpenAI(api_key="hunter2-hunter2", base_url=ENDPOINT.base_url) as sdk:
        theirs = {**sdk.default_headers, **sdk.auth_headers}
    expected = {
        name: value for name, value in theirs.items() if isinstance(value, str) and not name.startswith("X-Stainless-")
    }
    assert headers(ENDPOINT, environment) == expected


def test_an_sdk_whose_version_nobody_knows_is_named_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("nodes.call_model.request.version", unknown)
    assert headers(ENDPOINT, {})["User-Agent"] == "OpenAI/Python 0"


@pytest.mark.parametrize(
    "endpoint",
    [
        ENDPOINT.model_copy(update={"key_variable": "MENDGRAPH_API_KEY_LLM_TEST"}),
        ENDPOINT.model_copy(update={"embedded": True}),
    ],
    ids=["another host", "the embedded model"],
)
def test_what_is_meant_for_the_usual_endpoint_goes_to_no_other(endpoint: Endpoint) -> None:
    meant = {"OPENAI_ORG_ID": "o", "OPENAI_PROJECT_ID": "p", "OPENAI_CUSTOM_HEADERS": "X-Key: corp\nAuthorization: x"}
    assert headers(endpoint, meant) == headers(ENDPOINT, {})
    assert unsendable_variable(endpoint, {"OPENAI_ORG_ID": "ö"}) == ""


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({}, ""),
        ({"OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "", "OPENAI_CUSTOM_HEADERS": "X-A: b c\nnone\nX-B:"}, ""),
        ({"OPENAI_ORG_ID": "örg"}, "OPENAI_ORG_ID"),
        ({"OPENAI_ORG_ID": "org\n"}, "OPENAI_ORG_ID"),
        ({"OPENAI_PROJECT_ID": " p"}, "OPENAI_PROJECT_ID"),
        ({"OPENAI_CUSTOM_HEADERS": "X-A: b\nX-B: schön"}, "OPENAI_CUSTOM_HEADERS"),
        ({"OPENAI_CUSTOM_HEADERS": "X-A: b\rX-B: c"}, "OPENAI_CUSTOM_HEADERS"),
        ({"OPENAI_CUSTOM_HEADERS": "bad name: x"}, "OPENAI_CUSTOM_HEADERS"),
        ({"OPENAI_CUSTOM_HEADERS": ": x"}, "OPENAI_CUSTOM_HEADERS"),
    ],
)
def test_a_header_that_cannot_be_sent_is_named_by_its_variable(environment: dict[str, str], variable: str) -> None:
    assert unsendable_variable(ENDPOINT, environment) == variable


def test_the_body_is_one_json_object() -> None:
    call = Call(
        prompt=Prompt(
            messages=MESSAGES, tools=(TOOL,), stop=("x",), temperature=0.5, response_schema={"type": "object"}
        ),
        max_output_tokens=50,
        timeout_s=1.0,
        seed=7,
    )
    schema = {"name": "tool_call", "schema": {"type": "object"}, "strict": False}
    assert json.loads(body(ENDPOINT, call)) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_tokens": 50,
        "response_format": {"type": "json_schema", "json_schema": schema},
        "seed": 7,
        "stop": ["x"],
        "tools": [TOOL],
        "messages": list(MESSAGES),
    }


def test_a_prompt_by_itself() -> None:
    assert (
        messages_and_tools(Prompt(messages=MESSAGES[:1])) == b'{"messages":[{"role":"system","content":"Be brief."}]}'
    )
    both = json.loads(messages_and_tools(Prompt(messages=MESSAGES, tools=(TOOL,))))
    assert both == {"tools": [TOOL], "messages": list(MESSAGES)}
