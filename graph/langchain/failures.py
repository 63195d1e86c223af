"""Turns exceptions of chat models into typed failures, each with one line that says what to do.

The packages of the providers raise exceptions of their own, which have in common a status, a body, and the headers of
the response. Keys never appear in these messages: only the name of the variable that holds one.

A refusal is remembered for the process. It is not known in advance what an endpoint refuses: a temperature, stop words,
the name of the token limit, native tools, streaming. A refusal that names a parameter costs nothing, so the call is
made again at once without it.
"""

import re
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from math import isfinite
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from mendgraph.graph.langchain.reply_limits import ReplyLimitError
from mendgraph.nodes.call_model.endpoint import has_path, is_address
from mendgraph.nodes.records import JsonMap, ProviderErrorKind as Kind, ProviderFailure

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
"""Refusals that sound as if the prompt were too long, but are about rates, names of parameters or the reply."""

_LINK = re.compile(r"https?://\S+")
_BAD_KEY = re.compile(r"api[ _-]?key (is )?(not valid|invalid|expired)|invalid api[ _-]?key", re.IGNORECASE)
_SECRET = re.compile(r"\b(sk|pk|key)-[\w*-]{4,}|Bearer\s+\S+", re.IGNORECASE)
_CREDENTIALS = re.compile(r"//[^/]*@")
_LONGEST_DETAIL = 300
_DEEPEST: Final = 20


class ReplyTimeoutError(Exception):
    """A reply did not arrive in time; the text says which limit it exceeded."""


class CallFailedError(Exception):
    """Carries a failure that is typed already."""

    def __init__(self, failure: ProviderFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Provider(NamedTuple):
    """A provider: its name for people, the variable with its key, and the keys that its errors may quote.

    `endpoint`: it is an OpenAI-compatible endpoint; a chat model of a user may fail in any way.
    """

    name: str
    key_variable: str = ""
    keys: Collection[str] = ()
    endpoint: bool = False


NOT_RECORDED: Final = "not_recorded"
"""The code of a request that a cassette does not hold. Its message names fields, none of which an endpoint refuses."""


class Refusal(NamedTuple):
    """An exception as data: HTTP status, message, codes, the parameter that it names, and the demanded wait."""

    status: int | None
    message: str
    codes: frozenset[str]
    parameter: str
    retry_after_s: float | None

    @property
    def is_answer(self) -> bool:
        """Return whether the endpoint has answered."""
        return self.status is not None or bool(self.codes)


def read_refusal(error: BaseException) -> Refusal:
    """Read an exception and its causes; missing fields are empty."""
    status = None
    details = None
    retry_after = None

    for cause in chain_of(error):
        response = getattr(cause, "response", None)
        status = status or _status(cause, response)
        if details is None:
            details = _body(cause, response)
        if retry_after is None:
            retry_after = _retry_after_header(cause, response)

    fields: Mapping[str, Any] = {}
    text = ""

    if isinstance(details, list):  # of Gemini
        details = next((detail for detail in details if isinstance(detail, dict)), None)
    if isinstance(details, dict):
        details = details.get("error", details)

    if isinstance(details, dict):
        fields = details
    elif isinstance(details, str):
        text = details

    problems = _problems_of_arguments(fields)
    if problems:
        path = [str(part) for part in problems[0].get("loc", ()) if part != "body"]
        message = "; ".join(map(_problem_words, problems[:3]))
        return Refusal(status, message, frozenset(), "".join(path[:1]), retry_after)

    text = fields.get("message") or fields.get("detail") or text or str(error).strip() or type(error).__name__
    codes = frozenset(str(fields[name]) for name in ("code", "type", "status") if fields.get(name))
    return Refusal(status, str(text), codes, str(fields.get("param") or ""), retry_after)


def _problems_of_arguments(fields: Mapping[str, Any]) -> list[JsonMap]:
    """Return the single faults of a request, which FastAPI and pydantic list, and Mistral inside of its message."""
    problems = fields.get("detail")
    message = fields.get("message")
    if not problems and isinstance(message, dict):
        problems = message.get("detail")

    if isinstance(problems, list) and problems and isinstance(problems[0], dict):
        return problems

    return []


def _problem_words(problem: JsonMap) -> str:
    path = ".".join(map(str, problem.get("loc", ())))
    return f"{path}: {problem.get('msg')}"


def _status(error: BaseException, response: Any) -> int | None:
    codes = [
        getattr(error, "status_code", None),
        getattr(error, "code", None),
        getattr(response, "status_code", None),
    ]
    if isinstance(response, dict):  # of botocore
        codes.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))

    return next((code for code in codes if isinstance(code, int) and 300 <= code < 600), None)


