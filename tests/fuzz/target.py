"""What is attacked: a name, plausible input for it, and what has to hold for each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Target:
    """`holds` raises for an input that is handled wrongly. An input is a JSON value, as `inputs` makes them."""

    name: str
    holds: Callable[[Any], None]
    inputs: Callable[[], st.SearchStrategy[Any]]
