"""One request's state while it waits, reads its prompt and speaks. It changes hands in admit, finish and cancel only.

waiting  --admit-->  reading  --(all rows read)-->  speaking  --finish-->  finished
   any of the three  --cancel-->  finished
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from molmo2_iree.runtime.prefix import Kept, Prompt

Reason = Literal["stop", "length", "cancelled", "failed"]
State = Literal["waiting", "reading", "speaking", "finished"]


@dataclass(eq=False)
class Sequence:
    """A request from submission to its end. ``rows`` and ``said`` grow; all else changes in the three functions."""

    number: int
    prompt: Prompt
    max_tokens: int
    reuse: bool = True
    """Whether it may go on from a kept prefix, and leave one."""
    slot: int | None = None
    """Its slot while it has one."""
    reused: int = 0
    """Rows it found in its slot."""
    rows: int = 0
    """Rows of its slot that are its own: the position of the next id that is fed."""
    said: list[int] = field(default_factory=list[int])
    """Ids chosen so far; the last of them is not in the cache yet."""
    reason: Reason | None = None

    @property
    def state(self) -> State:
        """Where it stands."""
        if self.reason is not None:
            return "finished"
        if self.slot is None:
            return "waiting"
        return "reading" if self.rows < len(self.prompt.ids) else "speaking"


def slot_of(sequence: Sequence) -> int:
    """The slot of a sequence that has one."""
    if sequence.slot is None:
        raise RuntimeError(f"sequence {sequence.number} has no slot")
    return sequence.slot


def admit(sequence: Sequence, slot: int, reused: int) -> None:
    """Waiting to reading: it owns ``slot``, of which the first ``reused`` rows are its own already."""
    _expect(sequence, "waiting")
    sequence.slot, sequence.reused, sequence.rows = slot, reused, reused


def finish(sequence: Sequence, reason: Reason) -> int:
    """Reading or speaking to finished; the slot it gives back."""
    _expect(sequence, "reading", "speaking")
    slot = slot_of(sequence)
    sequence.slot, sequence.reason = None, reason
    return slot


def cancel(sequence: Sequence) -> int | None:
    """Anything but finished to finished; the slot it gives back, if it had one."""
    _expect(sequence, "waiting", "reading", "speaking")
    slot, sequence.slot, sequence.reason = sequence.slot, None, "cancelled"
    return slot


def kept_rows(sequence: Sequence) -> Kept | None:
    """What its slot holds of it: the ids fed so far, or None where they do not cover its image part."""
    if not sequence.reuse or sequence.rows < sequence.prompt.image_end:
        return None
    ids = np.concatenate([sequence.prompt.ids, np.array(sequence.said, np.int32)])[: sequence.rows]
    return Kept(ids, sequence.prompt.image_end, sequence.prompt.digests)


def numbered(first: int = 0) -> Iterator[int]:
    """Numbers for sequences, in the order of submission."""
    while True:
        yield first
        first += 1


def _expect(sequence: Sequence, *states: State) -> None:
    if sequence.state not in states:
        raise RuntimeError(f"sequence {sequence.number} is {sequence.state}, expected {' or '.join(states)}")
