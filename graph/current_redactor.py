"""What takes out secrets right now: those of the environment may be other ones by the next step."""

import os
from collections.abc import Iterable
from functools import lru_cache

from nodes.execute_tools.secrets.known_secrets import known_values
from nodes.execute_tools.secrets.redact import Redactor


class CurrentRedactor:
    """The given values and those of the environment first, then shapes and names."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Nothing is looked up yet. `secrets` are values that are never shown."""
        self._secrets = tuple(secrets)
        self._known: tuple[dict[str, str], Redactor] | None = None

    def now(self) -> Redactor:
        """The same one for as long as the environment is the same."""
        environment, known = os.environ.copy(), self._known
        if known is None or known[0] != environment:
            known = self._known = environment, _redactor((*self._secrets, *known_values(environment)))
        return known[1]


@lru_cache(maxsize=8)
def _redactor(values: tuple[str, ...]) -> Redactor:
    return Redactor(values)
