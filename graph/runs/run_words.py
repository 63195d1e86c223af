"""The state of a run as text, and the commands that continue it. Pure."""

import shlex
from datetime import datetime, tzinfo

from mendgraph.nodes.language.display import short_id


def state_words(standing: str, reason: str) -> str:
    """Return the state of a run, with the reason if it ended early."""
    if standing in {"stopped", "failed"} and reason:
        return f"{standing}: {reason.replace('_', ' ')}"
    return standing


def when_words(time: str, now: datetime, zone: tzinfo | None = None) -> str:
    """Return an ISO time as `today 13:05`, `Nov 20 13:05` or `2025-11-20`; `zone` is local by default."""
    then = datetime.fromisoformat(time).astimezone(zone)
    today = now.astimezone(zone)
    if then.date() == today.date():
        return f"today {then:%H:%M}"
    if then.year == today.year:
        return f"{then:%b %d %H:%M}"

    return f"{then:%Y-%m-%d}"


def resume_command(run_id: str, root: str) -> str:
    """Return the command that resumes a run. `root` is the folder as the user named it."""
    return command_line(root, "resume", short_id(run_id))


def chat_command(run_id: str, root: str) -> str:
    """Return the command that sends a run another request."""
    return command_line(root, "chat", "--run", short_id(run_id))


def command_line(root: str, *words: str) -> str:
    """Return a command line of mendgraph in the folder `root`, quoted for a shell."""
    return shlex.join(["mendgraph", *words, *(() if root == "." else ("--root", root))])
