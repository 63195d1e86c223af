"""A model of 300 kB that says nonsense, as a GGUF file: for tests of the real server of the embedded model.

Source: the file format, version 3, as github.com/ggml-org/ggml/blob/master/docs/gguf.md has it.
"""

import random
import struct
from array import array
from pathlib import Path
from typing import Any

_WIDTH, _INNER, _ALIGNED = 64, 128, 32
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_TOKENS = ["<unk>", "<s>", "</s>", *_BYTES, "\u2581", "a", "b"]
_KINDS = [2, 3, 3, *[6] * 256, 1, 1, 1]
_UINT, _INT, _FLOAT, _STRING, _ARRAY = 4, 5, 6, 8, 9


def write_tiny_model(path: Path) -> Path:
    """Write it, and return its path; the weights are always the same."""
    settings: dict[str, tuple[int, Any]] = {
        "general.architecture": (_STRING, "llama"),
        "llama.context_length": (_UINT, 512),
        "llama.embedding_length": (_UINT, _WIDTH),
        "llama.block_count": (_UINT, 1),
        "llama.feed_forward_length": (_UINT, _INNER),
        "llama.attention.head_count": (_UINT, 4),
        "llama.attention.layer_norm_rms_epsilon": (_FLOAT, 1e-5),
        "llama.vocab_size": (_UINT, len(_TOKENS)),
        "tokenizer.ggml.model": (_STRING, "llama"),
        "tokenizer.ggml.tokens": (_ARRAY, (_STRING, _TOKENS)),
        "tokenizer.ggml.scores": (_ARRAY, (_FLOAT, [0.0] * len(_TOKENS))),
        "tokenizer.ggml.token_type": (_ARRAY, (_INT, _KINDS)),
        "tokenizer.chat_template": (_STRING, "{% for each in messages %}{{ each['content'] }}{% endfor %}"),
    }
    square, up, down = (_WIDTH, _WIDTH), (_WIDTH, _INNER), (_INNER, _WIDTH)
    block = {"attn_norm": (_WIDTH,), "ffn_norm": (_WIDTH,), "ffn_gate": up, "ffn_up": up, "ffn_down": down}
    block |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), square)
    outer = dict.fromkeys(("token_embd", "output"), (_WIDTH, len(_TOKENS))) | {"output_norm": (_WIDTH,)}
    shapes = {**outer, **{f"blk.0.{name}": shape for name, shape in block.items()}}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(settings))
    head += b"".join(
        _text(name) + struct.pack("<I", kind) + _value(kind, value) for name, (kind, value) in settings.items()
    )
    data, draw = b"", random.Random(7)
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        head += _text(f"{name}.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += array("f", [draw.uniform(-0.1, 0.1) for _ in range(count)]).tobytes()
        data += bytes(-len(data) % _ALIGNED)
    path.write_bytes(head + bytes(-len(head) % _ALIGNED) + data)
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(kind: int, value: Any) -> bytes:
    if kind == _ARRAY:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(_value(inner, item) for item in values)
    return _text(value) if kind == _STRING else struct.pack({_UINT: "<I", _INT: "<i", _FLOAT: "<f"}[kind], value)
