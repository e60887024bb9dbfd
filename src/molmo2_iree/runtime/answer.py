"""One request's answer: logits in, tokens with their text out, until it ends. V is the vocabulary."""

from collections.abc import Callable
from typing import Any

import numpy as np

from molmo2_iree.architecture import Architecture
from molmo2_iree.preprocess.tokenizer import Tokenizer
from molmo2_iree.runtime.detokenize import TextStream
from molmo2_iree.runtime.events import Token
from molmo2_iree.runtime.request import Request
from molmo2_iree.runtime.sampling import Sampler
from molmo2_iree.runtime.sequence import Reason
from molmo2_iree.runtime.stopping import StopText


class Answer:
    """Sampler, grammar, detokeniser and stop strings of one request, put together."""

    def __init__(self, request: Request, tokenizer: Tokenizer, architecture: Architecture) -> None:
        vocabulary = architecture.text.vocabulary
        self._sampler = Sampler(request.sampling, request.seed, request.prompt.ids, vocabulary)
        self._constraint = request.grammar.start() if request.grammar else None
        self._stream, self._text = TextStream(tokenizer), StopText(request.stopping.strings)
        end = () if request.stopping.ignore_end else architecture.tokens.stop
        self._stop_ids = frozenset((*end, *request.stopping.ids))
        self._max_tokens, self._count = request.max_tokens, 0

    @property
    def ready(self) -> bool:
        """Whether :meth:`take` will not wait for a grammar."""
        return self._constraint is None or self._constraint.ready

    def when_ready(self, call: Callable[[], Any]) -> None:
        """Call ``call`` once, on any thread, when :meth:`take` will not wait."""
        if self._constraint is None:
            call()
        else:
            self._constraint.when_ready(call)

    def take(self, logits: np.ndarray) -> tuple[Token | None, Reason | None]:
        """The next token of finite logits [V], and why the answer ends with it; a stop id is no token."""
        choice = self._sampler.choose(logits, self._constraint.allowed() if self._constraint else None)
        if choice.id in self._stop_ids:
            return None, "stop"
        text = self._text.push(self._stream.push(choice.id))
        token = Token(self._count, choice.id, text, choice.logprobs)
        self._count += 1
        if self._constraint is not None:
            self._constraint.take(choice.id)
        if self._text.stopped or (self._constraint is not None and self._constraint.ended):
            return token, "stop"
        return token, "length" if self._count == self._max_tokens else None

    def flush(self) -> str:
        """What is held back at the end: nothing after a stop string."""
        return self._text.push(self._stream.flush()) + self._text.flush()
