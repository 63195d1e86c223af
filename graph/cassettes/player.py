"""A cassette that is being played: each exchange answers once, and what was not recorded is told with its difference.

The player is pure but for its own memory, and safe in threads; a tape puts it, or a recording, between clients of this
process and their models.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email import message_from_bytes
from functools import partial
from threading import Lock
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from mendgraph.graph.cassettes import cassette_file
from mendgraph.nodes.execute_tools.secrets.keys import is_secret_key
from mendgraph.nodes.execute_tools.secrets.redact import is_findable_key
from mendgraph.nodes.language.installation import how_to_add
from mendgraph.nodes.records import JsonMap

Scrub = Callable[[bytes], bytes]
LAST_WORDS: Final = 80
"""Characters of the last message that tell a person which request is meant."""

_ROOTS: Final = re.compile("^(?:/v1)+(?=/)")
"""Whether an address is given with `/v1` or without depends on the client: ChatAnthropic puts its own behind it."""


class Player:
    """Answers requests from a cassette. `misses` are the requests that it could not answer, in readable words."""

    def __init__(self, cassette: cassette_file.CassetteFile, name: str, *, version: str = "") -> None:
        """`name` is what messages call the cassette, `version` the mendgraph that plays it ("" where nobody asks)."""
        self.cassette = cassette
        self.misses: list[str] = []
        self._name = name
        self._version = version
        self._bodies = [canonical(cassette_file.scrubbed(exchange.request)) for exchange in cassette.exchanges]
        self._played = [False] * len(cassette.exchanges)
        self._lock = Lock()

    def take(self, method: str, path: str, body: bytes) -> cassette_file.Exchange | str:
        """The first exchange that is left and fits, or in words why there is none. A query in `path` is ignored."""
        path = path.partition("?")[0]
        body = cassette_file.scrubbed(body)
        value = canonical(body)

        with self._lock:
            for index, exchange in enumerate(self.cassette.exchanges):
                fits = _is_place(exchange, method, path) and self._bodies[index] == value
                if fits and not self._played[index]:
                    self._played[index] = True
                    return exchange

            miss = self._miss(method, path, body)
            if miss not in self.misses:  # a client that tries again has nothing new to tell
                self.misses.append(miss)

            return miss

    @property
    def played(self) -> int:
        """The number of exchanges that were played."""
        return sum(self._played)

    @property
    def unplayed(self) -> list[str]:
        """The exchanges that were not played, each in one line."""
        return [self._line(index) for index, played in enumerate(self._played) if not played]

    def _miss(self, method: str, path: str, body: bytes) -> str:
        unplayed = [index for index, played in enumerate(self._played) if not played]
        first = f"{method} {path} was not recorded in {self._name}"

        if any(p and b == canonical(body) for p, b in zip(self._played, self._bodies, strict=True)):
            first = (
                f"{method} {path} was asked for again, and {self._name} holds its answer as often as it was recorded"
            )

        if not unplayed:
            sent = _conversation_end(parsed(body))
            return f"{first}: all of its {len(self._played)} exchanges have been played{sent}.{self._hint()}"

        ways = [self._differs(index, method, path, body) for index in unplayed]
        _, index, lines = min(zip(map(len, ways), unplayed, ways, strict=True))
        listing = "".join(f"\n  {line}" for line in lines)
        which = "The nearest exchange"
        if len(unplayed) == 1:
            which = "The exchange"

        return f"{first}. {which} that is left is number {index + 1} of {len(self._played)}:{listing}{self._hint()}"

    def _differs(self, index: int, method: str, path: str, body: bytes) -> list[str]:
        exchange = self.cassette.exchanges[index]
        if not _is_place(exchange, method, path):
            return [f"{exchange.method} {exchange.path} was recorded, {method} {path} is sent"]
        return difference(exchange.request, body)

    def _hint(self) -> str:
        recorded = self.cassette.settings.get("mendgraph", "")
        if recorded and self._version and recorded != self._version:
            why = f"it was recorded with mendgraph {recorded}, and this is {self._version}, whose prompts may differ"
        else:
            why = "a changed prompt, tool, setting, file or version of the agent asks for something else"

        return f"\nWhat usually causes this: {why}. If it is meant, record again with `pytest --mendgraph-record`."

    def _line(self, index: int) -> str:
        exchange = self.cassette.exchanges[index]
        conversation_end = _conversation_end(parsed(exchange.request))
        return f"number {index + 1} of {len(self._played)}: {exchange.method} {exchange.path}{conversation_end}"


def _is_place(exchange: cassette_file.Exchange, method: str, path: str) -> bool:
    return exchange.method == method and _ROOTS.sub("", exchange.path) == _ROOTS.sub("", path)


def _conversation_end(body: Any) -> str:
    """How long the conversation of a request is, and how it ends; "" for what is none."""
    messages = conversation(body)
    if not messages:
        return ""

    last = messages[-1]
    who = last.get("role", last.get("type"))
    text = text_of(last)[:LAST_WORDS]

    return f", {len(messages)} messages, the last by {who}: {text!r}"


# --- What differs between the request that was recorded and the one that is sent

MOST_LINES: Final = 12
"""Lines of one difference: what follows from the first few is seldom of use."""

SHOWN: Final = 60
"""Characters that are shown before and after the place where two lines part."""

CONVERSATIONS: Final = ("messages", "contents", "input")
"""Where the messages of a request are: Gemini calls them contents, and OpenAI's Responses input."""

