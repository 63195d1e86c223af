"""A run in a few words, and the commands that take it up again. Pure."""

import shlex
from datetime import datetime, tzinfo

from mendgraph.nodes.language.display import short_id


def state_words(standing: str, reason: str) -> str:
    """Where a run stands; for one that ended early also why."""
    if standing in {"stopped", "failed"} and reason:
        return f"{standing}: {reason.replace('_', ' ')}"
    return standing


def when_words(time: str, now: datetime, zone: tzinfo | None = None) -> str:
    """An ISO time as `today 13:05`, `Nov 20 13:05` or `2025-11-20`; `zone` is the local one by default."""
    then = datetime.fromisoformat(time).astimezone(zone)
    today = now.astimezone(zone)
    if then.date() == today.date():
        return f"today {then:%H:%M}"
    if then.year == today.year:
        return f"{then:%b %d %H:%M}"

    return f"{then:%Y-%m-%d}"


def resume_command(run_id: str, root: str) -> str:
    """The command that goes on with a run. `root` is the folder as it was named."""
    return command_line(root, "resume", short_id(run_id))


def chat_command(run_id: str, root: str) -> str:
    """The command that sends a run another request."""
    return command_line(root, "chat", "--run", short_id(run_id))


def command_line(root: str, *words: str) -> str:
    """A command of ours in the folder `root`, as a shell takes it."""
    return shlex.join(["mendgraph", *words, *(() if root == "." else ("--root", root))])
