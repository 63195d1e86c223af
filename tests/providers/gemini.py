"""Gemini 3 over the Gemini API: each step's first function call carries a signature that has to come back.

Bodies: askimo#543 (signature is missing), ai-sdk-provider#418 (corrupted), gemini-cli#7410 (number of responses).
Google documents a signature that skips the check, and langchain-google-genai sends it in place of one that it lost: it
is taken, and counted in `skipped`. Signatures are bytes: both alphabets of base64 are one to it, as in proto3's JSON.
"""

import re
from base64 import b64decode
from typing import Any, ClassVar, Final, NoReturn

from tests.providers.provider_server import ProviderServer
from tests.providers.script import Reply, Request, State, Turn
from tests.providers.wire import JsonMap, RefusedError, arguments_of, names, pieces, sse, tokens

SKIP: Final = "skip_thought_signature_validator"
KNOWN: Final = names("""
    contents systemInstruction tools toolConfig safetySettings generationConfig cachedContent store serviceTier
""")


class Gemini(ProviderServer):
    family = "gemini"
    key = "AIzaLoopbackGeminiKey"
    model = "gemini-3-pro-preview"
    root = ""
    stream_type = "text/event-stream"
    methods: ClassVar[tuple[str, ...]] = ("generateContent", "streamGenerateContent")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.skipped = 0
        self._handed: dict[str, str] = {}
        """The name of the function call that each signature came with."""

    def check(self, request: Request) -> None:
        match = re.fullmatch(r"/v1beta/models/([^:/]+):(\w+)", request.path)
        if not match or match[2] not in self.methods:
            raise RefusedError(404, self.error(404, "Not Found"), "path")
        key = request.headers.get("x-goog-api-key")
        if key is None:
            text = "Method doesn't allow unregistered callers (callers without established identity). Please use API "
            _refuse(
                f"{text}Key or other form of API consumer identity to call this API.", "key", 403, "PERMISSION_DENIED"
            )
        if key != self.key:
            _refuse("API key not valid. Please pass a valid API key.", "key")
        if match[1] != self.model:
            text = f"models/{match[1]} is not found for API version v1beta, or is not supported for {match[2]}. "
            text += "Call ListModels to see the list of available models and their supported methods."
            _refuse(text, "model", 404, "NOT_FOUND")
        for name in sorted(request.body):
            if _camel(name) in KNOWN:
                continue
            _refuse(f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.', "unknown field")
        self._check_responses(request.body["contents"])
        self._check_signatures(request.body["contents"])

    def _check_responses(self, contents: list[JsonMap]) -> None:
        calls = 0
        for content in contents:
            responses = len(_parts(content, "functionResponse"))
            if responses != calls:
                text = (
                    "Please ensure that the number of function response parts is equal to the number of function call "
                )
                _refuse(f"{text}parts of the function call turn.", "number of function responses")
            calls = len(_parts(content, "functionCall"))
        if calls:
            _refuse("Please ensure that function call turn comes immediately before a function response turn.", "order")

    def _check_signatures(self, contents: list[JsonMap]) -> None:
        """Those of the current turn, which is what came after the user's last word."""
        start = max((place for place, content in enumerate(contents) if _is_word(content)), default=-1)
        for place, content in list(enumerate(contents))[start + 1 :]:
            calls = _parts(content, "functionCall")
            if calls:
                self._check_signature(calls[0], place)

    def _check_signature(self, part: JsonMap, place: int) -> None:
        name = part["functionCall"]["name"]
        signature = part.get("thoughtSignature") or part.get("thought_signature")
        if not signature:
            text = (
                "Function call is missing a thought_signature in functionCall parts. This is required for tools "
                "to work correctly, and missing thought_signature may lead to degraded model performance. Additional "
                f"data, function call `default_api:{name}` , position {place + 1}. Please refer to "
                "https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
            )
            _refuse(text, "thought_signature is missing")
        if signature == SKIP:
            self.skipped += 1
        elif name not in [self._handed[issued] for issued in self._handed if _bytes(issued) == _bytes(signature)]:
            _refuse("Corrupted thought signature.", "thought_signature")

    def same(self, secret: str, value: str) -> bool:
        return _bytes(secret) == _bytes(value)

    def wants_stream(self, request: Request) -> bool:
        return request.path.endswith(":streamGenerateContent")

    def answered(self, body: JsonMap) -> int:
        return sum(content.get("role") == "model" for content in body["contents"])

    def usage(self, request: Request, reply: Reply, state: State) -> JsonMap:
        prompt = tokens([request.body.get("systemInstruction"), request.body.get("tools"), request.body["contents"]])
        output_tokens = tokens(reply.text + "".join(call.arguments for call in reply.calls))
        thought = tokens(state.thinking) if reply.thinks else 0
        counts = {
            "promptTokenCount": prompt,
            "candidatesTokenCount": output_tokens,
            "totalTokenCount": prompt + output_tokens + thought,
        }
        return counts | ({"thoughtsTokenCount": thought} if thought else {})

    def parts(self, turn: Turn, size: int) -> list[JsonMap] | None:
        """The parts of a reply, its texts in pieces; None where the model wrote a call that is no JSON object."""
        options = _camel_keys(turn.request.body).get("generationConfig", {}).get("thinkingConfig", {})
        parts: list[JsonMap] = []
        if turn.reply.thinks and options.get("includeThoughts"):
            parts += [{"text": piece, "thought": True} for piece in pieces(turn.state.thinking, size)]
        parts += [{"text": piece} for piece in pieces(turn.reply.text, size)]
        for position, call in enumerate(turn.reply.calls):
            arguments = arguments_of(call.arguments)
            if arguments is None:
                return None
            part: JsonMap = {"functionCall": {"name": call.name, "args": arguments}}
            if position == 0:
                self._handed[turn.state.signature] = call.name
                self.hand_out(turn.state.signature)
                part["thoughtSignature"] = turn.state.signature
            parts.append(part)
        return parts

    def document(self, turn: Turn) -> JsonMap:
        parts = self.parts(turn, 100_000)
        return self._frame(turn, parts or [], self._finish(turn, parts)) | {"usageMetadata": turn.usage}

    def events(self, turn: Turn) -> list[bytes]:
        parts = self.parts(turn, 20)
        last = (parts or [{"text": ""}])[-1]
        documents = [self._frame(turn, [part], None) for part in (parts or [])[:-1]]
        documents.append(self._frame(turn, [last] if parts else [], self._finish(turn, parts)))
        return [sse(document | {"usageMetadata": turn.usage}) for document in documents]

    def error(self, status: int, message: str) -> JsonMap:
        return {"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}

    def _finish(self, turn: Turn, parts: list[JsonMap] | None) -> str:
        if parts is None:
            return "MALFORMED_FUNCTION_CALL"
        return "MAX_TOKENS" if turn.reply.finish == "length" else "STOP"

    def _frame(self, turn: Turn, parts: list[JsonMap], finish: str | None) -> JsonMap:
        candidate: JsonMap = {"index": 0, "content": {"role": "model", "parts": parts}}
        candidate |= {"finishReason": finish} if finish else {}
        return {"candidates": [candidate], "modelVersion": self.model, "responseId": turn.state.letters("reply", 22)}


def _camel(name: str) -> str:
    """A field's name in JSON; the name that it has in the proto is taken as well."""
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _camel_keys(value: Any) -> Any:
    return {_camel(name): _camel_keys(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def _parts(content: JsonMap, kind: str) -> list[JsonMap]:
    return [part for part in content["parts"] if kind in part]


def _is_word(content: JsonMap) -> bool:
    return content.get("role") == "user" and not _parts(content, "functionResponse")


def _bytes(signature: str) -> bytes:
    plain = signature.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError:
        return b"no base64"


def _refuse(message: str, why: str, code: int = 400, status: str = "INVALID_ARGUMENT") -> NoReturn:
    raise RefusedError(code, {"error": {"code": code, "message": message, "status": status}}, why)
