"""Ids to text, one at a time, UTF-8 safe: a character whose bytes are split over ids appears when it is whole."""

import codecs

from molmo2_iree.preprocess.tokenizer import Tokenizer


class TextStream:
    """Text of ids that arrive one at a time; the pieces joined are what ``decode`` gives for all of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, number: int) -> str:
        """Text that id ``number`` completes; a character whose bytes are not all there yet is held back."""
        return self._decoder.decode(self._tokenizer.token_bytes(number))

    def flush(self) -> str:
        """What is held back, at the end: nothing, or U+FFFD for an unfinished character. The stream starts anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
