"""What the exception of a chat model means for a run: its kind, and one line that says what to do.

The packages of the providers raise exceptions of their own; what they have in common is read here: a status, a body,
the headers of the answer. Keys never appear in these messages: only the name of the variable that holds one.

What a refusal teaches is remembered for the process. Nobody says beforehand what every endpoint refuses: a temperature,
stop words, the name of the token limit, native tools, streaming. A refusal that names what was sent costs nothing, so
the call is made again at once without it.
"""

import re
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from math import isfinite
from typing import Any, Final, NamedTuple

from mendgraph.graph.langchain.reply_limits import ReplyLimitError
from mendgraph.nodes.call_model.endpoint import has_path, is_address
from mendgraph.nodes.records import ProviderErrorKind as Kind, ProviderFailure

_OVERFLOW = re.compile(
    r"context.{0,20}(length|size|window|limit)|maximum (context|prompt length|model length)|max_model_len"
    r"|(prompt|input|request) is too long|prompt exceeds max|too many (input )?tokens|exceed\w* model token limit"
    r"|(prompt|input) token count.{0,40}exceeds|range of input length|exceed\w* the maximum number of (input )?tokens"
    r"|inputs\W{1,3}(tokens \+ \W?max_new_tokens\W{1,3}must be|must have less than)",
    re.IGNORECASE,
)
_NO_OVERFLOW = re.compile(
    r"tokens?[ _-]per[ _-](second|minute|hour|day)|\bTP[MD]\b|please wait"
    r"|(unknown|unrecognized|unsupported|unexpected) (request )?(parameter|argument|field|keyword)"
    r"|number of output tokens",
    re.IGNORECASE,
)
"""What a refusal says that speaks of the window's words, but not of a prompt beyond it: rates, names, the reply."""

_LINK = re.compile(r"https?://\S+")
_BAD_KEY = re.compile(r"api[ _-]?key (is )?(not valid|invalid|expired)|invalid api[ _-]?key", re.IGNORECASE)
_SECRET = re.compile(r"\b(sk|pk|key)-[\w*-]{4,}|Bearer\s+\S+", re.IGNORECASE)
_CREDENTIALS = re.compile(r"//[^/]*@")
_LONGEST_DETAIL = 300
_DEEPEST: Final = 20


class ReplyTimeoutError(Exception):
    """A reply did not come in time; the text says which time."""


