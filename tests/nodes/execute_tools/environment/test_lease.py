import threading

import pytest

from nodes.execute_tools.environment.lease import Lease, LeaseOverError


def test_an_effect_is_done_while_the_lease_holds() -> None:
    lease = Lease()
    with lease.effect():
        assert lease.busy
    assert not lease.busy


def test_after_its_end_nothing_begins() -> None:
    lease = Lease()
    lease.revoke()
    with pytest.raises(LeaseOverError, match="the time of this call is over"), lease.effect():
        pytest.fail("the effect began")
    assert not lease.busy


def test_what_has_begun_is_finished_before_the_lease_ends() -> None:
    lease, begun, finish = Lease(), threading.Event(), threading.Event()
    order: list[str] = []

    def work() -> None:
        with lease.effect():
            begun.set()
            finish.wait(5)
            order.append("effect")

    def end() -> None:
        lease.revoke()
        order.append("over")

    threads = [threading.Thread(target=work), threading.Thread(target=end)]
    threads[0].start()
    begun.wait(5)
    threads[1].start()
    finish.set()
    for thread in threads:
        thread.join(5)
    assert order == ["effect", "over"]


def test_an_effect_that_fails_is_over() -> None:
    lease = Lease()
    with pytest.raises(ValueError, match="x"), lease.effect():
        raise ValueError("x")
    assert not lease.busy
