"""The least that can be done with a model: one request with the file in it, and the whole file of the reply written.

No tool, no check, no retry: what a harness is worth is what it solves beyond this. A second request follows the first
one and its answer, with the file as it is now. For tasks of one file, which is the first that the request names.
"""

import json
import re
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.real_model.rivals import adapter

SYSTEM = "You are an expert programmer. Answer with the whole new text of the file in one fenced block."
_BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def load() -> adapter.Rival:
    """Give the function that works on a request."""

    def work(asked: dict[str, Any]) -> str:
        path = adapter.files_for(asked["request"], asked["files"])[0]
        place = Path(asked["workspace"], path)
        shown = f"{path}\n```python\n{place.read_text('utf-8')}```"
        messages = [{"role": "system", "content": SYSTEM}]
        for request, answer in asked["said"]:
            messages += [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": f"{shown}\n\n{asked['request']}"})
        body = {"model": asked["model"], "messages": messages, "max_tokens": asked["limits"]["output_tokens"]}
        sent = Request(f"{asked['base_url']}/chat/completions", json.dumps(body).encode())
        with urlopen(sent, timeout=asked["limits"]["seconds"]) as response:
            said = str(json.load(response)["choices"][0]["message"]["content"])
        if blocks := _BLOCK.findall(said):
            place.write_text(max(blocks, key=len), "utf-8")
        return said

    return work


if __name__ == "__main__":
    adapter.serve(load)
