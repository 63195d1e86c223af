"""aider's command line with whole-file edits, the form that fits a small model, and the files in its chat."""

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
"""Whole files, no repository, nothing asked, nothing looked up on the network, no ornaments."""


WINDOW_TOKENS = 8_192
"""The embedded model's; where nobody tells aider, it looks for a list of models on the network."""


def metadata(model: str) -> str:
    """The file in which aider is told of a model that it does not know."""
    known = {"max_input_tokens": WINDOW_TOKENS, "litellm_provider": "openai", "mode": "chat"}
    return json.dumps({f"openai/{model}": known})


def arguments(asked: dict[str, Any], home: Path) -> list[str]:
    """The command line for a request; what aider keeps for itself goes into `home`, not into the workspace."""
    names = ("input-history-file", "chat-history-file", "llm-history-file", "model-metadata-file")
    kept = [part for name in names for part in (f"--{name}", str(home / name))]
    files = adapter.files_for(asked["request"], asked["files"])
    return [*QUIET, *kept, "--model", f"openai/{asked['model']}", "--message", asked["request"], "--", *files]


def load() -> adapter.Rival:
    """Import aider and give the function that works on a request."""
    import litellm  # type: ignore[import-not-found]  # noqa: F401 - in an environment of its own; aider loads it late
    from aider.main import main  # type: ignore[import-not-found]  # in an environment of its own

    def work(asked: dict[str, Any]) -> str:
        os.environ |= {"OPENAI_API_BASE": asked["base_url"], "OPENAI_API_KEY": adapter.KEY}
        Path.home().joinpath("model-metadata-file").write_text(metadata(asked["model"]), "utf-8")
        with redirect_stdout(io.StringIO()) as said:
            code = main(arguments(asked, Path.home()))
        print(said.getvalue(), file=sys.stderr)
        if code:
            raise RuntimeError(f"aider ended with code {code}: {said.getvalue()[-300:]}")
        return said.getvalue()

    return work


if __name__ == "__main__":
    adapter.serve(load)
