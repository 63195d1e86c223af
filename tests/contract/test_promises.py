"""Each promise of README and `docs/` has a test: the table in `tests/README.md` names it."""

from tests.specs.tables import ROOT, is_there, named_tests, table_rows


def test_promise_has_its_page_and_tests_that_exist() -> None:
    promises = [*table_rows(ROOT / "tests/README.md")]
    assert len({promise for promise, _, _ in promises}) == len(promises)
    untested = [promise for promise, _, tests in promises if not named_tests(tests)]
    unknown = [test for _, _, tests in promises for test in named_tests(tests) if not is_there(test)]
    assert (untested, unknown) == ([], [])

    pages = {"README.md", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))}
    assert {page for _, page, _ in promises} == pages
