import json
import ssl
from typing import Any

import httpx2
import pytest
from hypothesis import given, strategies as st
from pydantic import SecretStr

from nodes.call_model.endpoint import Endpoint
from nodes.call_model.failures import (
    BrokenConnectionError,
    ConnectTimeoutError,
    IdleTimeoutError,
    StatusError,
    StreamedError,
    TotalTimeoutError,
    describe_failure,
)
from nodes.call_model.retry import TRANSIENT
from nodes.records import ProviderErrorKind, ProviderFailure

URL = "http://llm.test/v1"
ENDPOINT = Endpoint(model="m", base_url=URL)


def status(code: int, body: Any = None, retry_after_s: float | None = None) -> StatusError:
    """The refusal of a request; `body` is the error object inside, or text."""
    return StatusError(code, {"error": body} if isinstance(body, dict) else body, retry_after_s)


def error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"message": message, "code": code}


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (httpx2.ReadTimeout("timed out"), "timeout", f"{URL} did not answer in time (timed out)."),
        (ConnectTimeoutError(10.0), "timeout", f"{URL} did not answer in time (no connection within 10 s)."),
        (
            IdleTimeoutError(2.5),
            "timeout",
            f"{URL} did not answer in time (the reply had begun, and nothing more came for 2.5 s).",
        ),
        (TotalTimeoutError(30.0), "timeout", f"{URL} did not answer in time (no complete reply within 30 s)."),
        (
            BrokenConnectionError(),
            "connection",
            f"{URL} cannot be reached (Connection error.). Is the address right and the server running?",
        ),
        (
            httpx2.ConnectError("no route"),
            "connection",
            f"{URL} cannot be reached (no route). Is the address right and the server running?",
        ),
        (status(401, error("bad key")), "authentication", f"{URL} refuses the key: check OPENAI_API_KEY (bad key)."),
        (status(403, error("no")), "authentication", f"{URL} refuses the key: check OPENAI_API_KEY (no)."),
        (
            status(404, error("no m here")),
            "model_unavailable",
            f"{URL} does not have this model (no m here). Choose one with --model.",
        ),
        (
            status(429, {"message": "no credit", "code": "insufficient_quota"}),
            "authentication",
            f"{URL} refuses the key: check OPENAI_API_KEY (no credit).",
        ),
        (status(429, error("slow\ndown")), "rate_limited", f"{URL} says: too many requests (slow)."),
        (status(400, error("temperature?")), "bad_request", f"{URL} refuses the request (temperature?)."),
        (status(422, error("no")), "bad_request", f"{URL} refuses the request (no)."),
        (
            status(400, error("This model's maximum context is 8 tokens")),
            "context_overflow",
            f"The conversation is longer than the model's window at {URL} (This model's maximum context is 8 tokens).",
        ),
        (
            status(400, error("too big", "context_length_exceeded")),
            "context_overflow",
            f"The conversation is longer than the model's window at {URL} (too big).",
        ),
        (
            status(500, error("x", "exceed_context_size_error")),
            "context_overflow",
            f"The conversation is longer than the model's window at {URL} (x).",
        ),
        (status(500, "<html>\nbroken"), "server_error", f"{URL} failed (Error code: 500)."),
        (status(503, error("")), "server_error", f"{URL} failed (StatusError)."),
        (status(408), "server_error", f"{URL} failed (Error code: 408)."),
        (status(409), "server_error", f"{URL} failed (Error code: 409)."),
        (StreamedError({"message": "overloaded"}), "server_error", f"{URL} failed (overloaded)."),
        (
            json.JSONDecodeError("Expecting value", "x", 0),
            "server_error",
            f"{URL} failed (it sent no chat completion: Expecting value: line 1 column 1 (char 0)).",
        ),
        (ValueError(), "server_error", f"{URL} failed (ValueError)."),
    ],
)
def test_each_error_has_its_kind_and_says_what_to_do(raised: Exception, kind: str, message: str) -> None:
    assert describe_failure(raised, ENDPOINT) == ProviderFailure(kind=ProviderErrorKind(kind), message=message)


