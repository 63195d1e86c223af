import socket
import ssl

import httpx2
import pytest

from graph.langchain.failures import (
    cause_in_words,
    header_fault,
    is_bad_certificate,
    setup_fault,
    unsendable_variable,
)
from nodes.records import ProviderErrorKind, ProviderFailure

LOOK_AT = "No connection can be set up (ValueError): look at "


def unusable(message: str) -> ProviderFailure:
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message, sent=False)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"HTTP_PROXY": "http://fine:1", "ALL_PROXY": "socks5://me:hunter2@proxy:1"},
            "ALL_PROXY names a SOCKS proxy, for which the package `socksio` is not installed.",
        ),
        (
            {"https_proxy": "hunter2:bar", "HTTPS_PROXY": "http://fine:1"},
            "https_proxy holds no address of a proxy: it should look like http://proxy.example:3128.",
        ),
        (
            {"HTTPS_PROXY": "gopher://me:hunter2@proxy"},
            "HTTPS_PROXY holds no address of a proxy: it should look like http://proxy.example:3128.",
        ),
        (
            {"HTTP_PROXY": "proxy:1", "no_proxy": "x", "SSL_CERT_FILE": "/hunter2", "PATH": "/bin"},
            f"{LOOK_AT}HTTP_PROXY, no_proxy, SSL_CERT_FILE.",
        ),
        ({}, f"{LOOK_AT}the proxy settings."),
    ],
)
def test_the_variable_is_named_and_never_quoted(environment: dict[str, str], message: str) -> None:
    fault = setup_fault(environment, ValueError("hunter2"))
    assert fault == unusable(message)
    assert "hunter2" not in fault.message


def test_a_header_that_cannot_be_sent() -> None:
    message = "OPENAI_ORG_ID cannot be sent as a header: it holds a character that no header may have."
    assert header_fault("OPENAI_ORG_ID") == unusable(message)


def refused(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    return error


@pytest.mark.parametrize(
    ("cause", "words", "bad"),
    [
        (refused(10), "its TLS certificate is refused: it has expired", True),
        (refused(18), "its TLS certificate is refused: it is signed by itself", True),
        (refused(99), "its TLS certificate is refused: it is not to be trusted", True),
        (ssl.SSLError(1, "record layer failure"), "the TLS handshake failed", False),
        (socket.gaierror(-2, "Name or service not known"), "its name is not found", False),
        (ConnectionRefusedError(111, "refused"), "the connection is refused", False),
        (httpx2.ProxyError("407 Proxy Authentication Required"), "the proxy does not let it through", False),
        (OSError(113, "No route to host"), "", False),
    ],
)
def test_the_cause_is_found_however_it_is_wrapped(cause: Exception, words: str, bad: bool) -> None:
    caused = httpx2.ConnectError("failed")
    caused.__cause__ = cause
    while_handling = httpx2.ConnectError("failed")
    while_handling.__context__ = cause
    grouped = OSError("All connection attempts failed")
    grouped.__cause__ = ExceptionGroup("several", [ValueError(), cause])
    for error in (cause, caused, while_handling, grouped):
        assert (cause_in_words(error), is_bad_certificate(error)) == (words, bad)


def test_an_error_that_came_from_itself_has_an_end() -> None:
    error = ValueError()
    error.__context__ = other = ValueError()
    other.__context__ = error
    assert cause_in_words(error) == ""


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
    assert unsendable_variable(environment) == variable