def _retry_after_header(error: BaseException, response: Any) -> float | None:
    with suppress(Exception):  # there are no headers
        headers: Any = getattr(response, "headers", None) or getattr(error, "headers", None)
        return retry_after_s(str(headers.get("retry-after") or ""))

    return None


def _body(error: BaseException, response: Any) -> Any:
    for name in ("body", "details", "error"):
        document = getattr(error, name, None)
        if document and isinstance(document, dict | list | str):
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
    """Return the seconds of a Retry-After header, None if it has another form, such as a date."""
    with suppress(ValueError):
        seconds = float(value)
        if isfinite(seconds):
            return max(0.0, seconds)

    return None


_MESSAGES: Final = {
    Kind.RATE_LIMITED: "{where} says: too many requests ({detail}).",
    Kind.TIMEOUT: "{where} did not answer in time ({detail}).",
    Kind.CONNECTION: "{where} cannot be reached ({detail}). Is the address right and the server running?",
    Kind.SERVER_ERROR: "{where} failed ({detail}).",
    Kind.INCOMPLETE_STREAM: "The reply of {where} was cut off ({detail}).",
    Kind.AUTHENTICATION: "{where} refuses the key: check {variable} ({detail}).",
    Kind.BAD_REQUEST: "{where} refuses the request ({detail}).",
    Kind.CONTENT_FILTER: (
        "{where} refuses the request by its content filter ({detail}). Rephrase the request, or choose another model."
    ),
    Kind.CONTEXT_OVERFLOW: "The conversation is longer than the model's window at {where} ({detail}).",
    Kind.MODEL_UNAVAILABLE: "{where} does not have this model ({detail}). Choose one with --model.",
}
_NO_CREDIT: Final = "The account at {where} has no credit left ({detail}). Is its billing set up? The key is not wrong."
_BAD_CERTIFICATE: Final = "{where} cannot be trusted ({detail}). Is the address right? SSL_CERT_FILE names authorities."


def describe_failure(error: Exception, provider: Provider, *, reply_started: bool = False) -> ProviderFailure:
    """Turn an exception of one call into a typed failure; `reply_started`: a part of the reply had arrived."""
    if isinstance(error, CallFailedError):
        return error.failure

    error = next((cause for cause in chain_of(error) if isinstance(cause, ReplyLimitError)), error)
    refusal = read_refusal(error)
    kind = _kind(error, refusal, provider)
    template = _MESSAGES[kind]

    if refusal.status == HTTPStatus.PAYMENT_REQUIRED or refusal.codes & _BILLING:
        template = _NO_CREDIT
    elif any(isinstance(cause, ssl.SSLCertVerificationError) for cause in chain_of(error)):
        kind = Kind.MODEL_UNAVAILABLE
        template = _BAD_CERTIFICATE
    elif reply_started and kind in {Kind.CONNECTION, Kind.SERVER_ERROR}:
        kind = Kind.INCOMPLETE_STREAM
        template = _MESSAGES[kind]
    elif kind is Kind.BAD_REQUEST and not refusal.is_answer:  # the package's own code failed
        template = _MESSAGES[Kind.SERVER_ERROR]

    where = _CREDENTIALS.sub("//", provider.name)
    detail = _without_secrets(_detail(error, refusal, kind, provider), provider.keys)[:_LONGEST_DETAIL]
    message = template.format(where=where, detail=detail, variable=provider.key_variable or "its API key")

    if kind is Kind.SERVER_ERROR and not refusal.is_answer and is_address(where) and not has_path(where):
        message += f" Most servers answer below /v1: try {where.rstrip('/')}/v1."

    return ProviderFailure(kind=kind, message=message, retry_after_s=refusal.retry_after_s)


