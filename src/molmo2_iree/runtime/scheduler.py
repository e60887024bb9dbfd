"""Who gets a slot and what runs next. Plain Python: no device, no clock, no thread.

- First come, first served: requests are admitted in the order of submission, one reads its prompt at a time.
- While one reads, each of its units is followed by ``decodes_per_unit`` decode steps of all that speak, if any speaks.
  So no stream waits for more than one unit, and no reader for more than so many steps.
- A decode step advances every speaking sequence at its own position, in the smallest slot bucket and the smallest
  context bucket that fit. A bucket of B slots is the slots 0 to B - 1, so low slots are given out first.
- A slot is given back when its sequence ends, and keeps the rows as a prefix until another needs the slot.
"""

from collections import deque
from dataclasses import dataclass

from molmo2_iree.config import Buckets, first_that_fits
from molmo2_iree.runtime.prefix import Kept, shared_rows
from molmo2_iree.runtime.sequence import Reason, Sequence, admit, cancel, finish, kept_rows, slot_of


@dataclass(frozen=True)
class Policy:
    """Numbers of the rules above."""

    decodes_per_unit: int = 1
    least_shared: int = 16
    """Rows below which going on from a prefix is not worth it."""
    spare_rows: int = 64
    """Rows from which a kept prefix is spared while another slot is idle,"""
    spare_s: float = 60.0
    """for so many seconds after its last use."""


@dataclass
class Slot:
    """One slot of the cache: owned, or idle with or without a kept prefix."""

    index: int
    owner: Sequence | None = None
    kept: Kept | None = None
    since: float = 0.0
    """When it was last given back, in the caller's seconds."""


