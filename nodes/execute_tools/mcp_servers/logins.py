"""Logins to MCP servers over HTTP: OAuth by `mcp`, with the tokens in private files of the user.

Nothing here is shown to a model or logged. What `mcp` does not load by itself (when the token expires, and where it is
renewed) is stored with the tokens, so that a later run renews them.
"""

import os
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Final

from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel, ValidationError

from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.store.user_files import LOGINS_FOLDER, configuration_file, exchange, read_bytes

EXPIRED: Final = "its login has expired: run `mendgraph mcp login NAME`"

Redirect = Callable[[str], Awaitable[None]]
"""Sends the person to an address."""

Callback = Callable[[], Awaitable[tuple[str, str | None]]]
"""Waits for the person's way back; returns the code and the state."""


class Login(BaseModel):
    """What is stored of the login to one address."""

    tokens: OAuthToken
    client: OAuthClientInformationFull
    expires_at: float | None = None
    server: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None


class LoginStore:
    """The login to one address, as `TokenStorage` of `mcp`; a `renewed` one does not use the old login."""

    def __init__(self, url: str, *, renewed: bool = False) -> None:
        self.login = None if renewed else _read_login(url)
        self.provider: OAuthClientProvider
        self._url = url

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens."""
        return None if self.login is None else self.login.tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the stored client."""
        return None if self.login is None else self.login.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Do nothing: the client is stored with its first tokens."""

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store the tokens, and what renewing them needs.

        Raises:
            OAuthFlowError: the file cannot be written.
        """
        context = self.provider.context
        if context.client_info is None:
            raise OAuthFlowError("there are tokens and no client")

        self.login = Login(
            tokens=tokens,
            client=context.client_info,
            expires_at=context.token_expiry_time,
            server=context.oauth_metadata,
            resource=context.protected_resource_metadata,
        )
        problem = _write_login(self._url, self.login)
        if problem is not None:
            raise OAuthFlowError(problem.message)


def new_login(url: str, redirect_uri: str, redirect: Redirect, callback: Callback) -> OAuthClientProvider:
    """Return the authentication that logs a person in at `url`, and stores the login."""
    return _provider(LoginStore(url, renewed=True), url, [AnyUrl(redirect_uri)], redirect, callback)


def stored_login(url: str, refuse: Callable[[str], None]) -> OAuthClientProvider | None:
    """Return the authentication of the stored login, None without one; `refuse` is called when it has expired."""
    store = LoginStore(url)
    login = store.login
    if login is None:
        return None

    async def ask(_: str) -> None:
        refuse(EXPIRED)
        raise OAuthFlowError(EXPIRED)

    async def callback() -> tuple[str, str | None]:
        raise OAuthFlowError(EXPIRED)

    provider = _provider(store, url, login.client.redirect_uris, ask, callback)
    provider.context.token_expiry_time = login.expires_at
    provider.context.oauth_metadata = login.server
    provider.context.protected_resource_metadata = login.resource
    return provider


def _provider(
    store: LoginStore, url: str, redirect_uris: list[AnyUrl] | None, redirect: Redirect, callback: Callback
) -> OAuthClientProvider:
    client = OAuthClientMetadata(client_name="mendgraph", redirect_uris=redirect_uris)
    store.provider = OAuthClientProvider(url, client, store, redirect, callback)
    return store.provider


def _file_of(url: str) -> str | ToolError:
    return configuration_file(os.path.join(LOGINS_FOLDER, f"{sha256(url.encode()).hexdigest()}.json"))


def _read_login(url: str) -> Login | None:
    """Return the login; what cannot be read counts as none."""
    path = _file_of(url)
    data = path if isinstance(path, ToolError) else read_bytes(path)
    if isinstance(data, ToolError):
        return None

    try:
        return Login.model_validate_json(data)
    except ValidationError:
        return None


def _write_login(url: str, login: Login) -> ToolError | None:
    path = _file_of(url)
    if isinstance(path, ToolError):
        return path

    return exchange(path, lambda _: login.model_dump_json(indent=1).encode())
