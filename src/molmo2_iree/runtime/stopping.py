"""When an answer ends: at a stop id, at a stop string wherever tokens cut it, or at the most tokens asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

from molmo2_iree.errors import RequestError
from molmo2_iree.preprocess.tokenizer import check_text
from molmo2_iree.runtime.checks import instance, whole

MOST_STRINGS = 16
LONGEST = 256
"""Characters of a stop string."""
MOST_IDS = 64


@dataclass(frozen=True)
class Stopping:
    """What ends an answer besides the most tokens. Neither a stop string nor a stop id becomes part of it.

    ``ids`` are added to the checkpoint's own stop ids; ``ignore_end`` leaves the checkpoint's out.
    """

    strings: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    ignore_end: bool = False


def check_stopping(stopping: Stopping, vocabulary: int) -> None:
    """Refuse, with RequestError, too many or empty strings, and ids that an answer can never hold."""
    instance("stopping", stopping, Stopping)
    instance("stop", stopping.strings, tuple)
    instance("stop ids", stopping.ids, tuple)
    whole("number of stop strings", len(stopping.strings), 0, MOST_STRINGS)
    whole("number of stop ids", len(stopping.ids), 0, MOST_IDS)
    for k, string in enumerate(stopping.strings):
        instance(f"stop[{k}]", string, str)
        check_text(string, f"stop[{k}]")
        if not string:
            raise RequestError(f"stop[{k}]", got="an empty string", expected="text to stop at", fix="leave it out")
        whole(f"characters of stop[{k}]", len(string), 1, LONGEST)
    for k, token in enumerate(stopping.ids):
        whole(f"stop ids[{k}]", token, 0, vocabulary - 1)


class StopText:
    """Text that arrives in pieces, let through as soon as it cannot be the beginning of a stop string."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings, self._held = tuple(strings), ""
        self._longest = max(map(len, strings), default=0)
        self.stopped = False
        """Whether a stop string was complete; nothing is let through after it."""

    def push(self, text: str) -> str:
        """What may be shown now. With "end" to stop at, "the e", "n", "d!" give "the ", "" and "", and it stops."""
        if not self._strings or self.stopped:
            return "" if self.stopped else text
        whole_text = self._held + text
        found = [at for at in map(whole_text.find, self._strings) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return whole_text[: min(found)]
        keep = self._beginning(whole_text)
        self._held = whole_text[len(whole_text) - keep :]
        return whole_text[: len(whole_text) - keep]

    def flush(self) -> str:
        """What is held back, when the answer ends for another reason."""
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """Characters at the end of ``text`` that a stop string may begin with: of "the e" with "end", 1."""
        most = min(self._longest - 1, len(text))
        return next((size for size in range(most, 0, -1) if any(s.startswith(text[-size:]) for s in self._strings)), 0)
