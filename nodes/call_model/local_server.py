"""The child process that serves the embedded model on loopback; started by `local_model`, by file path.

It imports nothing of this project. When the model is loaded, it writes `{"url": ...}` as one line on its standard
output. The path of that address is random, and nothing is served outside of it: a web page can send requests to any
port of this machine, but cannot guess the path. The process ends when its standard input is closed, and ignores Ctrl-C.
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
"""Speculative decoding: after 8 tokens that repeat the prompt, the 24 tokens that follow there are tried at once.

Source: five requests of the evaluation, 43 s instead of 69 s on two cores.
"""
ERRORS_ONLY = 1


def main(arguments: list[str]) -> int:
    """Serve until the parent is gone; return 1, with the reason on stderr, if that is impossible."""
    prefix = f"/{secrets.token_urlsafe(24)}"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The model's library prints on descriptor 1: the address is written to a copy of it.
    announcement = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    try:
        server = _serve(prefix, *arguments)
    except (ImportError, AttributeError, RuntimeError, ValueError) as error:
        print(f"{error}", file=sys.stderr)  # noqa: T201 - the parent reads stderr
        return 1

    with os.fdopen(announcement, "w") as stdout:
        stdout.write(json.dumps({"url": server.listening_address + prefix}) + "\n")

    while True:
        signal.pause()


def _serve(prefix: str, weights: str, model: str, context_tokens: str, port: str = "0") -> Any:
    """Return a running server with one slot, below this path only."""
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
    """End the process when the parent has closed our standard input, which it does in any case when it dies."""
    while os.read(0, 1):
        pass

    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