class CallFailedError(Exception):
    """Raised where it is known what failed; the failure is told as it is."""

    def __init__(self, failure: ProviderFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Provider(NamedTuple):
    """Who answers: its name for people, the variable with its key, and the keys that its errors may quote.

    `endpoint` says that an OpenAI-compatible endpoint is spoken to by us; a chat model of the user's own may fail in
    any way.
    """

    name: str
    key_variable: str = ""
    keys: Collection[str] = ()
    endpoint: bool = False


NOT_RECORDED: Final = "not_recorded"
"""The code of a request that a cassette does not hold. Its message names fields, none of which an endpoint refuses."""


class Refusal(NamedTuple):
    """What an exception says: HTTP status, the provider's message and codes, the parameter that it names, its wish."""

    status: int | None
    message: str
    codes: frozenset[str]
    parameter: str
    retry_after_s: float | None


def read_refusal(error: BaseException) -> Refusal:
    """What this exception, or one that it came from, says of its cause."""
    status = None
    details = None
    wish = None

    for cause in chain_of(error):
        response = getattr(cause, "response", None)
        status = status or _status(cause, response)
        details = details if details is not None else _body(cause, response)

        with suppress(Exception):  # what has no headers
            headers: Any = getattr(response, "headers", None) or getattr(cause, "headers", None)
            wish = wish if wish is not None else retry_after_s(str(headers.get("retry-after") or ""))

    if isinstance(details, list):  # of Gemini
        details = next((detail for detail in details if isinstance(detail, dict)), None)

    if isinstance(details, dict):
        inner = details.get("error", details)
    else:
        inner = details

    fields = inner if isinstance(inner, dict) else {}
    # The single faults of a request, as FastAPI and pydantic tell them, and Mistral inside of its message.
    nested = fields.get("message")
    listed = fields.get("detail") or (nested.get("detail") if isinstance(nested, dict) else None)

    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        loc = [str(part) for part in listed[0].get("loc", ()) if part != "body"]
        message = "; ".join(f"{'.'.join(map(str, item.get('loc', ())))}: {item.get('msg')}" for item in listed[:3])
        return Refusal(status, message, frozenset(), loc[0] if loc else "", wish)

    told = nested or fields.get("detail") or (inner if isinstance(inner, str) else None) or str(error).strip()
    codes = frozenset(str(fields[name]) for name in ("code", "type", "status") if fields.get(name))
    return Refusal(status, str(told or type(error).__name__), codes, str(fields.get("param") or ""), wish)


def _status(error: BaseException, response: Any) -> int | None:
    candidates = (
        getattr(error, "status_code", None),
        getattr(error, "code", None),
        getattr(response, "status_code", None),
        response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None,
    )

    return next((code for code in candidates if isinstance(code, int) and 300 <= code < 600), None)


def _body(error: BaseException, response: Any) -> Any:
    for name in ("body", "details", "error"):
        if isinstance(document := getattr(error, name, None), dict | list | str) and document:
            return document

    if isinstance(response, dict):  # of botocore
        return {str(name).lower(): value for name, value in response.get("Error", {}).items()} or None

    with suppress(Exception):  # a body that was not read, or is no JSON
        document = response.json()
        if isinstance(document, dict | list):
            return document
        return None

    return None


def retry_after_s(value: str) -> float | None:
    """The seconds that a Retry-After header asks for, None where it says nothing that can be read, such as a date."""
    with suppress(ValueError):
        seconds = float(value)
        return max(0.0, seconds) if isfinite(seconds) else None

    return None


_MESSAGES: Final = {
    Kind.RATE_LIMITED: "{where} says: too many requests ({detail}).",
    Kind.TIMEOUT: "{where} did not answer in time ({detail}).",
    Kind.CONNECTION: "{where} cannot be reached ({detail}). Is the address right and the server running?",
    Kind.SERVER_ERROR: "{where} failed ({detail}).",
    Kind.INCOMPLETE_STREAM: "The reply of {where} broke off ({detail}).",
    Kind.AUTHENTICATION: "{where} refuses the key: check {variable} ({detail}).",
    Kind.BAD_REQUEST: "{where} refuses the request ({detail}).",
    Kind.CONTENT_FILTER: (
        "{where} refuses the request by its content filter ({detail}). Say it in other words, or choose another model."
    ),
    Kind.CONTEXT_OVERFLOW: "The conversation is longer than the model's window at {where} ({detail}).",
    Kind.MODEL_UNAVAILABLE: "{where} does not have this model ({detail}). Choose one with --model.",
}
_NO_CREDIT: Final = "The account at {where} has no credit left ({detail}). Is its billing set up? The key is not wrong."
_BAD_CERTIFICATE: Final = "{where} cannot be trusted ({detail}). Is the address right? SSL_CERT_FILE names authorities."


def describe_failure(error: Exception, provider: Provider, *, begun: bool = False) -> ProviderFailure:
    """Turn an exception of one call into a typed failure; `begun` says that a part of the reply had come."""
    if isinstance(error, CallFailedError):
        return error.failure

    error = next((cause for cause in chain_of(error) if isinstance(cause, ReplyLimitError)), error)
    refusal = read_refusal(error)
    answered = refusal.status is not None or bool(refusal.codes)

    if answered:
        kind = _kind(refusal)
    else:
        kind = _kind_without_status(error, provider)

    template = _MESSAGES[kind]
    detail = _detail(error, refusal, kind, provider, answered=answered)
    if refusal.status == HTTPStatus.PAYMENT_REQUIRED or refusal.codes & _BILLING:
        template = _NO_CREDIT

    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in chain_of(error)):
        kind = Kind.MODEL_UNAVAILABLE
        template = _BAD_CERTIFICATE
    elif begun and kind in {Kind.CONNECTION, Kind.SERVER_ERROR}:
        kind = Kind.INCOMPLETE_STREAM
        template = _MESSAGES[Kind.INCOMPLETE_STREAM]
    elif kind is Kind.BAD_REQUEST and not answered:  # the package's own code failed
        template = _MESSAGES[Kind.SERVER_ERROR]

    where = _CREDENTIALS.sub("//", provider.name)
    message = template.format(
        where=where,
        detail=_without_secrets(detail, provider.keys)[:_LONGEST_DETAIL],
        variable=provider.key_variable or "its API key",
    )

    if kind is Kind.SERVER_ERROR and not answered and is_address(where) and not has_path(where):
        message += f" Most servers answer below /v1: try {where.rstrip('/')}/v1."

    return ProviderFailure(kind=kind, message=message, retry_after_s=refusal.retry_after_s)


