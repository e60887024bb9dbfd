"""Ctrl-C is held back while native code runs, and delivered right after."""

import signal
import threading
import time

import numpy as np
import pytest
from runtime_requests import text

from molmo2_iree.runtime.interrupt import uninterrupted
from molmo2_iree.runtime.model import Model


def test_an_interruption_waits_for_the_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    done: list[int] = []

    @uninterrupted()
    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interruption_is_not_lost_behind_an_error() -> None:
    @uninterrupted()
    def work(interrupted: bool) -> None:
        if interrupted:
            signal.raise_signal(signal.SIGINT)
        raise ValueError

    with pytest.raises(KeyboardInterrupt):
        work(True)
    with pytest.raises(ValueError, match=r"^$"):
        work(False)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone() -> None:
    seen = []

    def body() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_interruptions_at_any_moment_harm_nothing(model: Model) -> None:
    payload = text(model)
    expected = model.prefill(payload, model.new_cache())

    def work_until_interrupted(delay: float) -> None:
        thread = threading.Timer(delay, signal.raise_signal, [signal.SIGINT])
        thread.start()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            model.prefill(payload, model.new_cache())

    for k in range(40):
        with pytest.raises(KeyboardInterrupt):
            work_until_interrupted(0.001 + k / 20_000)
    np.testing.assert_array_equal(model.prefill(payload, model.new_cache()), expected)
