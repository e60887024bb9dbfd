"""The scheduler's rules on small examples, then over thousands of schedules in which anything may happen."""

from collections.abc import Iterable

import numpy as np
import pytest
from hand_sequences import BUCKETS, counted, kept, sequence
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from molmo2_iree.runtime.prefix import Prompt
from molmo2_iree.runtime.reading import Look, plan_reading
from molmo2_iree.runtime.scheduler import Decode, Policy, Read, Scheduler, smallest_step
from molmo2_iree.runtime.sequence import Sequence, admit, slot_of


def made(slots: int = 4, **policy: float) -> Scheduler:
    return Scheduler(BUCKETS, slots, Policy(**policy))  # pyright: ignore[reportArgumentType]


def read_whole(scheduler: Scheduler, one: Sequence, now: float = 0.0) -> None:
    """Let a sequence be admitted and read its prompt, then say its first token."""
    while one.state != "speaking":
        work = scheduler.next(now)
        if isinstance(work, Read):
            scheduler.has_read(work.sequence, len(work.sequence.prompt.ids))
    scheduler.says(one, 0)


def speaking(scheduler: Scheduler, *some: Sequence) -> None:
    for one in some:
        scheduler.enqueue(one)
        read_whole(scheduler, one)


# --- one rule at a time --------------------------------------------------------------------------------------------


def test_nothing_to_do() -> None:
    scheduler = made()
    assert scheduler.next(0.0) is None
    assert scheduler.idle


def test_units_and_steps_take_turns() -> None:
    scheduler, old, new = made(), sequence(0), sequence(1, length=100)
    speaking(scheduler, old)
    scheduler.enqueue(new)
    kinds = []
    for _ in range(6):
        work = scheduler.next(0.0)
        assert work is not None
        kinds.append(type(work).__name__)
        if isinstance(work, Read):
            scheduler.has_read(new, new.rows + 10)
    assert kinds == ["Decode", "Read"] * 3


def test_more_steps_a_unit() -> None:
    scheduler = made(decodes_per_unit=3)
    speaking(scheduler, sequence(0))
    scheduler.enqueue(sequence(1, length=100))
    kinds = "".join(type(scheduler.next(0.0)).__name__[0] for _ in range(12))
    assert kinds == "DDDRDDDRDDDR"


def test_a_step_is_all_that_speak_in_the_smallest_buckets() -> None:
    scheduler = made()
    one, two, three = sequence(0, 20), sequence(1, 250), sequence(2, 30)
    speaking(scheduler, one)
    work = scheduler.next(0.0)
    assert isinstance(work, Decode)
    assert (work.sequences, work.slots, work.context) == ((one,), 1, 256)
    speaking(scheduler, two, three)
    work = scheduler.next(0.0)
    assert isinstance(work, Decode)
    assert (work.sequences, work.slots, work.context) == ((one, two, three), 4, 256)
    two.rows = 256
    scheduler.cancel(three, 0.0)
    work = scheduler.next(0.0)
    assert isinstance(work, Decode)
    assert (work.slots, work.context) == (2, 1024)


@pytest.mark.parametrize(("slot", "rows", "wanted"), [(0, 255, (1, 256)), (1, 256, (2, 1024)), (3, 0, (4, 256))])
def test_smallest_step(slot: int, rows: int, wanted: tuple[int, int]) -> None:
    one = sequence()
    admit(one, slot, 0)
    one.rows = rows
    assert smallest_step((one,), BUCKETS) == wanted


def test_a_parked_sequence_is_left_out() -> None:
    scheduler, one, two = made(), sequence(0), sequence(1)
    speaking(scheduler, one, two)
    scheduler.park(one)
    work = scheduler.next(0.0)
    assert isinstance(work, Decode)
    assert work.sequences == (two,)
    scheduler.park(two)
    assert scheduler.next(0.0) is None
    assert not scheduler.idle
    scheduler.unpark(one)
    work = scheduler.next(0.0)
    assert isinstance(work, Decode)
    assert work.sequences == (one,)


def test_first_come_first_served() -> None:
    scheduler = made(slots=2)
    queue = [sequence(k) for k in range(5)]
    for one in queue:
        scheduler.enqueue(one)
    read_whole(scheduler, queue[0])
    read_whole(scheduler, queue[1])
    assert [one.state for one in queue] == ["speaking", "speaking", "waiting", "waiting", "waiting"]
    scheduler.cancel(queue[3], 0.0)
    scheduler.finish(queue[1], "stop", 0.0)
    read_whole(scheduler, queue[2])
    assert slot_of(queue[2]) == 1
    assert [one.state for one in queue[3:]] == ["finished", "waiting"]


