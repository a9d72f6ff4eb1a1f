"""Work of many parts hears of Ctrl-C and SIGTERM, and leaves handlers as they were."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from schedopt.interrupts import Late, interrupts, raising_late


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_is_noted(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with interrupts() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), number)
        assert interrupted()
    assert signal.getsignal(number) is before


def test_another_thread_hears_of_nothing_and_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    heard: list[object] = []

    def work() -> None:
        with interrupts() as interrupted:
            heard.append(signal.getsignal(signal.SIGINT))
            heard.append(interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [before, False]


def test_work_ends_when_its_time_is_up() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(Late), raising_late(0.05):
        time.sleep(60)
    with pytest.raises(Late), raising_late(0.0):
        raise AssertionError("no time was left")
    for seconds in (0.05, None):
        with raising_late(seconds):
            pass
    time.sleep(0.1)
    assert signal.getsignal(signal.SIGALRM) == before


def test_a_timer_of_somebody_else_goes_on() -> None:
    heard: list[float] = []

    def note(number: int, frame: object) -> None:
        heard.append(time.monotonic() - begin)

    before, others = signal.signal(signal.SIGALRM, note), signal.getitimer(signal.ITIMER_REAL)
    begin = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(Late), raising_late(0.05):
        time.sleep(60)
    assert not heard
    time.sleep(0.3)
    assert len(heard) == 1
    assert heard[0] >= 0.2
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    # That of somebody else ends first, and is heard there.
    with raising_late(60):
        time.sleep(0.1)
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, *others)
    assert len(heard) == 2


def test_another_thread_has_no_timer() -> None:
    done: list[bool] = []

    def work() -> None:
        with raising_late(0.01):
            time.sleep(0.05)
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
