"""Functions of `os` that fail, that are recorded, or that trigger another action."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mendgraph.nodes.workspace.files.handles import handle_name

Call = Callable[..., Any]


@contextmanager
def replaced(**calls: Call) -> Iterator[None]:
    """Let functions of `os` be these while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, call in calls.items():
            patch.setattr(os, name, call)
        yield


@contextmanager
def failing(name: str, nth: int = 1, number: int = errno.EIO, *, ever_after: bool = False) -> Iterator[list[int]]:
    """Let the n-th call fail. The list is as long as the function was called often."""
    real, calls = getattr(os, name), list[int]()

    def call(*args: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == nth or (ever_after and len(calls) > nth):
            raise OSError(number, os.strerror(number))
        return real(*args, **named)

    with replaced(**{name: call}):
        yield calls


@contextmanager
def noted(*names: str) -> Iterator[list[tuple[str, str]]]:
    """The calls in order, each with the last of its arguments: the name of a file, that of a handle too."""
    calls: list[tuple[str, str]] = []

    def noting(name: str, real: Call) -> Call:
        def call(*args: Any, **named: Any) -> Any:
            about = handle_name(args[-1]) or "" if isinstance(args[-1], int) else str(args[-1])
            result = real(*args, **named)
            calls.append((name, about))
            return result

        return call

    with replaced(**{name: noting(name, getattr(os, name)) for name in names}):
        yield calls


@contextmanager
def before_each(name: str, act: Call) -> Iterator[None]:
    """Do this before each call, with its arguments."""
    real = getattr(os, name)

    def call(*args: Any, **named: Any) -> Any:
        act(*args)
        return real(*args, **named)

    with replaced(**{name: call}):
        yield


@contextmanager
def after_each(name: str, act: Call) -> Iterator[None]:
    """Do this after each call, with its arguments."""
    real = getattr(os, name)

    def call(*args: Any, **named: Any) -> Any:
        result = real(*args, **named)
        act(*args)
        return result

    with replaced(**{name: call}):
        yield
