"""The child process that serves the embedded model on loopback; started by `local_model`, by file path.

It imports nothing of this project. It says `{"url": ...}` on one line of its standard output when the model is
loaded. The path of that address is random, and nothing is served above it: a web page can send requests to any port of
this machine, but cannot guess the path. The process lives as long as its standard input stays open, and ignores Ctrl-C,
which is its parent's to decide about.
"""

import json
import os
import secrets
import signal
import sys
import threading
from typing import Any

PROMPT_CACHE_MIB = 1024
REPEATED, FOLLOWING = 8, 24
"""Where a reply repeats so many tokens of what it was shown, so many that follow there are tried at once.

Source: five requests of the evaluation, 43 s instead of 69 s on two cores.
"""
ERRORS_ONLY = 1


def main(arguments: list[str]) -> int:
    """Serve until the parent is gone. Returns 1, with the reason as the last line on stderr, where that cannot be."""
    prefix = f"/{secrets.token_urlsafe(24)}"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The model's library prints on descriptor 1 as it likes: the announcement goes through a copy of its own.
    announcement = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    try:
        server = _serve(prefix, *arguments)
    except (ImportError, AttributeError, RuntimeError, ValueError) as error:
        print(f"{error}", file=sys.stderr)  # noqa: T201 - stderr is how the parent hears the reason
        return 1

    with os.fdopen(announcement, "w") as stdout:
        stdout.write(json.dumps({"url": server.listening_address + prefix}) + "\n")

    while True:
        signal.pause()


def _serve(prefix: str, weights: str, model: str, context_tokens: str, port: str = "0") -> Any:
    """A server of one slot that answers as soon as this returns, below this path alone."""
    from xllamacpp import CommonParams, Server, common_speculative_type

    params = CommonParams()
    params.model.path = weights
    params.model_alias = {model}
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.api_prefix = prefix
    params.n_ctx = int(context_tokens)
    params.n_parallel = 1
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.speculative.types = [common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m = REPEATED, FOLLOWING
    params.verbosity = ERRORS_ONLY
    params.offline = True
    params.ui = False
    params.endpoint_slots = False
    params.cors_origins = ""

    return Server(params)


def _end_with_parent() -> None:
    """A parent that dies, however it dies, closes our standard input."""
    while os.read(0, 1):
        pass

    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