# --- which slot ----------------------------------------------------------------------------------------------------


def given_slot(scheduler: Scheduler, prompt: Prompt, now: float, number: int = 99) -> tuple[int, int]:
    """(slot, rows found there) of a request that comes now and leaves at once, its prefix not kept."""
    one = Sequence(number, prompt, 4)
    scheduler.enqueue(one)
    scheduler.next(now)
    found = slot_of(one), one.reused
    scheduler.finish(one, "failed", now)
    return found


def test_low_slots_first() -> None:
    scheduler = made()
    speaking(scheduler, sequence(0))
    assert given_slot(scheduler, counted(20), 0.0) == (1, 0)
    scheduler.slots[1].kept, scheduler.slots[1].since = kept(*range(500, 540)), 5.0
    assert given_slot(scheduler, counted(20), 6.0) == (1, 0)  # the bucket of two before an empty slot of four


def test_a_shared_prefix_is_found() -> None:
    scheduler = made()
    scheduler.slots[3].kept = kept(*range(40))
    assert given_slot(scheduler, counted(60), 1.0) == (3, 40)
    scheduler.slots[3].kept = kept(*range(40))
    assert given_slot(scheduler, counted(30), 1.0) == (3, 29)
    scheduler.slots[3].kept = kept(*range(40))
    assert given_slot(scheduler, counted(10), 1.0) == (0, 0)  # less than is worth it
    scheduler.slots[2].kept = kept(*range(20))
    assert given_slot(scheduler, counted(60), 1.0) == (3, 40)  # the longer of two


def test_a_small_share_of_a_long_prefix_leaves_it_alone() -> None:
    scheduler = made()
    scheduler.slots[2].kept = kept(*range(20), *range(900, 1000))
    assert given_slot(scheduler, counted(60), 1.0) == (0, 0)
    assert scheduler.slots[2].kept is not None
    only = made(slots=1)
    only.slots[0].kept = kept(*range(20), *range(900, 1000))
    assert given_slot(only, counted(60), 1.0) == (0, 20)  # it goes anyway


def test_a_long_prefix_is_spared_for_a_while() -> None:
    scheduler = made(spare_s=60.0, spare_rows=64)
    scheduler.slots[0].kept, scheduler.slots[0].since = kept(*range(500, 600)), 100.0
    assert given_slot(scheduler, counted(20), 159.0) == (1, 0)
    assert given_slot(scheduler, counted(20), 161.0) == (0, 0)
    scheduler.slots[0].kept, scheduler.slots[0].since = kept(*range(500, 550)), 100.0
    assert given_slot(scheduler, counted(20), 101.0) == (0, 0)


def test_the_oldest_of_spared_prefixes_goes() -> None:
    scheduler = made()
    for index, since in enumerate((4.0, 2.0, 1.0, 3.0)):
        scheduler.slots[index].kept, scheduler.slots[index].since = kept(*range(500, 600)), since
    assert given_slot(scheduler, counted(20), 5.0) == (0, 0)  # the smallest bucket comes before age
    for index in (0, 1):
        scheduler.slots[index].owner = sequence(7)
    assert given_slot(scheduler, counted(20), 5.0) == (2, 0)


def test_a_request_that_reuses_nothing() -> None:
    scheduler = made()
    scheduler.slots[0].kept = kept(*range(40))
    one = Sequence(0, counted(60), 4, reuse=False)
    scheduler.enqueue(one)
    scheduler.next(0.0)
    assert (slot_of(one), one.reused) == (0, 0)
    scheduler.has_read(one, 60)
    scheduler.finish(one, "stop", 0.0)
    assert all(slot.kept is None for slot in scheduler.slots)


def test_what_is_kept() -> None:
    scheduler, one = made(), sequence(0, 20)
    speaking(scheduler, one)
    scheduler.finish(one, "length", 3.0)
    slot = scheduler.slots[0]
    assert slot.kept is not None
    assert (len(slot.kept.ids), slot.owner, slot.since) == (20, None, 3.0)
    failed, short, unread = sequence(1, 40, first=900), sequence(2, 10, first=800), sequence(3, 40, first=700)
    for other in (failed, short):
        speaking(scheduler, other)
    scheduler.finish(failed, "failed", 4.0)
    scheduler.cancel(short, 4.0)
    scheduler.enqueue(unread)
    scheduler.next(5.0)
    scheduler.cancel(unread, 5.0)
    assert [len(slot.kept.ids) for slot in scheduler.slots if slot.kept is not None] in ([20], [])


# --- anything, in any order ----------------------------------------------------------------------------------------


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
