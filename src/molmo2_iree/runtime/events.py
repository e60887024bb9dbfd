"""What the engine tells about a request: a token at a time, then how it ended."""

from dataclasses import dataclass

from molmo2_iree.errors import MolmoError
from molmo2_iree.runtime.sampling import Logprobs
from molmo2_iree.runtime.sequence import Reason


@dataclass(frozen=True)
class Token:
    """One id of the answer. ``text`` is what may be shown now: characters may wait for their bytes, and text for
    the rest of a stop string, so it can be empty and may hold text of earlier ids."""

    index: int
    id: int
    text: str
    logprobs: Logprobs | None = None


@dataclass(frozen=True)
class Usage:
    """Tokens of the prompt, pictures included; how many of them were found in the slot; tokens of the answer."""

    prompt: int
    reused: int
    answer: int


@dataclass(frozen=True)
class Times:
    """Seconds of ``time.monotonic``; None for what did not happen."""

    submitted: float
    admitted: float | None
    first_token: float | None
    finished: float


@dataclass(frozen=True)
class Finished:
    """The last event of every request. ``text`` was held back and belongs to the answer.

    Reasons: "stop" (a stop id or string, or the grammar's end), "length" (the most tokens asked for), "cancelled",
    "failed" with the ``error``: an EngineError is a fault on this side, a RequestError one of the request.
    """

    reason: Reason
    text: str
    usage: Usage
    times: Times
    error: MolmoError | None = None


Event = Token | Finished
