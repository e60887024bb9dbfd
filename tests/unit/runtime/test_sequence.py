"""A request's state: where it stands, and the three functions that move it."""

import numpy as np
import pytest
from hand_sequences import counted, sequence

from molmo2_iree.runtime.sequence import Sequence, admit, cancel, finish, kept_rows, numbered, slot_of


def test_from_submission_to_its_end() -> None:
    one = sequence(length=20)
    assert one.state == "waiting"
    admit(one, 2, 5)
    assert (one.state, one.slot, one.rows, one.reused) == ("reading", 2, 5, 5)
    one.rows = 20
    assert (one.state, slot_of(one)) == ("speaking", 2)
    assert finish(one, "stop") == 2
    assert (one.state, one.slot, one.reason) == ("finished", None, "stop")


def test_cancelled_anywhere() -> None:
    one = sequence()
    assert cancel(one) is None
    assert (one.state, one.reason) == ("finished", "cancelled")
    two = sequence()
    admit(two, 1, 0)
    assert cancel(two) == 1
    assert two.state == "finished"


def test_moves_that_are_none() -> None:
    one = sequence()
    with pytest.raises(RuntimeError, match="sequence 0 is waiting, expected reading or speaking"):
        finish(one, "stop")
    with pytest.raises(RuntimeError, match="sequence 0 has no slot"):
        slot_of(one)
    admit(one, 0, 0)
    with pytest.raises(RuntimeError, match="sequence 0 is reading, expected waiting"):
        admit(one, 1, 0)
    finish(one, "failed")
    for move in (lambda: finish(one, "stop"), lambda: cancel(one), lambda: admit(one, 0, 0)):
        with pytest.raises(RuntimeError, match="is finished"):
            move()


def test_what_a_slot_holds_of_it() -> None:
    one = Sequence(0, counted(4, 2, ("a",), (3,)), 9)
    admit(one, 0, 0)
    one.rows = 1
    assert kept_rows(one) is None
    one.rows, one.said = 6, [7, 8, 9]
    found = kept_rows(one)
    assert found is not None
    assert (found.ids.tolist(), found.image_end, found.digests) == ([0, 1, 2, 3, 7, 8], 2, ("a",))
    assert found.ids.dtype == np.int32
    one.reuse = False
    assert kept_rows(one) is None


def test_numbers_rise() -> None:
    numbers = numbered()
    assert [next(numbers) for _ in range(3)] == [0, 1, 2]
