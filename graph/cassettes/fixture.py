"""What a test gets as `mendgraph_cassette`: an endpoint that is recorded, or that answers from the recording."""

import ipaddress
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final
from unittest import mock
from urllib.parse import urlsplit

from pydantic import SecretStr, ValidationError

from mendgraph.graph.cassettes import cassette_file
from mendgraph.graph.cassettes.player import REPLAY_URL, Player, Tape, recorded, replayed
from mendgraph.graph.cassettes.servers import ForwardingServer, LoopbackServer, ReplayServer
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import first_error
from mendgraph.graph.langchain.chat_models import endpoint_model, served_models
from mendgraph.graph.langchain.failures import LESSONS
from mendgraph.nodes.call_model.endpoint import (
    EMBEDDED_WINDOW,
    NO_KEY,
    PLAIN,
    USUAL_URL,
    Endpoint,
    choose_served_model,
    find_endpoint,
    split_provider,
)
from mendgraph.nodes.call_model.local_model import shared_local_server
from mendgraph.nodes.execute_tools.secrets.redact import is_findable_key
from mendgraph.nodes.records import ProviderFailure, Record, ToolError, ToolErrorCode

_USE: Final = "give the agent `mendgraph_cassette.context(workspace)`, or its client `mendgraph_cassette.base_url`"


class Source(Record):
    """An endpoint to record from. `origin` is for the cassette's first line; it names no port and no path."""

    base_url: str
    api_key: SecretStr
    origin: str
    settings: dict[str, str]


def find_source(arguments: Mapping[str, str]) -> Source | str:
    """The endpoint of a marker's `arguments` and the environment, or in words why there is none.

    The arguments have the names of `AgentContext`.

    Order: as `AgentContext` has it; without any setting the embedded model is started.
    """
    try:
        context = AgentContext.model_validate(dict(arguments))
    except ValidationError as error:
        place, message = first_error(error)
        if place:
            return f"{place}: {message}"

        return message

    endpoint = find_endpoint(context.model, context.base_url, os.environ)
    if isinstance(endpoint, ProviderFailure):
        return endpoint.message
    if problem := provider_problem(endpoint.full_name):
        return problem
    if endpoint.embedded:
        return _embedded(context)

    model = endpoint.model or _served_model(endpoint)
    if isinstance(model, ProviderFailure):
        return model.message

    url = endpoint.base_url or USUAL_URL
    return Source(
        base_url=url.rstrip("/"),
        api_key=endpoint.api_key,
        origin=f"model at {urlsplit(url).hostname}",
        settings=cassette_file.settings_of(context, model, embedded=False),
    )


def provider_problem(model: str | None) -> str:
    """Why no endpoint of a cassette has a model of this name; "" where one may have it."""
    provider, _ = split_provider(model or "")
    if provider in {"", "openai"}:
        return ""

    remedy = "give the chat model itself to the run in the test, as in run_task(..., model=ChatAnthropic(...))"
    return f"{model!r} names a provider, whose package knows its host by itself, and no endpoint: {remedy}"


def _embedded(context: AgentContext) -> Source | str:
    server = shared_local_server()
    if isinstance(server, ProviderFailure):
        return server.message

    # Its server has a smaller window than the model's family: a replay could not know.
    settings = cassette_file.settings_of(context, server.model, embedded=True, window_tokens=str(EMBEDDED_WINDOW))
    return Source(
        base_url=server.base_url,
        api_key=SecretStr(NO_KEY),
        origin="local model",
        settings=settings,
    )


def _served_model(endpoint: Endpoint) -> str | ProviderFailure:
    """The only model that the endpoint serves; the request is made before the recording begins."""
    model = endpoint_model(endpoint, PLAIN)
    if isinstance(model, ProviderFailure):
        return model

    served = served_models(model)
    if isinstance(served, ProviderFailure):
        return served

    return choose_served_model(served)