_BILLING: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_CODES: Final = {
    **dict.fromkeys(_BILLING, Kind.AUTHENTICATION),
    **dict.fromkeys(("content_filter", "content_policy_violation"), Kind.CONTENT_FILTER),
    **dict.fromkeys(("context_length_exceeded", "exceed_context_size_error"), Kind.CONTEXT_OVERFLOW),
}
"""Kinds by codes of errors, whatever the status. Source: OpenAI's error codes; Azure, "Content filtering"."""

_KINDS: Final[dict[int | str, Kind]] = {
    # statuses
    **dict.fromkeys((401, 402, 403), Kind.AUTHENTICATION),
    404: Kind.MODEL_UNAVAILABLE,
    **dict.fromkeys((408, 409), Kind.SERVER_ERROR),
    429: Kind.RATE_LIMITED,
    # codes of errors in the middle of a stream, which have no status; source: Anthropic, "Errors"
    "rate_limit_error": Kind.RATE_LIMITED,
    **dict.fromkeys(("authentication_error", "permission_error"), Kind.AUTHENTICATION),
    "not_found_error": Kind.MODEL_UNAVAILABLE,
    "invalid_request_error": Kind.BAD_REQUEST,
    # names of exception classes of LangChain and of several HTTP clients
    "ContextOverflowError": Kind.CONTEXT_OVERFLOW,
    **dict.fromkeys(("ModelTimeoutError", "TimeoutError", "ReplyTimeoutError"), Kind.TIMEOUT),
    **dict.fromkeys(("TimeoutException", "APITimeoutError"), Kind.TIMEOUT),
    **dict.fromkeys(("ModelAuthenticationError", "ModelPermissionDeniedError"), Kind.AUTHENTICATION),
    "ModelNotFoundError": Kind.MODEL_UNAVAILABLE,
    "ModelRateLimitError": Kind.RATE_LIMITED,
    **dict.fromkeys(("ModelAPIError", "ReplyLimitError"), Kind.SERVER_ERROR),
    "ModelInvalidRequestError": Kind.BAD_REQUEST,
    **dict.fromkeys(("ModelConnectionError", "APIConnectionError", "TransportError", "OSError"), Kind.CONNECTION),
}
"""Kinds by the status of a response, the code of an error, or the class of an exception or of one of its causes."""