@pytest.mark.parametrize(
    "said",
    [
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length",
        "Input is too long for requested model.",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "prompt token count of 65000 exceeds the limit of 64000",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`",
        "`inputs` must have less than 1024 tokens. Given: 5000",
        "Range of input length should be [1, 30720]",
        "too many tokens: size limit exceeded by 100 tokens. The limit for this model is 128000 tokens.",
        "Too many input tokens. Max input tokens: 8192, request input token count: 9000",
        "The decoder prompt (length 9001) is longer than the maximum model length of 8192.",
        "Your request exceeded model token limit: 262144 (requested: 300000)",
        "Prompt exceeds max length",
        "prompt is too long: 212345 tokens > 200000 maximum",
        "'max_tokens' is too large: 2000. This model's maximum context length is 4096 tokens (2000 > 4096 - 2104).",
    ],
)
def test_each_way_to_say_that_a_prompt_is_too_long(said: str) -> None:
    assert describe_failure(status(400, error(said)), ENDPOINT).kind is ProviderErrorKind.CONTEXT_OVERFLOW


def test_an_overflow_that_is_told_by_its_code_alone() -> None:
    raised = status(400, error("too big", "model_max_prompt_tokens_exceeded"))
    assert describe_failure(raised, ENDPOINT).kind is ProviderErrorKind.CONTEXT_OVERFLOW


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        (400, "max_tokens: 2048 > 1024, which is the maximum allowed number of output tokens for m", "bad_request"),
        (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.", "bad_request"),
        (400, "`max_new_tokens` must be strictly positive", "bad_request"),
        (400, "Unrecognized request argument supplied: context_size", "bad_request"),
        (400, "Request exceeds the maximum number of tokens per minute", "bad_request"),
        (413, "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 8000", "bad_request"),
        (429, "Too many tokens, please wait before trying again.", "rate_limited"),
        (429, "input token count exceeds the limit of 6000 tokens per minute", "rate_limited"),
    ],
)
def test_what_speaks_of_tokens_and_is_no_overflow(code: int, said: str, kind: str) -> None:
    assert describe_failure(status(code, error(said)), ENDPOINT).kind is ProviderErrorKind(kind)


def broken_by(cause: BaseException) -> BrokenConnectionError:
    """A connection that broke for this reason, as it is raised."""
    broken = BrokenConnectionError()
    broken.__cause__ = httpx2.ConnectError(str(cause))
    broken.__cause__.__cause__ = cause
    return broken


def test_a_broken_connection_says_why() -> None:
    message = f"{URL} cannot be reached (the TLS handshake failed). Is the address right and the server running?"
    failure = describe_failure(broken_by(ssl.SSLError(1, "[SSL] secret words")), ENDPOINT)
    assert failure == ProviderFailure(kind=ProviderErrorKind.CONNECTION, message=message)


def test_a_proxy_on_the_way_is_told_of() -> None:
    told = "the connection is refused; the way there leads through a proxy of the environment"
    message = f"{URL} cannot be reached ({told}). Is the address right and the server running?"
    assert describe_failure(broken_by(ConnectionRefusedError()), ENDPOINT, proxied=True).message == message


def test_a_certificate_that_is_refused_is_refused_the_next_time_too() -> None:
    failure = describe_failure(broken_by(ssl.SSLCertVerificationError(1, "x")), ENDPOINT)
    told = "its TLS certificate is refused: it is not to be trusted"
    message = f"{URL} cannot be trusted ({told}). Is the address right? SSL_CERT_FILE names authorities."
    assert failure == ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)
    assert failure.kind not in TRANSIENT


def test_a_header_that_was_not_sent_is_not_quoted() -> None:
    failure = describe_failure(httpx2.LocalProtocolError("Illegal header value b'hunter2'"), ENDPOINT)
    assert "hunter2" not in failure.message


@pytest.mark.parametrize(
    ("raised", "detail"),
    [
        (BrokenConnectionError(), "Connection error."),
        (ValueError("bad"), "it sent no chat completion: bad"),
        (status(500, error("x")), "x"),
    ],
)
def test_a_reply_that_had_begun_broke_off(raised: Exception, detail: str) -> None:
    assert describe_failure(raised, ENDPOINT, begun=True) == ProviderFailure(
        kind=ProviderErrorKind.INCOMPLETE_STREAM, message=f"The reply of {URL} broke off ({detail})."
    )


def test_a_timeout_in_the_middle_is_a_timeout() -> None:
    failure = describe_failure(IdleTimeoutError(1.0), ENDPOINT, begun=True)
    assert failure.kind is ProviderErrorKind.TIMEOUT


def test_the_endpoints_wish_is_kept() -> None:
    assert describe_failure(status(429, error("later"), 0.25), ENDPOINT).retry_after_s == 0.25


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"message": "too long"}, "too long"),
        ({"message": ["too"]}, "An error occurred during streaming"),
        ("overloaded", "An error occurred during streaming"),
    ],
)
def test_a_failure_in_the_stream_is_told_in_its_words(said: object, message: str) -> None:
    assert describe_failure(StreamedError(said), ENDPOINT).message == f"{URL} failed ({message})."


def test_an_overflow_in_the_stream_is_one() -> None:
    failure = describe_failure(StreamedError({"message": "x", "code": "context_length_exceeded"}), ENDPOINT, begun=True)
    assert failure.kind is ProviderErrorKind.CONTEXT_OVERFLOW


def test_a_refused_key_is_named_by_its_variable() -> None:
    endpoint = ENDPOINT.model_copy(update={"key_variable": "MENDGRAPH_API_KEY_LLM_TEST"})
    message = f"{URL} refuses the key: check MENDGRAPH_API_KEY_LLM_TEST (no)."
    assert describe_failure(status(401, error("no")), endpoint).message == message


@pytest.mark.parametrize(
    ("endpoint", "where"),
    [
        (Endpoint(model="m", embedded=True, base_url=URL), "the embedded model"),
        (Endpoint(model="m"), "the OpenAI endpoint"),
        (Endpoint(model="m", base_url="https://me:p@ss@llm.test/v1"), "https://llm.test/v1"),
    ],
)
def test_the_endpoint_is_named_without_credentials(endpoint: Endpoint, where: str) -> None:
    assert describe_failure(status(500, error("x")), endpoint).message == f"{where} failed (x)."


@pytest.mark.parametrize(
    "said",
    [
        "Incorrect API key provided: sk-abcd**********wxyz.",
        "header was Authorization: Bearer eyJhbGciOi",
        "unknown token hunter2-hunter2",
    ],
)
def test_an_endpoint_that_quotes_the_key_is_not_quoted(said: str) -> None:
    endpoint = Endpoint(model="m", base_url=URL, api_key=SecretStr("hunter2-hunter2"))
    message = describe_failure(status(401, error(said)), endpoint).message
    assert "***" in message
    assert not any(secret in message for secret in ("sk-abcd", "wxyz", "eyJ", "hunter2"))


@given(st.text("0123456789abcdef-_", min_size=4, max_size=40), st.text(max_size=30), st.text(max_size=30))
def test_the_key_never_shows(key: str, before: str, after: str) -> None:
    endpoint = Endpoint(model="m", api_key=SecretStr(key))
    assert key not in describe_failure(status(401, error(f"{before}{key}{after}")), endpoint).message


@pytest.mark.parametrize(
    ("key", "message"), [("sent", f"{URL} failed (what was ***)."), ("was", f"{URL} failed (what was sent).")]
)
def test_three_characters_are_no_key(key: str, message: str) -> None:
    endpoint = Endpoint(model="m", base_url=URL, api_key=SecretStr(key))
    assert describe_failure(status(500, error("what was sent")), endpoint).message == message


def test_a_long_detail_is_cut() -> None:
    assert describe_failure(status(500, error("x" * 1_000)), ENDPOINT).message == f"{URL} failed ({'x' * 300})."
