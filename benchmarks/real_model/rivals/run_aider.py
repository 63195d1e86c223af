"""aider's command line with whole-file edits, which suit a small model, and the files in its chat."""

import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from benchmarks.real_model.rivals import adapter

QUIET = (
    *("--edit-format", "whole", "--yes-always", "--no-git", "--no-auto-commits", "--map-tokens", "0"),
    *("--no-analytics", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes"),
    *("--no-detect-urls", "--no-suggest-shell-commands", "--no-pretty", "--no-fancy-input", "--no-stream"),
)
"""Options for whole-file edits without a repository, questions, network access and formatting."""


WINDOW_TOKENS = 8_192
"""The window of the embedded model. Without it, aider fetches a list of models from the network."""


def metadata(model: str) -> str:
    """Return the content of aider's metadata file for this model."""
    settings = {"max_input_tokens": WINDOW_TOKENS, "litellm_provider": "openai", "mode": "chat"}
    return json.dumps({f"openai/{model}": settings})


def arguments(message: dict[str, Any], home: Path) -> list[str]:
    """Return aider's command line for a request. aider's own files are in `home`, not in the workspace."""
    options = [*QUIET, "--model", f"openai/{message['model']}"]
    for name in ("input-history-file", "chat-history-file", "llm-history-file", "model-metadata-file"):
        options += [f"--{name}", str(home / name)]

    files = adapter.files_for(message["request"], message["files"])
    return [*options, "--message", message["request"], "--", *files]


def load() -> adapter.Rival:
    """Import aider and return the function that runs a request."""
    # The environment of this rival has these packages. aider imports litellm late.
    import litellm  # type: ignore[import-not-found]  # noqa: F401
    from aider.main import main  # type: ignore[import-not-found]

    def work(message: dict[str, Any]) -> str:
        os.environ |= {"OPENAI_API_BASE": message["base_url"], "OPENAI_API_KEY": adapter.KEY}
        Path.home().joinpath("model-metadata-file").write_text(metadata(message["model"]), "utf-8")

        with redirect_stdout(io.StringIO()) as stdout:
            code = main(arguments(message, Path.home()))
        output = stdout.getvalue()
        print(output, file=sys.stderr)
        if code:
            raise RuntimeError(f"aider ended with code {code}: {output[-300:]}")
        return output

    return work


if __name__ == "__main__":
    adapter.serve(load)
