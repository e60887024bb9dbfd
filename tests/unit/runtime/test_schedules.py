"""Schedules by the thousand: requests come, run, are cancelled, fail and wait for masks in any order."""

from collections.abc import Iterable

import numpy as np
from hand_sequences import BUCKETS, sequence
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from molmo2_iree.runtime.prefix import Prompt
from molmo2_iree.runtime.reading import Look, plan_reading
from molmo2_iree.runtime.scheduler import Decode, Policy, Read, Scheduler
from molmo2_iree.runtime.sequence import Sequence, slot_of


class Anything(RuleBasedStateMachine):
    """Requests come, run, are cancelled, fail and wait for masks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(BUCKETS, 3, Policy(decodes_per_unit=2, spare_s=5.0, spare_rows=20))
        self.all: list[Sequence] = []
        self.admitted: list[int] = []
        self.units: dict[int, list[object]] = {}
        self.fed: dict[int, list[int]] = {}
        self.now = 0.0
        self.waits = 0
        """Decode steps since the head of the queue, or the reader, could have gone on."""
        self.silence: dict[int, int] = {}
        """Units since each speaking sequence's last step."""
        self.parked: set[int] = set()

    @rule(length=st.integers(1, 300), tokens=st.integers(1, 5), picture=st.sampled_from(["", "a", "b"]))
    def submit(self, length: int, tokens: int, picture: str) -> None:
        image_end = min(length, 40) if picture and length > 1 else 0
        digests, crops = ((picture,), (4,)) if image_end else ((), ())
        prompt = Prompt(np.arange(length, dtype=np.int32) % 7, image_end, digests, crops)
        one = Sequence(len(self.all), prompt, tokens)
        self.all.append(one)
        self.scheduler.enqueue(one)

    @rule(steps=st.integers(1, 12), fails=st.booleans())
    def run(self, steps: int, fails: bool) -> None:
        for _ in range(steps):
            self.now += 1.0
            could = self.scheduler.reading is not None or (
                bool(self.scheduler.waiting) and any(slot.owner is None for slot in self.scheduler.slots)
            )
            work = self.scheduler.next(self.now)
            self._note_admission()
            if work is None:
                assert not could
                assert all(one.number in self.parked for one in self.scheduler.speaking)
                return
            self._note_turn(isinstance(work, Read), could)
            if fails and steps % 4 == 1:
                self._fail(work.sequences)
            elif isinstance(work, Read):
                self._read(work.sequence)
            else:
                self._decode(work)

    def _note_turn(self, is_unit: bool, could: bool) -> None:
        self.waits = self.waits + 1 if could and not is_unit else 0
        assert self.waits <= 2, "a reader waited for more than the steps of a unit"
        for one in self.scheduler.speaking:
            if one.number not in self.parked:
                self.silence[one.number] = self.silence.get(one.number, 0) + 1 if is_unit else 0
                assert self.silence[one.number] <= 1, "a stream waited for more than one unit"

    def _note_admission(self) -> None:
        reader = self.scheduler.reading
        if reader is not None and reader.number not in self.units:
            self.admitted.append(reader.number)
            self.units[reader.number] = list(plan_reading(reader.prompt, reader.reused, (), BUCKETS))
            self.fed[reader.number] = list(reader.prompt.ids[: reader.reused])

    def _read(self, one: Sequence) -> None:
        unit = self.units[one.number].pop(0)
        if not isinstance(unit, Look):
            start = getattr(unit, "start", 0)
            assert start == len(self.fed[one.number]) == one.rows
            self.fed[one.number] += one.prompt.ids[start : unit.stop].tolist()  # pyright: ignore
            self.scheduler.has_read(one, unit.stop)  # pyright: ignore
        if not self.units[one.number]:
            self._say(one)

    def _decode(self, work: Decode) -> None:
        wanted = [one for one in self.scheduler.speaking if one.number not in self.parked]
        assert list(work.sequences) == wanted
        assert max(slot_of(one) for one in wanted) < work.slots
        assert max(one.rows for one in wanted) < work.context
        for one in wanted:
            assert one.rows == len(self.fed[one.number])
            self.fed[one.number].append(one.said[-1])
            self.scheduler.has_stepped(one)
            self._say(one)

    def _say(self, one: Sequence) -> None:
        self.scheduler.says(one, 1000 + len(one.said))
        if len(one.said) == one.max_tokens:
            self.scheduler.finish(one, "length", self.now)

    def _fail(self, some: Iterable[Sequence]) -> None:
        for one in some:
            slot = self.scheduler.finish(one, "failed", self.now)
            assert self.scheduler.slots[slot].kept is None

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.all))
        before = one.reason
        self.scheduler.cancel(one, self.now)
        self.parked.discard(one.number)
        assert one.reason == (before or "cancelled")

    @precondition(lambda self: self.scheduler.speaking)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.scheduler.speaking))
        if one.number in self.parked:
            self.parked.discard(one.number)
            self.silence[one.number] = 0
            self.scheduler.unpark(one)
        else:
            self.parked.add(one.number)
            self.scheduler.park(one)

    @invariant()
    def slots_belong_to_those_under_way(self) -> None:
        under_way = [one for one in self.all if one.state in ("reading", "speaking")]
        owners = {slot.index: slot.owner for slot in self.scheduler.slots if slot.owner is not None}
        assert owners == {one.slot: one for one in under_way}
        assert self.scheduler.speaking == [one for one in self.scheduler.speaking if one.state == "speaking"]
        readers = [one for one in under_way if one.state == "reading"]
        assert readers == ([self.scheduler.reading] if self.scheduler.reading is not None else [])
        assert list(self.scheduler.waiting) == [one for one in self.all if one.state == "waiting"]
        assert len(self.scheduler.speaking) + len(readers) == len(under_way)
        assert all(slot.owner is None or slot.kept is None for slot in self.scheduler.slots)
        assert self.scheduler._parked <= {one.number for one in self.scheduler.speaking}

    @invariant()
    def first_come_first_served(self) -> None:
        assert self.admitted == sorted(self.admitted)

    @invariant()
    def no_token_is_lost_or_said_twice(self) -> None:
        for one in self.all:
            assert one.said == [1000 + k for k in range(len(one.said))]
            assert len(one.said) <= one.max_tokens
            assert (one.reason == "length") == (len(one.said) == one.max_tokens)
            if one.state == "speaking":
                assert self.fed[one.number] == [*one.prompt.ids, *one.said[:-1]]

    def teardown(self) -> None:
        """Left alone, everything ends, and every slot is idle."""
        for one in self.all:
            if one.number in self.parked:
                self.scheduler.unpark(one)
        self.parked.clear()
        self.silence.clear()
        while not self.scheduler.idle:
            self.run(1, False)
        assert all(one.state == "finished" for one in self.all)
        assert all(slot.owner is None for slot in self.scheduler.slots)


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 4)), min_size=1, max_size=12), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_every_request_ends_in_bounded_work(requests: list[tuple[int, int]], slots: int) -> None:
    scheduler = Scheduler(BUCKETS, slots)
    some = [sequence(k, length, tokens, first=1000 * k) for k, (length, tokens) in enumerate(requests)]
    for one in some:
        scheduler.enqueue(one)
    works = 0
    while (work := scheduler.next(float(works))) is not None:
        works += 1
        for one in work.sequences:
            if isinstance(work, Read):
                scheduler.has_read(one, len(one.prompt.ids))
            else:
                scheduler.has_stepped(one)
            scheduler.says(one, 0)
            if len(one.said) == one.max_tokens:
                scheduler.finish(one, "length", float(works))
    assert works <= sum(tokens for _, tokens in requests)
    assert all(one.reason == "length" for one in some)
