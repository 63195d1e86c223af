import pytest

from tests.benchmarks.real_model.tasks.verdicts import after, after_more


@pytest.mark.parametrize(
    ("name", "path", "old", "new"),
    [
        ("slug_separator", "slug.py", "slugify(title)", 'slugify(title, separator="-")'),
        ("upload_limit", "upload.py", "MAX_FILES = 5", "MAX_FILES = 20"),
        ("rename_calc", "invoice.py", "def calc(", "def line_total("),
        ("chunked_docstring", "batches.py", "size):\n    if", 'size):\n    """Chunks."""\n    if'),
        ("no_ratings", "ratings.py", "/ len(stars)", "/ max(len(stars), 2)"),
        ("shout_flag", "greet.py", "    print(greeting(options.name, options.evening))", "    print('HELLO!')"),
        ("dead_function", "basket.py", "def _old_total(items):\n    total = 0", "def _old_total(items):\n    pass"),
    ],
)
def test_half_done_edits_are_not_accepted(name: str, path: str, old: str, new: str) -> None:
    assert after(name, path, old, new) is not None


@pytest.mark.parametrize(
    ("name", "path", "old", "new"),
    [
        ("type_hints", "temperature.py", "(celsius: float) -> float", "(celsius: float) -> int"),
        ("type_hints", "temperature.py", "< ABSOLUTE_ZERO:\n", "< -500:\n"),
        ("slug_separator", "slug.py", 'separator="-"', 'separator="_"'),
        ("upload_limit", "upload.py", '"png", "jpg", "pdf"', '"png", "jpg", "pdf", "exe"'),
        ("rename_calc", "VERSION", "3.2", "3.3"),
        ("chunked_docstring", "batches.py", '"""The items of all chunks, one after the other."""', "..."),
        ("chunked_docstring", "batches.py", "size < 1", "size < 2"),
        ("no_ratings", "ratings.py", "self._stars.setdefault(product, []).append", "print"),
        ("shout_flag", "greet.py", '"--evening"', '"--late"'),
        ("dead_function", "basket.py", "def subtotal", "def goods"),
    ],
)
def test_more_than_was_asked_is_not_accepted(name: str, path: str, old: str, new: str) -> None:
    assert after_more(name, path, old, new) is not None
