import os
import signal
import threading
from collections.abc import Callable

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


def test_what_runs_is_finished_under_a_closed_lease_and_nothing_else_begins() -> None:
    step = Lease()
    call = Lease(step)
    step.close()
    with call.effect():
        assert call.busy
    assert (step.closed, call.closed) == (True, True)
    assert (step.over, call.over) == (False, False)


def test_a_lease_that_is_over_is_closed() -> None:
    step = Lease()
    call = Lease(step)
    call.revoke()
    assert (call.over, call.closed) == (True, True)
    assert (step.over, step.closed) == (False, False)


def test_a_pause_takes_its_time() -> None:
    assert Lease().pause(0.001)


@pytest.mark.parametrize("end", [Lease.close, Lease.revoke])
def test_a_pause_ends_with_the_lease(end: Callable[[Lease], None]) -> None:
    lease = Lease()
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(lease.pause(60)))
    thread.start()
    end(lease)
    thread.join(10)
    assert ended == [False]
    assert not lease.pause(60)


def test_no_pause_begins_under_a_closed_step() -> None:
    step = Lease()
    step.close()
    assert not Lease(step).pause(60)


def test_a_signal_handler_may_close_a_lease_whose_thread_is_at_work() -> None:
    lease = Lease()
    before = signal.signal(signal.SIGUSR1, lambda *_: lease.close())
    try:
        with lease.effect():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert lease.closed
        assert not lease.pause(60)
    finally:
        signal.signal(signal.SIGUSR1, before)
