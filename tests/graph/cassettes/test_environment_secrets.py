"""Whether a recording holds what an environment keeps secret."""

from base64 import b64encode

import pytest

from graph.cassettes.cassette_file import Exchange
from graph.cassettes.cassette_file import secret_variable

SECRET = "plum-42-orchard-7"  # noqa: S105 - a test's own
ENVIRONMENT = {"HOME": "/plain", "PLAIN_TOKEN": "test", "SOME_API_KEY": SECRET, "OTHER": SECRET[::-1]}


def exchange(request: bytes = b"{}", response: bytes = b"\xff") -> Exchange:
    return Exchange(method="POST", path="/v1", request=request, status=200, headers={}, response=response)


@pytest.mark.parametrize(
    ("exchanges", "told"),
    [
        ([], ""),
        ([exchange(b"/plain test", SECRET[::-1].encode())], ""),
        ([exchange(), exchange(f"a {SECRET} b".encode())], "the request of exchange 2 holds the value of SOME_API_KEY"),
        ([exchange(b"", b"\xff" + SECRET.encode())], "the reply of exchange 1 holds the value of SOME_API_KEY"),
        ([exchange(b64encode(SECRET.encode()))], "the request of exchange 1 holds the value of SOME_API_KEY"),
    ],
    ids=["nothing", "no secret", "request", "reply", "in base64"],
)
def test_the_place_and_the_variable_are_told(exchanges: list[Exchange], told: str) -> None:
    assert secret_variable(exchanges, ENVIRONMENT) == told
    assert SECRET not in told