class Cassette(ABC):
    """One test's conversation with a model, from all clients of this process to any model.

    `recording`: the endpoint is a real one. Lessons of earlier tests about models are removed, so that each test sends
    the same requests as it does alone.
    """

    recording: bool

    def __init__(self, path: str, name: str, find: Callable[[], Source], tape: AbstractContextManager[Tape]) -> None:
        """`name` is the name of the file at `path` in messages; `find` returns the endpoint when the test needs it."""
        self.path = path
        self.name = name
        self._find = find
        self._opened_source: Source | None = None
        LESSONS.clear()
        self._stack = ExitStack()
        self._tape = self._stack.enter_context(tape)

    @property
    def base_url(self) -> str:
        """The endpoint for any OpenAI-compatible client in this process; its key is `api_key`."""
        self._tape.base_url = self._source.base_url
        return self._tape.base_url

    @property
    def settings(self) -> dict[str, str]:
        """What the requests to the endpoint depend on."""
        return dict(self._source.settings)

    @property
    def api_key(self) -> str:
        """The endpoint's key: a real one in a recording, and "not-needed" in a replay."""
        return self._source.api_key.get_secret_value()

    @property
    def model(self) -> str | None:
        """The model's name at the endpoint, None where the cassette does not say."""
        return self.settings.get("model")

    def context(self, workspace: str | os.PathLike[str] = ".", **settings: Any) -> AgentContext:
        """The context of a run on this cassette: its endpoint, and what its requests depend on, are filled in.

        Evidence is off unless it is asked for, since it needs bubblewrap. `settings` are those of `AgentContext`, and
        go before all of these.

        Raises:
            ValueError: the model names a provider, to which the cassette's endpoint would be the wrong host.
        """
        if "base_url" not in settings and (problem := provider_problem(settings.get("model"))):
            raise ValueError(problem)
        return cassette_file.context_on(self.settings, settings, os.fspath(workspace), self.base_url)

    @contextmanager
    def serve(self) -> Iterator[LoopbackServer]:
        """The cassette as a server on loopback, for an agent in another process: give it the server's `base_url`."""
        with self._server() as server:
            self._tape.passed_on = server.base_url
            yield server

    def close(self) -> None:
        """Let go of the clients and the network."""
        self._stack.close()

    @abstractmethod
    def problem(self) -> str:
        """After a test that has passed: why it fails all the same; "" where it does not."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Notes for a test that has failed: an agent may have turned a refusal into a value."""

    @abstractmethod
    def _server(self) -> LoopbackServer: ...

    @property
    def _source(self) -> Source:
        if self._opened_source is None:
            self._opened_source = self._find()

        return self._opened_source


class ReplayedCassette(Cassette):
    """Answers from the file, strictly; while it is open, this process reaches nobody else."""

    recording = False

    def __init__(
        self, path: str, name: str, cassette: cassette_file.CassetteFile, allow_hosts: Collection[str] = ()
    ) -> None:
        """Cut off the network, but for `allow_hosts` and, while the cassette is served, for this machine."""
        key = SecretStr(NO_KEY)
        settings = dict(cassette.settings)
        source = Source(base_url=REPLAY_URL, api_key=key, origin=cassette.recorded_from, settings=settings)
        self._player = Player(cassette, name, version=cassette_file.version())
        super().__init__(path, name, lambda: source, replayed(self._player))
        self._blocked: list[str] = []
        self._allowed = frozenset(allow_hosts)
        self._stack.enter_context(only(self._is_allowed, self._explain))

    def problem(self) -> str:
        """A request that was not recorded, or an exchange that nobody has asked for."""
        if self._player.misses:
            return self._player.misses[0]
        if not self._player.unplayed:
            return ""

        total = len(self._player.cassette.exchanges)
        lines = "".join(f"\n  {line}" for line in self._player.unplayed)

        return (
            f"{self._player.played} of {total} exchanges of {self.name} were asked for; nobody asked for:{lines}\n"
            "If the agent is meant to ask for less, record again with `pytest --mendgraph-record`."
        )

    def notes(self) -> list[str]:
        """The requests that were not recorded, and the hosts that were out of reach."""
        return [*self._player.misses, *self._blocked]

    def _server(self) -> LoopbackServer:
        return ReplayServer(self._player)

    def _is_allowed(self, host: str) -> bool:
        return host in self._allowed or (bool(self._tape.passed_on) and is_loopback(host))

    def _explain(self, host: str) -> str:
        message = (
            f"the test tried to reach {host!r} while {self.name} is replayed: give the client "
            "`mendgraph_cassette.base_url`, or name the host in the marker's `allow_hosts`"
        )

        if message not in self._blocked:
            self._blocked.append(message)

        return message