_ABSENT: Final = object()


def difference(recorded: bytes, sent: bytes) -> list[str]:
    """Readable lines, none where both bodies are the same JSON; a body that is no JSON is compared as text."""
    if canonical(recorded) == canonical(sent):
        return []

    lines = [*_of_values("", parsed(recorded), parsed(sent))]
    more = len(lines) - MOST_LINES
    if more > 0:
        return [*lines[:MOST_LINES], f"... and {more} more differences"]

    return lines


def canonical(body: bytes) -> str | bytes:
    """The same for two bodies that say the same: JSON with its keys in order, the parts of a form; others as they are.

    As text, since in Python `1`, `1.0` and `True` are equal.
    """
    value = parsed(body)
    if isinstance(value, str | bytes):
        return body

    return json.dumps(value, sort_keys=True, default=repr)


def parsed(body: bytes) -> Any:
    """A body as JSON, or the parts of a multipart form; where it is none of both, its text, else its bytes."""
    if not body:
        return None

    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return _form_parts(body) or _text_or_bytes(body)


_BOUNDARY: Final = re.compile(rb"\A--([^\r\n]{1,70})\r\n")
"""The first line of a multipart form. Source: RFC 2046, section 5.1.1. Clients choose the boundary at random."""


def _form_parts(body: bytes) -> JsonMap:
    """The parts of a multipart form by their names, in order; empty where the body is no whole form.

    Each is a list, as names may repeat, of its file's name, its type and its content.
    """
    first = _BOUNDARY.match(body)
    if first is None or not body.rstrip().endswith(b"--" + first[1] + b"--"):
        return {}

    kind = b'Content-Type: multipart/form-data; boundary="' + first[1] + b'"\r\n\r\n'
    parts: dict[str, list[Any]] = {}

    for part in message_from_bytes(kind + body).walk():
        if part.is_multipart():
            continue

        name = str(part.get_param("name", "", "content-disposition"))
        content = part.get_payload(decode=True)
        if isinstance(content, bytes):
            content = _text_or_bytes(content)

        parts.setdefault(name, []).append([part.get_filename(), part.get_content_type(), content])

    return parts