@dataclass(frozen=True, eq=False)
class Read:
    """The next unit of this sequence's prompt."""

    sequence: Sequence

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Those that the step is for."""
        return (self.sequence,)


@dataclass(frozen=True, eq=False)
class Decode:
    """One step of these sequences, in a bucket of ``slots`` slots and ``context`` rows."""

    sequences: tuple[Sequence, ...]
    slots: int
    context: int


Work = Read | Decode


class Scheduler:
    """Queues and slots. Every call must come from one thread; ``now`` is in seconds and never goes back."""

    def __init__(self, buckets: Buckets, slots: int, policy: Policy | None = None) -> None:
        self.buckets, self.policy = buckets, policy or Policy()
        self.slots = [Slot(index) for index in range(slots)]
        self.waiting: deque[Sequence] = deque()
        self.reading: Sequence | None = None
        self.speaking: list[Sequence] = []
        self._parked: set[int] = set()
        self._steps_since_unit = 0

    @property
    def idle(self) -> bool:
        """Whether nothing waits, reads or speaks."""
        return not self.waiting and self.reading is None and not self.speaking

    def enqueue(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue. It must have room: :func:`..reading.check_room`."""
        self.waiting.append(sequence)

    def next(self, now: float) -> Work | None:
        """What to run now, a waiting sequence admitted if one can be; None if nothing can run."""
        if self.reading is None and self.waiting:
            self._admit_first(now)
        ready = tuple(s for s in self.speaking if s.number not in self._parked)
        if self.reading is not None and (not ready or self._steps_since_unit >= self.policy.decodes_per_unit):
            self._steps_since_unit = 0
            return Read(self.reading)
        if not ready:
            return None
        self._steps_since_unit += 1
        return Decode(ready, *smallest_step(ready, self.buckets))

    # --- progress --------------------------------------------------------------------------------------------------

    def has_read(self, sequence: Sequence, rows: int) -> None:
        """The reading sequence's first ``rows`` rows are in the cache; with the last one it speaks."""
        sequence.rows = rows
        if sequence.state == "speaking":
            self.reading = None
            self.speaking.append(sequence)

    def has_stepped(self, sequence: Sequence) -> None:
        """A decode step has put the last id said into the cache."""
        sequence.rows += 1

    def says(self, sequence: Sequence, token: int) -> None:
        """Its next id is chosen."""
        sequence.said.append(token)

    def park(self, sequence: Sequence) -> None:
        """Leave a speaking sequence out of the steps until :meth:`unpark`: its next id is not chosen yet."""
        self._parked.add(sequence.number)

    def unpark(self, sequence: Sequence) -> None:
        """Let it take part again."""
        self._parked.discard(sequence.number)

    # --- ends ------------------------------------------------------------------------------------------------------

    def finish(self, sequence: Sequence, reason: Reason, now: float) -> int:
        """End a sequence that has a slot; the slot is idle at once. A failed one leaves no prefix."""
        kept = None if reason == "failed" else self._worth_keeping(sequence)
        index = finish(sequence, reason)
        self._remove(sequence)
        self._release(index, kept, now)
        return index

    def cancel(self, sequence: Sequence, now: float) -> None:
        """End a sequence at any point; one that has ended already is left alone."""
        if sequence.state == "finished":
            return
        kept = self._worth_keeping(sequence)
        index = cancel(sequence)
        self._remove(sequence)
        if index is not None:
            self._release(index, kept, now)

    def _worth_keeping(self, sequence: Sequence) -> Kept | None:
        kept = kept_rows(sequence)
        return kept if kept is not None and len(kept.ids) >= self.policy.least_shared else None

    def _release(self, index: int, kept: Kept | None, now: float) -> None:
        self.slots[index] = Slot(index, None, kept, now)

    def _remove(self, sequence: Sequence) -> None:
        self._parked.discard(sequence.number)
        if self.reading is sequence:
            self.reading = None
        elif sequence in self.speaking:
            self.speaking.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    # --- slots -----------------------------------------------------------------------------------------------------

    def _admit_first(self, now: float) -> None:
        idle = [slot for slot in self.slots if slot.owner is None]
        if not idle:
            return
        sequence = self.waiting.popleft()
        slot, shared = self._choose(idle, sequence, now)
        admit(sequence, slot.index, shared)
        slot.owner, slot.kept = sequence, None
        self.reading = sequence

    def _choose(self, idle: list[Slot], sequence: Sequence, now: float) -> tuple[Slot, int]:
        """The idle slot a sequence gets, and the rows it finds there.

        The one with the longest shared prefix, if that is at least half of what the slot keeps; else not a slot whose
        prefix is spared, if another is idle; of these one in the smallest slot bucket, then an empty one, then the
        one not used for longest, then the lowest.
        """
        shared = {slot.index: self._shared(slot, sequence) for slot in idle}
        best = max(idle, key=lambda slot: (shared[slot.index], -slot.index))
        if best.kept is not None and shared[best.index] and 2 * shared[best.index] >= len(best.kept.ids):
            return best, shared[best.index]
        busy = max((slot.index for slot in self.slots if slot.owner is not None), default=0)

        def order(slot: Slot) -> tuple[bool, int, bool, float, int]:
            bucket = first_that_fits(self.buckets.slots, max(busy, slot.index) + 1) or len(self.slots)
            return self._spared(slot, now), bucket, slot.kept is not None, slot.since, slot.index

        chosen = min(idle, key=order)
        return chosen, shared[chosen.index]

    def _shared(self, slot: Slot, sequence: Sequence) -> int:
        shared = shared_rows(slot.kept, sequence.prompt) if sequence.reuse else 0
        return shared if shared >= self.policy.least_shared else 0

    def _spared(self, slot: Slot, now: float) -> bool:
        kept, policy = slot.kept, self.policy
        return kept is not None and len(kept.ids) >= policy.spare_rows and now - slot.since < policy.spare_s


def smallest_step(sequences: tuple[Sequence, ...], buckets: Buckets) -> tuple[int, int]:
    """(slots, context) of the smallest buckets for a step: with slots (1, 4) and context (256, 1024), slot 0 at
    position 255 is (1, 256), and slot 1 at position 256 is (4, 1024)."""
    slots = first_that_fits(buckets.slots, 1 + max(slot_of(s) for s in sequences))
    context = first_that_fits(buckets.context, 1 + max(s.rows for s in sequences))
    return slots or buckets.slots[-1], context or buckets.context[-1]