_BAD_DOCUMENT: Final = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""Errors of reading something else than chat completions."""


def _kind(error: BaseException, refusal: Refusal, provider: Provider) -> Kind:
    for code, kind in _CODES.items():
        if code in refusal.codes:
            return kind

    kind_of_words = _kind_of_words(refusal)
    if kind_of_words and refusal.is_answer and refusal.status is None:  # in a stream, its code may be a vague one
        return kind_of_words

    names: list[Any] = [refusal.status]
    if refusal.status is None:
        names += refusal.codes

    if not refusal.is_answer:
        names += [base.__name__ for cause in chain_of(error) for base in type(cause).__mro__]

    for name in names:
        if name in _KINDS:
            return _KINDS[name]

    if kind_of_words:
        return kind_of_words

    package = type(error).__module__.partition(".")[0]
    if refusal.status is not None:
        is_outage = refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    else:
        is_outage = refusal.is_answer or package in _PACKAGES or _is_bad_document(error, provider)

    if is_outage:
        return Kind.SERVER_ERROR

    return Kind.BAD_REQUEST


def _kind_of_words(refusal: Refusal) -> Kind | None:
    if refusal.is_answer and _BAD_KEY.search(refusal.message):  # Google calls it a bad request
        return Kind.AUTHENTICATION
    if _is_overflow(refusal.message):
        return Kind.CONTEXT_OVERFLOW

    return None


_PACKAGES: Final = frozenset({"openai", "langchain_openai", "anthropic"})
"""Packages whose other exceptions are about what the endpoint sent."""


def _is_bad_document(error: BaseException, provider: Provider) -> bool:
    return provider.endpoint and isinstance(error, _BAD_DOCUMENT)


def _is_overflow(message: str) -> bool:
    text = _LINK.sub("", message)
    return bool(_OVERFLOW.search(text)) and not _NO_OVERFLOW.search(text)


_CAUSES: Final = {
    "SSLError": "the TLS handshake failed",
    "gaierror": "its host name was not found",
    "ConnectionRefusedError": "the connection was refused",
    "ProxyError": "the proxy does not let it through",
}


def _detail(error: Exception, refusal: Refusal, kind: Kind, provider: Provider) -> str:
    first = refusal.message.splitlines()[0]
    if refusal.is_answer:
        return first

    for cause in chain_of(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = getattr(cause, "verify_message", "") or "it is not trusted"
            return f"its TLS certificate is refused: {reason}"

        if type(cause).__name__ in _CAUSES:
            return _CAUSES[type(cause).__name__]

    if kind is Kind.SERVER_ERROR and _is_bad_document(error, provider):
        if isinstance(error, AttributeError):
            first = "no object"

        return f"it sent no chat completion: {first}"
    if kind in {Kind.CONNECTION, Kind.TIMEOUT} or provider.endpoint:
        return first

    return f"{type(error).__name__}: {first}"


def _without_secrets(text: str, keys: Collection[str]) -> str:
    """Remove keys, which endpoints quote when they refuse them. A text below four characters is no key."""
    for key in keys:
        if len(key) > 3:
            text = text.replace(key, "***")

    return _SECRET.sub("***", text)


def setup_fault(environment: Mapping[str, str], error: Exception) -> ProviderFailure:
    """Return the failure of a client that a proxy or a certificate makes impossible; `error` is not quoted."""
    variables = ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_DIR", "SSL_CERT_FILE")
    named = sorted(name for name, value in environment.items() if value and name.upper() in variables)

    if isinstance(error, ImportError):
        cause = "a SOCKS proxy needs the package `socksio`"
    else:
        cause = type(error).__name__

    return unavailable(f"No connection can be set up ({cause}): check {', '.join(named) or 'the proxy settings'}.")


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, with the members of groups; at most `_DEEPEST`."""
    queue: list[BaseException] = [error]

    for _ in range(_DEEPEST):
        if not queue:
            return

        current = queue.pop(0)
        yield current
        if isinstance(current, BaseExceptionGroup):
            queue += current.exceptions

        cause = current.__cause__ or current.__context__
        if cause is not None:
            queue.append(cause)


# --- Parameters that a model at an endpoint refuses

TOOLS: Final = "tools"
STREAM: Final = "stream"
LIMIT: Final = "max_tokens"
"""Parts of a request that `Learned` treats apart from its parameters."""

OLD_LIMIT: Final = "max_tokens"
NEW_LIMIT: Final = "max_completion_tokens"
"""Names of the limit of a reply at OpenAI-compatible endpoints; each takes at least one of the two."""

LIMIT_NAMES: Final = (OLD_LIMIT, NEW_LIMIT, "max_output_tokens", "maxOutputTokens")
"""Names of the limit in refusals of any provider."""

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
"""Words that refuse a limit's name, and not its value."""

_NUMBER: Final = re.compile(r"\d[\d,_]{0,11}")


