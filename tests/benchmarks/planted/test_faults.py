import pytest

from benchmarks.planted.faults import Fault, read_faults, select_faults
from benchmarks.planted.run import main
from tests.architecture.product import ROOT, text_of

FAULTS = read_faults()
FAULT = Fault("sandbox is not closed", "nodes/a.py", "close()", "pass", "tests/test_a.py")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_changes_one_place_of_a_product_file(fault: Fault) -> None:
    text = text_of(fault.file)
    planted = fault.plant(text)

    assert fault.file.startswith(("graph/", "nodes/"))
    assert planted != text
    compile(planted, fault.file, "exec")
    assert (ROOT / fault.test).is_file()


def test_names_of_faults_are_unique() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("text", ["open()", "close(); close()"])
def test_fault_whose_text_is_not_there_once_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="sandbox is not closed: `before` occurs"):
        FAULT.plant(text)


def test_faults_are_selected_by_name_file_or_test() -> None:
    other = Fault("limit is off by one", "graph/b.py", "<", "<=", "tests/test_b.py")
    assert select_faults([FAULT, other], []) == [FAULT, other]
    assert select_faults([FAULT, other], ["sandbox"]) == [FAULT]
    assert select_faults([FAULT, other], ["graph/b.py", "tests/test_a"]) == [FAULT, other]


def test_selection_without_a_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no such fault"]) == 2
    assert capsys.readouterr().err == "no fault contains no such fault\n"