class RecordedCassette(Cassette):
    """Speaks to a real endpoint, and is written once the test has passed."""

    recording = True

    def __init__(self, path: str, name: str, find: Callable[[], Source]) -> None:
        super().__init__(path, name, find, recorded(scrub=self._scrub))

    def problem(self) -> str:
        """Write the file; what has kept it from being written."""
        exchanges = self._tape.exchanges
        if not exchanges:
            return f"nothing was said to a model, so {self.name} was not written: {_USE}"

        others = {name: value for name, value in os.environ.items() if not self._opened_source or value != self.api_key}
        secret = cassette_file.secret_variable(exchanges, others)

        if secret:
            return (
                f"{secret}, so {self.name} was not written: keep it out of the prompt and of what the agent reads, or"
                " unset the variable where it is no secret, and record again"
            )

        origin, settings = self._origin_and_settings()
        cassette = cassette_file.CassetteFile(recorded_from=origin, settings=settings, exchanges=exchanges)
        failure = cassette_file.write(self.path, cassette)
        if failure:
            return failure.message

        return ""

    def _origin_and_settings(self) -> tuple[str, dict[str, str]]:
        """The origin of the replies, and the settings of its requests; a client may use a host of its configuration."""
        host = self._tape.host
        if self._opened_source and host in ("", urlsplit(self._opened_source.base_url).hostname):
            return self._opened_source.origin, self.settings

        return f"model at {host}", {"mendgraph": cassette_file.version()}

    def _scrub(self, body: bytes) -> bytes:
        secrets = []
        if self._opened_source and is_findable_key(self.api_key):
            secrets.append(self.api_key)

        return cassette_file.scrubbed(body, secrets)

    def notes(self) -> list[str]:
        """The note that nothing was written."""
        return [f"{self.name} was not written, as the test has failed"]

    def _server(self) -> LoopbackServer:
        return ForwardingServer(self.base_url, self.api_key)


def load(path: str, name: str, *, foreign: bool = False) -> cassette_file.CassetteFile | str:
    """The cassette to replay, or in words why it cannot be; one that holds secrets is refused.

    `foreign`: it may be recorded by another project.
    """
    text = cassette_file.read_text(path, name)
    if isinstance(text, ToolError):
        missing = text.code is ToolErrorCode.NOT_FOUND
        if missing:
            return f"{text.message}: record it with `pytest --mendgraph-record=missing`"
        return text.message

    secrets = cassette_file.secrets_in(text)
    if secrets:
        places = ", ".join(f"line {line} holds a secret" for line in secrets[:5])
        remedy = "Revoke it, remove it from the file and its history, and record again"
        return f"{name} is not played: {places}. {remedy}"

    cassette = cassette_file.parse(text, name, foreign=foreign)
    if isinstance(cassette, ToolError):
        return cassette.message

    return cassette


class OfflineError(RuntimeError):
    """Somebody reached for the network in a replay.

    It is no OSError: HTTP clients would take that for a connection that failed, and try again.
    """


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, is this machine as itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def only(allowed: Callable[[str], bool], explain: Callable[[str], str]) -> Iterator[None]:
    """Let sockets of this process reach, and names be looked up, only where `allowed` says yes of the host.

    Elsewhere `explain` of the host is the message of an `OfflineError`. Sockets without a host (Unix domain) are free.
    Blocks nest: a host has to be allowed by each of them.
    """

    def check(host: str) -> None:
        if not allowed(host):
            raise OfflineError(explain(host))

    with (
        mock.patch.object(socket.socket, "connect", _checked_connect(socket.socket.connect, check)),
        mock.patch.object(socket.socket, "connect_ex", _checked_connect(socket.socket.connect_ex, check)),
        mock.patch.object(socket, "getaddrinfo", _checked_lookup(socket.getaddrinfo, check)),
    ):
        yield


def _checked_connect(connect: Callable[..., Any], check: Callable[[str], None]) -> Callable[..., Any]:
    def checked(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            check(str(address[0]))

        return connect(self, address)

    return checked


def _checked_lookup(lookup: Callable[..., Any], check: Callable[[str], None]) -> Callable[..., Any]:
    def checked(host: str | bytes | None, *args: Any, **kwargs: Any) -> Any:
        if host is not None:
            if isinstance(host, bytes):
                check(host.decode())
            else:
                check(host)

        return lookup(host, *args, **kwargs)

    return checked
