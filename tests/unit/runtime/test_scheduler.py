"""The scheduler's rules, one at a time."""

import pytest
from hand_sequences import BUCKETS, counted, kept, sequence

from molmo2_iree.runtime.prefix import Prompt
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