_STATUSES: Final = {
    **dict.fromkeys((401, 402, 403), Kind.AUTHENTICATION),
    404: Kind.MODEL_UNAVAILABLE,
    429: Kind.RATE_LIMITED,
}
_BILLING: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_CODES: Final = {
    **dict.fromkeys(_BILLING, Kind.AUTHENTICATION),
    **dict.fromkeys(("content_filter", "content_policy_violation"), Kind.CONTENT_FILTER),
    **dict.fromkeys(("context_length_exceeded", "exceed_context_size_error"), Kind.CONTEXT_OVERFLOW),
}
"""What an error's code says, whatever its status. Source: OpenAI's error codes; Azure, "Content filtering"."""

_STREAMED_CODES: Final = {
    "rate_limit_error": Kind.RATE_LIMITED,
    **dict.fromkeys(("authentication_error", "permission_error"), Kind.AUTHENTICATION),
    "not_found_error": Kind.MODEL_UNAVAILABLE,
    "invalid_request_error": Kind.BAD_REQUEST,
}
"""What an error in the middle of a stream says, which has no status. Source: Anthropic, "Errors"."""

_CLASSES: Final = {
    "ContextOverflowError": Kind.CONTEXT_OVERFLOW,
    **dict.fromkeys(("ModelTimeoutError", "TimeoutError", "ReplyTimeoutError"), Kind.TIMEOUT),
    **dict.fromkeys(("TimeoutException", "APITimeoutError"), Kind.TIMEOUT),
    **dict.fromkeys(("ModelAuthenticationError", "ModelPermissionDeniedError"), Kind.AUTHENTICATION),
    "ModelNotFoundError": Kind.MODEL_UNAVAILABLE,
    "ModelRateLimitError": Kind.RATE_LIMITED,
    "ModelAPIError": Kind.SERVER_ERROR,
    "ModelInvalidRequestError": Kind.BAD_REQUEST,
    "ReplyLimitError": Kind.SERVER_ERROR,
    **dict.fromkeys(("ModelConnectionError", "APIConnectionError", "TransportError", "OSError"), Kind.CONNECTION),
}
"""What says no status, by the names of its classes: LangChain's own, and those of HTTP clients, which are several."""

