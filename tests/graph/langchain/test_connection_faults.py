import socket
import ssl

import httpx2
import pytest

from graph.langchain.failures import (
    cause_in_words,
    is_bad_certificate,
    setup_fault,
)
from nodes.records import ProviderErrorKind, ProviderFailure


@pytest.mark.parametrize(
    ("environment", "error", "message"),
    [
        (
            {"HTTP_PROXY": "proxy:1", "no_proxy": "x", "SSL_CERT_FILE": "/hunter2", "PATH": "/bin", "ALL_PROXY": ""},
            ValueError("hunter2"),
            "No connection can be set up (ValueError): look at HTTP_PROXY, SSL_CERT_FILE, no_proxy.",
        ),
        (
            {"ALL_PROXY": "socks5://me:hunter2@proxy:1"},
            ImportError("Using SOCKS proxy"),
            "No connection can be set up (a SOCKS proxy needs the package `socksio`): look at ALL_PROXY.",
        ),
        ({}, OSError(), "No connection can be set up (OSError): look at the proxy settings."),
    ],
)
def test_the_variable_is_named_and_never_quoted(environment: dict[str, str], error: Exception, message: str) -> None:
    kind = ProviderErrorKind.MODEL_UNAVAILABLE
    assert setup_fault(environment, error) == ProviderFailure(kind=kind, message=message, sent=False)


def refused(why: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = why
    return error


@pytest.mark.parametrize(
    ("cause", "words", "bad"),
    [
        (refused("certificate has expired"), "its TLS certificate is refused: certificate has expired", True),
        (refused(""), "its TLS certificate is refused: it is not to be trusted", True),
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
