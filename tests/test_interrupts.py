"""Work of many parts hears of Ctrl-C and SIGTERM, and leaves handlers as they were."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from schedopt.interrupts import interrupts


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
