"""What the engine counts. Counters only rise; gauges are taken when asked. Any thread may read a copy."""

from collections import Counter
from dataclasses import dataclass, field

from molmo2_iree.runtime.scheduler import Scheduler
from molmo2_iree.runtime.sequence import Reason


@dataclass
class Counters:
    """Totals since the start; tokens count pictures as they stand in the prompt."""

    submitted: int = 0
    refused: int = 0
    """Requests that were not taken because the queue was full or the engine was ending."""
    finished: Counter[Reason] = field(default_factory=Counter[Reason])
    prompt_tokens: int = 0
    """Of admitted requests,"""
    reused_tokens: int = 0
    """of which these were found in their slot."""
    answer_tokens: int = 0
    picture_queries: int = 0
    """Pictures of admitted requests that had to be known,"""
    picture_hits: int = 0
    """of which these were in the picture cache."""
    units: Counter[str] = field(default_factory=Counter[str])
    """Units of reading by kind: Look, Prefill, Extend."""
    steps: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    """Decode steps by bucket (slots, context)."""
    step_tokens: int = 0
    """Tokens that decode steps gave; over the sum of ``steps`` it is the mean batch."""
    failed_steps: int = 0
    step_s: float = 0.0
    """Seconds spent in units and steps."""


@dataclass(frozen=True)
class Metrics:
    """A copy of the counters, and how things stand."""

    counters: Counters
    waiting: int
    reading: int
    speaking: int
    slots: int
    rows_owned: int
    """Rows of waiting and speaking sequences in the cache,"""
    rows_kept: int
    """rows of kept prefixes,"""
    rows: int
    """and rows there are."""
    picture_bytes: int
    ready: bool


def copied(counters: Counters) -> Counters:
    """A copy that no longer changes."""
    taken = Counters(**vars(counters))
    taken.finished, taken.units, taken.steps = counters.finished.copy(), counters.units.copy(), counters.steps.copy()
    return taken


def rows_held(scheduler: Scheduler) -> tuple[int, int]:
    """(rows of owned slots, rows of kept prefixes)."""
    slots = list(scheduler.slots)
    owned = sum(slot.owner.rows for slot in slots if slot.owner is not None)
    return owned, sum(len(slot.kept.ids) for slot in slots if slot.kept is not None)