_BAD_DOCUMENT: Final = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What reading raises where an endpoint sends something else than chat completions."""


def _kind(refusal: Refusal) -> Kind:
    known = next((kind for code, kind in _CODES.items() if code in refusal.codes), None)
    if known is None and refusal.status is not None:
        known = _STATUSES.get(refusal.status)

    if known is not None:
        return known
    if _BAD_KEY.search(refusal.message):  # which Google calls a bad request
        return Kind.AUTHENTICATION
    if _is_overflow(refusal.message):
        return Kind.CONTEXT_OVERFLOW
    if refusal.status is None:
        return next((_STREAMED_CODES[code] for code in refusal.codes if code in _STREAMED_CODES), Kind.SERVER_ERROR)
    if refusal.status >= 500 or refusal.status in (408, 409):
        return Kind.SERVER_ERROR

    return Kind.BAD_REQUEST


def _kind_without_status(error: Exception, provider: Provider) -> Kind:
    for cause in chain_of(error):
        for kind in type(cause).__mro__:
            if kind.__name__ in _CLASSES:
                return _CLASSES[kind.__name__]

    if _is_overflow(str(error)):
        return Kind.CONTEXT_OVERFLOW

    said_by_sdk = type(error).__module__.partition(".")[0] in {"openai", "langchain_openai", "anthropic"}
    if said_by_sdk or _is_bad_document(error, provider):
        return Kind.SERVER_ERROR

    return Kind.BAD_REQUEST


def _is_bad_document(error: Exception, provider: Provider) -> bool:
    return provider.endpoint and isinstance(error, _BAD_DOCUMENT)


def _is_overflow(message: str) -> bool:
    text = _LINK.sub("", message)
    return bool(_OVERFLOW.search(text)) and not _NO_OVERFLOW.search(text)


_CAUSES: Final = {
    "SSLError": "the TLS handshake failed",
    "gaierror": "its name is not found",
    "ConnectionRefusedError": "the connection is refused",
    "ProxyError": "the proxy does not let it through",
}


def _detail(error: Exception, refusal: Refusal, kind: Kind, provider: Provider, *, answered: bool) -> str:
    first = refusal.message.splitlines()[0]
    if answered:
        return first

    for cause in chain_of(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"its TLS certificate is refused: {getattr(cause, 'verify_message', '') or 'it is not to be trusted'}"
            )

        if type(cause).__name__ in _CAUSES:
            return _CAUSES[type(cause).__name__]

    if kind is Kind.SERVER_ERROR and _is_bad_document(error, provider):
        return f"it sent no chat completion: {'no object' if isinstance(error, AttributeError) else first}"
    if kind in {Kind.CONNECTION, Kind.TIMEOUT} or provider.endpoint:
        return first

    return f"{type(error).__name__}: {first}"


def _without_secrets(text: str, keys: Collection[str]) -> str:
    """Endpoints quote the key that they refuse. Anything shorter than four characters is no key."""
    for key in keys:
        text = text.replace(key, "***") if len(key) > 3 else text

    return _SECRET.sub("***", text)


def setup_fault(environment: Mapping[str, str], error: Exception) -> ProviderFailure:
    """What to say where building a client raised `error`, which may quote a password: a proxy or a certificate."""
    variables = ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_DIR", "SSL_CERT_FILE")
    named = sorted(name for name, value in environment.items() if value and name.upper() in variables)

    if isinstance(error, ImportError):
        cause = "a SOCKS proxy needs the package `socksio`"
    else:
        cause = type(error).__name__

    message = f"No connection can be set up ({cause}): look at {', '.join(named) or 'the proxy settings'}."
    return ProviderFailure(kind=Kind.MODEL_UNAVAILABLE, message=message, sent=False)


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, the members of groups too."""
    waiting: list[BaseException] = [error]

    for _ in range(_DEEPEST):
        if not waiting:
            return

        current = waiting.pop(0)
        yield current
        waiting += current.exceptions if isinstance(current, BaseExceptionGroup) else ()
        waiting += [origin for origin in (current.__cause__ or current.__context__,) if origin]


# --- What a model at an endpoint does not take

TOOLS, STREAM, LIMIT = "tools", "stream", "max_tokens"
"""Names of what a request carries that is more than a parameter: see `Learned`."""

OLD_LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
"""What OpenAI-compatible endpoints call the most tokens of a reply; each takes at least one of the two."""

LIMIT_NAMES: Final = (OLD_LIMIT, NEW_LIMIT, "max_output_tokens", "maxOutputTokens")
"""What any provider's refusal may call it."""

LEAST_LIMIT: Final = 16

_NO_TOOLS: Final = re.compile(
    r"does(?: not|n't) support (?:native )?(?:tools?|function)|support tool use|tools? (?:use |calling )?(?:is|are) not"
    r" (?:supported|available)|--enable-auto-tool-choice|tools param requires"
    r"|function calling is not (?:enabled|supported)",
    re.IGNORECASE,
)
_NO_STREAM: Final = re.compile(
    r"must be verified to stream|does(?: not|n't) support stream|stream(?:ing)? is not (?:supported|available)",
    re.IGNORECASE,
)
_REFUSED: Final = re.compile(
    r"unsupported|not supported|not support|unknown|unrecognized|unexpected|extra (?:inputs|fields)|not permitted"
    r"|deprecated|not allowed|invalid parameter|use '?max_",
    re.IGNORECASE,
)
"""Words that say of a limit's name, and not of its value, that it is refused."""

