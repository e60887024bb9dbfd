"""The checkpoint's tokenizer, with one rule added: what a user typed is text, never a special token.

``tokenizer.json`` lists added tokens (``<|im_end|>``, ``<|image|>``, ``<tool_call>``, ...). The tokenizers library
looks for them in every text it is given, and its ``encode_special_tokens`` only exempts those marked special. So text
goes through a second instance that has no added tokens at all, and added tokens are found only in the template's own
text.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers

from molmo2_iree.errors import CheckpointError, RequestError, UnsupportedError

MULTIMODAL_TOKENS = (
    "<im_start>",
    "<im_end>",
    "<im_patch>",
    "<im_col>",
    "<low_res_im_start>",
    "<|image|>",
    "<im_low>",
    "<frame_start>",
    "<frame_end>",
    "<|video|>",
)
"""In the order of their ids, from the text vocabulary's size on (contract 1.5)."""

IMAGE_PLACEHOLDER = "<|image|>"


class Tokenizer:
    """Text to ids and back. Made by :func:`load_tokenizer`; safe to share between threads."""

    def __init__(self, content: str) -> None:
        """``content`` is the text of a ``tokenizer.json`` with a byte-level decoder."""
        described = json.loads(content)
        decoder = (described.get("decoder") or {}).get("type")
        if decoder != "ByteLevel":
            raise UnsupportedError(
                "tokenizer.json decoder", got=decoder, expected="ByteLevel", fix="use a byte-level BPE checkpoint"
            )
        self._whole = tokenizers.Tokenizer.from_str(content)
        plain = {**described, "added_tokens": [], "truncation": None, "padding": None, "post_processor": None}
        self._plain = tokenizers.Tokenizer.from_str(json.dumps(plain))
        added = self._whole.get_added_tokens_decoder()
        self._added = {token.content: number for number, token in added.items()}
        self._special = {number for number, token in added.items() if token.special}
        self.stripping = [t.content for t in added.values() if t.lstrip or t.rstrip or t.single_word]
        """Added tokens that swallow white space or need a word boundary; a template that has one is refused."""
        longest_first = sorted(self._added, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(content) for content in longest_first) or r"(?!)")

    def token_id(self, token: str) -> int:
        """Id of a token given as it stands in ``tokenizer.json``."""
        number = self._whole.token_to_id(token)
        if number is None:
            raise CheckpointError(
                "tokenizer.json", got=f"no token {token}", expected=token, fix="fetch the checkpoint again"
            )
        return number

    def finds_added(self, text: str) -> str | None:
        """The first added token that stands in ``text``, or None."""
        found = self._pattern.search(text)
        return found.group() if found else None

    def encode_text(self, text: str) -> list[int]:
        """Ids of text that is only text: a typed ``<|im_end|>`` becomes ordinary byte-level tokens."""
        ids = self._plain.encode(check_text(text, "text"), add_special_tokens=False).ids
        forbidden = set(ids) & set(self._added.values())
        if forbidden:
            raise UnsupportedError(
                "tokenizer.json",
                got=f"added tokens {sorted(forbidden)} made from plain text",
                expected="merges that never build an added token",
                fix="use a tokenizer.json whose merges leave the added tokens out",
            )
        return ids

    def encode_pieces(self, pieces: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of the joined pieces, each (text, whether it is the template's).

        Added tokens are found only inside a template's piece, and only they split the text: all else between two of
        them is encoded in one go, so that a border between template and user text leaves no mark in the ids.
        """
        ids: list[int] = []
        text = ""
        for piece, from_template in pieces:
            start = 0
            for found in self._pattern.finditer(piece) if from_template else ():
                ids += self.encode_text(text + piece[start : found.start()])
                ids.append(self._added[found.group()])
                text, start = "", found.end()
            text += piece[start:]
        return ids + self.encode_text(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids: special tokens skipped, nothing cleaned up, broken UTF-8 as U+FFFD."""
        return self._whole.decode(list(ids), skip_special_tokens=True)

    def token_bytes(self, number: int) -> bytes:
        """Bytes that id ``number`` adds to a text; none for special tokens and for ids without a token."""
        token = None if number in self._special else self._whole.id_to_token(number)
        if token is None:
            return b""
        values = [BYTE_OF.get(character) for character in token]
        known = [value for value in values if value is not None]
        return bytes(known) if len(known) == len(values) else token.encode()


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json``. Raises CheckpointError where it is missing or damaged."""
    try:
        return Tokenizer(path.read_text(encoding="utf-8"))
    except OSError as wrong:
        raise CheckpointError(
            str(path), got=wrong.strerror, expected="the checkpoint's tokenizer", fix="fetch the checkpoint again"
        ) from wrong
    except UnsupportedError:
        raise
    except Exception as wrong:  # the tokenizers library raises plain Exception
        raise CheckpointError(
            str(path), got=f"a damaged file ({wrong})", expected="a tokenizer.json", fix="fetch the checkpoint again"
        ) from wrong


def check_text(text: str, where: str) -> str:
    """``text`` itself, or RequestError where it holds half of a surrogate pair and so has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError as wrong:
        raise RequestError(
            where,
            got=f"a lone surrogate, {text[wrong.start]!a}, at character {wrong.start}",
            expected="text that UTF-8 can hold",
            fix="decode the input as UTF-8 before passing it",
        ) from wrong
    return text


def _byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for.

    Printable Latin-1 stands for itself, the other 68 bytes, in order, are characters from U+0100 on: "A" is 65, and
    32, the space, is "Ġ" (U+0120), being number 32 of the others.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    return {chr(v): v for v in printable} | {chr(0x100 + k): v for k, v in enumerate(others)}


BYTE_OF = _byte_alphabet()
