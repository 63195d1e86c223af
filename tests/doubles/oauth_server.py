"""An MCP server on loopback that asks for OAuth, with its authorization server, which enforces PKCE and single use."""

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import urlopen

from tests.doubles.mcp_servers import McpHandler


class OAuthServer(ThreadingHTTPServer):
    """What the authorization server knows."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.base = f"http://127.0.0.1:{self.server_address[1]}"
        self.clients: dict[str, list[str]] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.access: set[str] = set()
        self.refresh: set[str] = set()
        self.grants: list[str] = []

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"

    def issue(self, grant: str) -> dict[str, Any]:
        """New tokens; those before are void."""
        self.grants.append(grant)
        self.access, self.refresh = {secrets.token_hex(8)}, {secrets.token_hex(8)}
        return {
            "access_token": next(iter(self.access)),
            "refresh_token": next(iter(self.refresh)),
            "token_type": "Bearer",
            "expires_in": 3_600,
        }


class _Handler(McpHandler):
    server: OAuthServer

    def do_POST(self) -> None:  # noqa: N802 - the name that it overrides
        path = urlsplit(self.path).path
        if path == "/mcp":
            if self.headers.get("Authorization", "").removeprefix("Bearer ") in self.server.access:
                super().do_POST()
            else:
                self._challenge()
            return

        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if path == "/as/register":
            self._register(json.loads(body))
        elif path == "/as/exchange":
            self._exchange({name: values[0] for name, values in parse_qs(body).items()})
        else:
            self._answer(404, b"")

    def do_GET(self) -> None:  # noqa: N802 - the same
        base = self.server.base
        target = urlsplit(self.path)
        if target.path == "/.well-known/oauth-protected-resource/mcp":
            self._say({"resource": self.server.url, "authorization_servers": [f"{base}/as"]})
        elif target.path == "/.well-known/oauth-authorization-server/as":
            self._say(
                {
                    "issuer": f"{base}/as",
                    "authorization_endpoint": f"{base}/as/authorize",
                    "token_endpoint": f"{base}/as/exchange",
                    "registration_endpoint": f"{base}/as/register",
                    "response_types_supported": ["code"],
                    "code_challenge_methods_supported": ["S256"],
                }
            )
        elif target.path == "/as/authorize":
            self._authorize({name: values[0] for name, values in parse_qs(target.query).items()})
        else:
            self._answer(404, b"")

    def _challenge(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(401)
        where = f"{self.server.base}/.well-known/oauth-protected-resource/mcp"
        self.send_header("WWW-Authenticate", f'Bearer resource_metadata="{where}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _register(self, client: dict[str, Any]) -> None:
        name = f"client{len(self.server.clients)}"
        self.server.clients[name] = client["redirect_uris"]
        self._say({**client, "client_id": name, "token_endpoint_auth_method": "none"}, 201)

    def _authorize(self, query: dict[str, str]) -> None:
        redirect_uris = self.server.clients.get(query["client_id"], [])
        complete = query["code_challenge"] and query["state"] and query["resource"] == self.server.url
        if query["redirect_uri"] not in redirect_uris or query["code_challenge_method"] != "S256" or not complete:
            self._answer(400, b"")
            return

        code = secrets.token_hex(8)
        self.server.codes[code] = query
        self.send_response(302)
        self.send_header("Location", f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _exchange(self, form: dict[str, str]) -> None:
        if form["grant_type"] == "refresh_token":
            fits = form["refresh_token"] in self.server.refresh and form["client_id"] in self.server.clients
        else:
            before = self.server.codes.pop(form["code"], {})
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            same = all(before.get(name) == form[name] for name in ("client_id", "redirect_uri", "resource"))
            fits = same and before["code_challenge"] == challenge

        if fits:
            self._say(self.server.issue(form["grant_type"]))
        else:
            self._say({"error": "invalid_grant"}, 400)

    def _say(self, value: dict[str, Any], status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode())


@contextmanager
def oauth_server() -> Iterator[OAuthServer]:
    """The running server."""
    server = OAuthServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def browse(address: str) -> None:
    """Do what a browser does with a page that sends it on at once."""
    urlopen(address).close()  # noqa: S310 - it is on loopback


def browse_with_another_state(address: str) -> None:
    """Come back as a page of somebody else would that knows the port alone."""
    redirect_uri = parse_qs(urlsplit(address).query)["redirect_uri"][0]
    urlopen(f"{redirect_uri}?{urlencode({'code': 'x', 'state': 'y'})}").close()  # noqa: S310 - the same
