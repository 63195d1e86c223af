"""Why there is no connection: what the environment says that cannot be used, and which way one broke. In words.

A value of the environment is never quoted: the address of a proxy may hold a password.
"""

import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Final

import httpx2

from nodes.records import ProviderErrorKind, ProviderFailure

SETUP_ERRORS: Final = (ValueError, TypeError, ImportError, OSError, httpx2.InvalidURL)
"""What building a client raises where the environment names a proxy or certificates that it cannot use."""

PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")

_CERTIFICATE_CODES: Final = {
    9: "it is not valid yet",
    10: "it has expired",
    18: "it is signed by itself",
    19: "it is signed by an authority that signs itself",
    20: "its authority is not known here",
    62: "it is for another name",
    64: "it is for another address",
}
"""Source: X509_V_ERR_* of OpenSSL's x509_vfy.h."""

_DEEPEST: Final = 20

CUSTOM_HEADERS: Final = "OPENAI_CUSTOM_HEADERS"

_HEADER_NAME: Final = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"([!-~]([ \t!-~]*[!-~])?)?")


def unsendable_variable(environment: Mapping[str, str]) -> str:
    """The environment variable that makes the openai SDK send a header which HTTP does not know; "" where none does.

    Source: RFC 9110, sections 5.1 and 5.5; beyond ASCII a value is read by each server in its own way.
    """
    asked = [(name, "x", environment[name]) for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID") if name in environment]
    lines = (line.partition(":") for line in environment.get(CUSTOM_HEADERS, "").split("\n"))
    asked += [(CUSTOM_HEADERS, name.strip(), value.strip()) for name, colon, value in lines if colon]
    bad = (each for each, name, value in asked if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)))
    return next(bad, "")


def header_fault(variable: str) -> ProviderFailure:
    """The variable asks for a header that cannot be sent."""
    return _unusable(f"{variable} cannot be sent as a header: it holds a character that no header may have.")


def setup_fault(environment: Mapping[str, str], error: Exception) -> ProviderFailure:
    """What to say where building a client raised `error`, one of `SETUP_ERRORS`."""
    for name, address in _set(environment, PROXIES):
        try:
            url = address if "://" in address else f"http://{address}"
            httpx2.Client(proxy=url, trust_env=False, verify=False).close()
        except ImportError:
            return _unusable(f"{name} names a SOCKS proxy, for which the package `socksio` is not installed.")
        except SETUP_ERRORS:
            return _unusable(f"{name} holds no address of a proxy: it should look like http://proxy.example:3128.")
    named = [name for name, _ in _set(environment, (*PROXIES, "NO_PROXY", *CERTIFICATES))]
    return _unusable(
        f"No connection can be set up ({type(error).__name__}): look at {', '.join(named) or 'the proxy settings'}."
    )


def is_bad_certificate(error: BaseException) -> bool:
    """Was a connection given up because the endpoint could not prove who it is? It cannot the next time either."""
    return any(isinstance(each, ssl.SSLCertVerificationError) for each in chain_of(error))


def cause_in_words(error: BaseException) -> str:
    """Which way a connection broke, out of a closed list; "" where it is none of those."""
    for each in chain_of(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            why = _CERTIFICATE_CODES.get(getattr(each, "verify_code", 0), "it is not to be trusted")
            return f"its TLS certificate is refused: {why}"
        if isinstance(each, ssl.SSLError):
            return "the TLS handshake failed"
        if type(each).__name__ == "gaierror":  # which only the socket module has
            return "its name is not found"
        if isinstance(each, ConnectionRefusedError):
            return "the connection is refused"
        if isinstance(each, httpx2.ProxyError):
            return "the proxy does not let it through"
    return ""


def _unusable(message: str) -> ProviderFailure:
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message, sent=False)


def _set(environment: Mapping[str, str], names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Those variables that hold something, with it; of a name in both cases the lower one counts, as in urllib."""
    for name in names:
        for each in (name.lower(), name):
            if environment.get(each):
                yield each, environment[each]
                break


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, the members of groups too."""
    waiting: list[BaseException] = [error]
    for _ in range(_DEEPEST):
        if not waiting:
            return
        each = waiting.pop(0)
        yield each
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        waiting += [came for came in (each.__cause__ or each.__context__,) if came]