def _text_or_bytes(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def conversation(body: Any) -> list[JsonMap]:
    """The messages of a request, whichever API it is for; none where it has no list of maps for them."""
    if not isinstance(body, dict):
        return []

    for key in CONVERSATIONS:
        messages = body.get(key)
        if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
            return messages

    return []


def text_of(message: JsonMap) -> str:
    """The text of a message on one line; its blocks or parts in order."""
    blocks = message.get("content") or message.get("parts") or ""
    if not isinstance(blocks, list):
        blocks = [blocks]

    texts = []
    for block in blocks:
        if isinstance(block, dict):
            texts.append(str(block.get("text") or block.get("content") or block))
        else:
            texts.append(str(block))

    return " ".join(" ".join(texts).split())


def _of_values(at: str, ours: Any, theirs: Any) -> Iterator[str]:
    """One line for each leaf in which two JSON values differ."""
    if isinstance(ours, str) and isinstance(theirs, str):
        if ours != theirs:
            yield _of_texts(at or "the body", ours, theirs)

        return

    items = _items_of(ours)
    other_items = _items_of(theirs)
    if items is None or other_items is None or isinstance(ours, list) != isinstance(theirs, list):
        if repr(ours) != repr(theirs):  # 1, True and 1.0 differ
            yield f"{at or 'the body'}: {_worded('recorded', ours)}, {_worded('sent', theirs)}"

        return

    for key in {**items, **other_items}:
        one = items.get(key, _ABSENT)
        other = other_items.get(key, _ABSENT)
        who = ""

        if at in CONVERSATIONS and other is _ABSENT:
            who = _who(one)
        elif at in CONVERSATIONS:
            who = _who(other)

        if isinstance(ours, list):
            place = f"{at}[{key}]{who}"
        elif at:
            place = f"{at}.{key}"
        else:
            place = key

        yield from _of_values(place, one, other)


def _items_of(value: Any) -> dict[Any, Any] | None:
    """The items of a list or a map by their keys; None for any other value."""
    if isinstance(value, list):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value

    return None


def _who(message: Any) -> str:
    if isinstance(message, dict):
        return f" ({message.get('role', message.get('type', 'no role'))})"
    return ""


def _of_texts(at: str, ours: str, theirs: str) -> str:
    """The first line in which two texts differ, and its part around the first letter that differs."""
    our_lines = ours.split("\n")
    their_lines = theirs.split("\n")
    number = parting(our_lines, their_lines)

    if len(our_lines) > 1 or len(their_lines) > 1:
        at = f"{at}, line {number + 1}"

    if number >= len(their_lines):
        return f"{at}: recorded {_short(our_lines[number])}, and what was sent ends before it"
    if number >= len(our_lines):
        return f"{at}: sent {_short(their_lines[number])}, and what was recorded ends before it"

    start = parting(our_lines[number], their_lines[number])
    return f"{at}: recorded {around(our_lines[number], start)}, sent {around(their_lines[number], start)}"


def parting(one: Any, other: Any) -> int:
    """The first place in which two sequences differ."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))


def around(text: str, start: int) -> str:
    """The part of a text around a place."""
    begin = max(start - SHOWN, 0)
    end = start + SHOWN
    part = repr(text[begin:end])
    if begin:
        part = f"...{part}"
    if end < len(text):
        part = f"{part}..."

    return part


def _worded(word: str, value: Any) -> str:
    if value is _ABSENT:
        return f"not {word}"
    return f"{word} {_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, (str, bytes)):
        text = repr(value)
    else:
        text = json.dumps(value, ensure_ascii=False)

    if len(text) <= 2 * SHOWN:
        return text
    return f"{text[: 2 * SHOWN]}..."


# --- In this process

ROOT: Final = "/v1"
REPLAY_URL: Final = f"{cassette_file.HOST}{ROOT}"
"""The endpoint of a replay in process; it exists nowhere."""


class CassetteMissError(BaseException):
    """A request that was not recorded.

    No `Exception`, as pytest's own failures are none: after such the anthropic SDK would try again for seconds and tell
    of a connection that failed, and a retry policy, a fallback or a tolerant agent would hide it.
    """


class Tape:
    """A conversation in use: `base_url` is the endpoint to give to the client, "" where no one is named yet."""

    def __init__(self, base_url: str, exchanges: Callable[[], Sequence[cassette_file.Exchange]] = tuple) -> None:
        """`exchanges` tells what is recorded: all of it in a replay, what was said so far in a recording."""
        self.base_url = base_url
        self.passed_on = ""
        self.host = ""
        """Of a recording, the host that was asked last."""
        self.tell = exchanges

    @property
    def exchanges(self) -> tuple[cassette_file.Exchange, ...]:
        """What is recorded, oldest first."""
        return tuple(self.tell())

    def heard(self, request: Any) -> Any:
        """The request that vcrpy has caught, None where it is not meant for a model, or `passed_on` hands it on."""
        asks = _is_at(request.uri, self.base_url) or _asks_a_model(request)
        if not asks or _is_at(request.uri, self.passed_on):
            return None

        self.host = urlsplit(request.uri).hostname or ""
        return request


@contextmanager
def replayed(player: Player, *, skip: Sequence[str] = ()) -> Iterator[Tape]:
    """Answer from the player. `skip` are clients, in vcrpy's names, that need not be caught.

    A request that was not recorded raises `CassetteMissError` in the client, and is among the player's misses.
    """
    tape = Tape(REPLAY_URL, lambda: player.cassette.exchanges)
    with _recorder("none", tape, skip).use_cassette("replay") as played:
        played.can_play_response_for = partial(_can_play, player, tape)
        played.play_response = _play
        yield tape


@contextmanager
def recorded(base_url: str = "", *, scrub: Scrub = cassette_file.scrubbed, skip: Sequence[str] = ()) -> Iterator[Tape]:
    """Let the client speak to its model, and write down both sides.

    `base_url` ends where `/chat/completions` begins; the tape's may be set later, when the endpoint is known.
    """
    tape = Tape(base_url)
    with _recorder("all", tape, skip).use_cassette("recording") as recorder:

        def exchanges() -> list[cassette_file.Exchange]:
            return [exchange_of(request, response, tape.base_url, scrub) for request, response in recorder.data]

        tape.tell = exchanges
        yield tape


def exchange_of(request: Any, response: JsonMap, base_url: str, scrub: Scrub) -> cassette_file.Exchange:
    """A request and response of vcrpy as an exchange, without host, query, secrets and other headers."""
    keys = _keys_of(request)
    return cassette_file.Exchange(
        method=request.method.upper(),  # google-genai writes it small where aiohttp speaks for it
        path=recorded_path(request.uri, base_url),
        request=cassette_file.scrubbed(scrub(_body_of(request)), keys),
        request_headers=cassette_file.only_headers(request.headers, cassette_file.REQUEST_HEADERS),
        status=response["status"]["code"],
        headers=cassette_file.only_headers(response["headers"], cassette_file.RECORDED_HEADERS),
        response=cassette_file.scrubbed(scrub(response["body"].get("string") or b""), keys),
    )


def recorded_path(uri: str, base_url: str) -> str:
    """The path of a request as it stands in a cassette: at the endpoint below `/v1`, wherever that has its own root."""
    path = urlsplit(uri).path
    root = urlsplit(base_url).path.rstrip("/")
    if root and path.startswith(f"{root}/") and _is_at(uri, base_url):
        return ROOT + path.removeprefix(root)

    return path


def _keys_of(request: Any) -> list[str]:
    """The keys in a request's headers and address: an endpoint may repeat them in its answer."""
    headers = cassette_file.only_headers(request.headers, map(str.lower, request.headers))
    named = [*headers.items(), *parse_qsl(urlsplit(request.uri).query)]
    values = [value.rpartition(" ")[2] for name, value in named if name == "key" or is_secret_key(name)]

    return [value for value in values if is_findable_key(value)]


def _recorder(mode: str, tape: Tape, skip: Sequence[str]) -> Any:
    try:
        import vcr
    except ModuleNotFoundError as error:
        raise ImportError(f"a cassette in process needs {how_to_add('cassettes')} ({error})") from error

    recorder = vcr.VCR(
        record_mode=vcr.record_mode.RecordMode(mode),
        before_record_request=tape.heard,
        decode_compressed_response=True,
        skip_patchers=tuple(skip),
    )
    recorder.register_persister(_Nowhere)

    return recorder


class _Nowhere:
    """vcrpy's store: it loads and keeps nothing, as files are read and written elsewhere."""

    @staticmethod
    def load_cassette(*_: Any, **__: Any) -> tuple[list[Any], list[Any]]:
        """Nothing."""
        return [], []

    @staticmethod
    def save_cassette(*_: Any, **__: Any) -> None:
        """Keep nothing."""


def _is_at(uri: str, base_url: str) -> bool:
    return _origin(uri) == _origin(base_url)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _asks_a_model(request: Any) -> bool:
    """Whether it holds a conversation, or an input or a file for a model that it names."""
    body = None
    if request.method.upper() == "POST":
        body = parsed(_body_of(request))

    if not isinstance(body, dict):
        return False

    return any(isinstance(body.get(key), list) for key in CONVERSATIONS) or (
        "model" in body and not body.keys().isdisjoint({"input", "file"})
    )


def _body_of(request: Any) -> bytes:
    """The body as bytes: JSON that aiohttp is still to encode is encoded, and what is read in parts is none of ours."""
    body = request.body
    if isinstance(body, dict):
        return json.dumps(body).encode()

    if isinstance(body, bytes):
        return body

    return b""


def _can_play(player: Player, tape: Tape, request: Any) -> bool:
    """Whether a request is meant for us; some clients ask twice of the same one, which is one exchange all the same."""
    if tape.heard(request) is None:
        return False

    if not hasattr(request, "answered_by"):
        exchange = player.take(request.method.upper(), request.path, _body_of(request))
        if isinstance(exchange, str):
            raise CassetteMissError(exchange)

        request.answered_by = exchange

    return True


def _play(request: Any) -> JsonMap:
    exchange: cassette_file.Exchange = request.answered_by
    return {
        "status": {"code": exchange.status, "message": ""},
        "headers": {name: [value] for name, value in exchange.headers.items()},
        "body": {"string": exchange.response},
    }
