"""The baseline of all harnesses: one request with the file, whose reply is the complete new file.

It has no tools, checks or retries. A second request follows the first one and its answer, with the current file. It is
for tasks with one file, the first that the request names.
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
    """Return the function that runs a request."""

    def work(message: dict[str, Any]) -> str:
        path = adapter.files_for(message["request"], message["files"])[0]
        file = Path(message["workspace"], path)
        block = f"{path}\n```python\n{file.read_text('utf-8')}```"

        messages = [{"role": "system", "content": SYSTEM}]
        for request, answer in message["history"]:
            messages += [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": f"{block}\n\n{message['request']}"})

        body = {"model": message["model"], "messages": messages, "max_tokens": message["limits"]["output_tokens"]}
        http_request = Request(f"{message['base_url']}/chat/completions", json.dumps(body).encode())
        with urlopen(http_request, timeout=message["limits"]["seconds"]) as response:
            reply = str(json.load(response)["choices"][0]["message"]["content"])

        if blocks := _BLOCK.findall(reply):
            file.write_text(max(blocks, key=len), "utf-8")
        return reply

    return work


if __name__ == "__main__":
    adapter.serve(load)