class Learned:
    """What one model at one endpoint refuses. It is safe in threads, as entries are only added."""

    def __init__(self, limit_name: str = NEW_LIMIT, *, tools: bool = True, streams: bool = True) -> None:
        """`limit_name` is the name of the limit to try first at an OpenAI-compatible endpoint.

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
        """Return the limit of a reply to request: `tokens`, or less if the model refuses so many."""
        if self.most_output is None:
            return tokens

        return min(tokens, self.most_output)

    def learn(self, refusal: Refusal, sent: Collection[str], limit: int) -> str:
        """Return the name of what the next request must omit, "" if this refusal is about something else.

        `sent` are the names of what the request may omit, `limit` is its limit of tokens.
        """
        if NOT_RECORDED in refusal.codes:
            return ""

        name = self._refused_name(refusal, sent, limit)
        if name == TOOLS:
            self.tools = False
        elif name == STREAM:
            self.streams = False
        elif name and name != LIMIT:
            self.dropped |= {name}

        return name

    def _refused_name(self, refusal: Refusal, sent: Collection[str], limit: int) -> str:
        message = refusal.message
        if TOOLS in sent and (refusal.parameter == TOOLS or _NO_TOOLS.search(message)) and refusal.status is not None:
            return TOOLS
        if refusal.status not in (400, 422):  # the request itself is not refused
            return ""
        if STREAM in sent and (refusal.parameter == STREAM or _NO_STREAM.search(message)):
            return STREAM

        parameter = refusal.parameter.partition(".")[0]
        if parameter in sent and parameter != LIMIT:
            return parameter
        if any(name == parameter or _mentions(message, name) for name in LIMIT_NAMES):
            return self._learn_limit(message, limit)

        for name in sent:
            if name not in {TOOLS, STREAM} and _mentions(message, name):
                return name

        return ""

    def _learn_limit(self, message: str, limit: int) -> str:
        """Try the other name if the name is refused, else the largest number of the message that is below `limit`."""
        if _REFUSED.search(message):
            other = OLD_LIMIT
            if self.limit_name == OLD_LIMIT:
                other = NEW_LIMIT

            if other in self._limit_names:
                return ""

            self._limit_names.add(other)
            self.limit_name = other
            return LIMIT

        allowed = 0
        for number in _NUMBER.findall(message):
            tokens = int(re.sub(r"\D", "", number))
            if LEAST_LIMIT <= tokens < self.limited(limit):
                allowed = max(allowed, tokens)

        if not allowed:
            return ""

        self.most_output = allowed
        return LIMIT


def _mentions(text: str, name: str) -> bool:
    """Return whether a text mentions this parameter; a common word counts only if it is marked as a name."""
    word = re.escape(name)
    if "_" in name or name == "temperature":
        return re.search(rf"(?<![\w.]){word}(?!\w)", text) is not None

    return re.search(rf"['\"`]{word}['\"`]|:\s*{word}\b|^{word}:", text) is not None


def may_be_about(refusal: Refusal, kind: str) -> bool:
    """Return whether a provider may have refused a request because of its content of this kind, such as "image".

    Many endpoints refuse the request without naming the kind. A server error counts where it names it.
    """
    if refusal.status is None or NOT_RECORDED in refusal.codes:
        return False

    failure = _kind(Exception(), refusal, Provider(""))
    if failure is Kind.SERVER_ERROR:
        return kind in refusal.message.lower()

    return failure in {Kind.BAD_REQUEST, Kind.MODEL_UNAVAILABLE}


def not_set_up(model: str, error: Exception) -> ProviderFailure:
    """Return the failure of a package that refuses its settings; no value is quoted, as pydantic would do."""
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        first = ": ".join(map(str, (*problem["loc"], problem["msg"]))).removeprefix("Value error, ")
    else:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)

    return unavailable(f"{model} cannot be set up ({first[:300].rstrip('.')}).")


def unavailable(message: str) -> ProviderFailure:
    """Return the failure of a model that cannot be asked; no request was sent."""
    return ProviderFailure(kind=Kind.MODEL_UNAVAILABLE, message=message, sent=False)


LESSONS: Final[dict[tuple[str, str, str], Learned]] = {}
"""What this process has learned, by provider, endpoint and model."""
