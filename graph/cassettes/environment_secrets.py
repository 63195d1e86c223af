"""Whether a recording holds what an environment keeps secret. Pure."""

from collections.abc import Mapping, Sequence

from graph.cassettes.cassette_file import Exchange
from nodes.execute_tools.secrets.known_secrets import forms_of, known_values


def secret_variable(exchanges: Sequence[Exchange], environment: Mapping[str, str]) -> str:
    """Where the first secret stands and which variable holds it, such as "the request of exchange 2 holds ...".

    "" where there is none. The secret itself is not repeated.
    """
    secrets = {name: forms_of(known_values({name: value})) for name, value in environment.items()}
    forms = [(name, form.encode("utf-8", "surrogateescape")) for name, found in secrets.items() for form in found]
    for number, exchange in enumerate(exchanges, start=1):
        for side, body in (("request", exchange.request), ("reply", exchange.response)):
            for name, form in forms:
                if form in body:
                    return f"the {side} of exchange {number} holds the value of {name}"
    return ""
