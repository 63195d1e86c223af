"""The least that can be done with a model: one request with the files in it, and each whole file of the reply written.

No tool, no check, no retry: what a harness is worth is what it solves beyond this. A second request follows the first
one and its answer, with the files as they are now.
"""

import json
import re
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.real_model.rivals import adapter

SYSTEM = """\
You are an expert programmer. Change the files of the user as the user asks. Answer with each file that changes: its \
path on one line, then its whole new text in a fenced block.
"""
_FILE = re.compile(r"(?:^[^\n]*?([\w./-]+\.\w+)[^\w\n]*\n)?^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""A fenced block, and the path on the line before it."""


def load() -> adapter.Rival:
    """Give the function that works on a request."""

    def work(asked: dict[str, Any]) -> str:
        root, paths = Path(asked["workspace"]), adapter.files_for(asked["request"], asked["files"])
        shown = [f"{path}\n```\n{(root / path).read_text('utf-8')}```" for path in paths]
        messages = [{"role": "system", "content": SYSTEM}]
        for request, answer in asked["said"]:
            messages += [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": "\n\n".join([*shown, asked["request"]])})
        body = {"model": asked["model"], "messages": messages, "max_tokens": asked["limits"]["output_tokens"]}
        sent = Request(f"{asked['base_url']}/chat/completions", json.dumps(body).encode())
        with urlopen(sent, timeout=asked["limits"]["seconds"]) as response:
            said = str(json.load(response)["choices"][0]["message"]["content"])
        for path, text in files_in(said, paths):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, "utf-8")
        return said

    return work


def files_in(said: str, paths: list[str]) -> list[tuple[str, str]]:
    """The files of a reply; where only one was shown, a block without a known path is that one."""
    blocks = [(match[1] or "", match[2]) for match in _FILE.finditer(said)]
    named = [(path, text) for path, text in blocks if path in paths or (path and len(paths) != 1)]
    return named or [(paths[0], text) for _, text in blocks[:1] if len(paths) == 1]


if __name__ == "__main__":
    adapter.serve(load)