_NUMBER: Final = re.compile(r"\d[\d,_]{0,11}")


class Learned:
    """What one model at one endpoint has shown. Safe in threads: what was learned is never taken back."""

    def __init__(self, limit_name: str = NEW_LIMIT, *, tools: bool = True, streams: bool = True) -> None:
        """Nothing is known yet: everything is tried. `limit_name` is what an OpenAI-compatible endpoint likely takes.

        `tools` is False for a chat model without native tools, `streams` for one that cannot be streamed.
        """
        self.dropped: frozenset[str] = frozenset()
        self.tools = tools
        self.streams = streams
        self.limit_name = limit_name
        self._limit_names = {limit_name}
        self.most_output: int | None = None
        self.refused_media: frozenset[str] = frozenset()

    def limited(self, tokens: int) -> int:
        """The most tokens of a reply that may be asked for, of those that are wanted."""
        if self.most_output is None:
            return tokens
        return min(tokens, self.most_output)

    def learn(self, refusal: Refusal, sent: Collection[str], limit: int) -> str:
        """What to leave out of the next request, "" where this refusal is about something else.

        `sent` are the names of what the request carried that may be left out, `limit` the most tokens that it allowed.
        """
        if NOT_RECORDED in refusal.codes:
            return ""

        name = self._named(refusal, sent, limit)
        if name == TOOLS:
            self.tools = False
        elif name == STREAM:
            self.streams = False
        elif name and name != LIMIT:
            self.dropped |= {name}

        return name

    def _named(self, refusal: Refusal, sent: Collection[str], limit: int) -> str:
        message = refusal.message
        if TOOLS in sent and (refusal.parameter == TOOLS or _NO_TOOLS.search(message)) and refusal.status is not None:
            return TOOLS
        if refusal.status not in (400, 422):  # the provider does not call the request itself wrong
            return ""
        if STREAM in sent and (refusal.parameter == STREAM or _NO_STREAM.search(message)):
            return STREAM

        parameter = refusal.parameter.partition(".")[0]
        if named := next((name for name in sent if name == parameter != LIMIT), ""):
            return named
        if any(name == parameter or _mentions(message, name) for name in LIMIT_NAMES):
            return self._of_the_limit(message, limit)

        return next((name for name in sent if name not in {TOOLS, STREAM} and _mentions(message, name)), "")

    def _of_the_limit(self, said: str, limit: int) -> str:
        """Its name is refused, so the other one is tried; or its value, so the largest number below it is taken."""
        if _REFUSED.search(said):
            other = NEW_LIMIT if self.limit_name == OLD_LIMIT else OLD_LIMIT
            if other in self._limit_names:
                return ""

            self._limit_names.add(other)
            self.limit_name = other
            return LIMIT

        numbers = (int(re.sub(r"\D", "", number)) for number in _NUMBER.findall(said))
        allowed = max((number for number in numbers if LEAST_LIMIT <= number < self.limited(limit)), default=None)
        if allowed is None:
            return ""

        self.most_output = allowed
        return LIMIT


def _mentions(text: str, name: str) -> bool:
    """Whether a text speaks of the parameter of this name; a common word counts where it is marked as a name."""
    word = re.escape(name)
    if "_" in name or name == "temperature":
        return re.search(rf"(?<![\w.]){word}(?!\w)", text) is not None

    return re.search(rf"['\"`]{word}['\"`]|:\s*{word}\b|^{word}:", text) is not None


def may_be_about(refusal: Refusal, kind: str) -> bool:
    """Whether a provider may have refused a request for what it holds of this kind, such as "image".

    Many endpoints refuse the request without naming the kind; a failure of their own counts where it does.
    """
    if refusal.status is None or NOT_RECORDED in refusal.codes:
        return False

    known = _kind(refusal)
    return known in {Kind.BAD_REQUEST, Kind.MODEL_UNAVAILABLE} or (
        known is Kind.SERVER_ERROR and kind in refusal.message.lower()
    )


LESSONS: Final[dict[tuple[str, str, str], Learned]] = {}
"""What this process has learned, by provider, endpoint and model."""
