"""The embedded checkpoint's tokenizer.json: byte-level BPE whose merges are learned here, from a short text.

Ids: 0..255 are the bytes, then the merges, the special text tokens, fillers up to the vocabulary V, and the ten
multimodal tokens from V on, as a release orders them (contract 1.5).
"""

import re
from collections import Counter
from importlib import resources
from itertools import pairwise
from typing import Any

from molmo2_iree.build.embedded_config import MERGES, MULTIMODAL_TOKENS, TEXT_TOKENS, Variant

SPLIT = r"'\p{L}{1,2}\b|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Pieces that merges never cross: contractions, words with one leading mark or space, digits, marks, white space."""

_PIECES = re.compile(r"[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+")

Pair = tuple[str, str]


def byte_symbols() -> list[str]:
    """The character that stands for each byte in a byte-level BPE: printable ones themselves, others 256 upwards.

    Byte 65 is ``A``, byte 32 (space) is the 33rd without a printable form and so ``chr(256 + 32)``.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


def learn_merges(text: str, count: int) -> list[Pair]:
    """The ``count`` first merges of BPE over ``text``: always the most frequent pair, ties by code point order."""
    symbols = byte_symbols()
    pieces = Counter(tuple(symbols[byte] for byte in piece.encode()) for piece in _PIECES.findall(text))
    merges: list[Pair] = []
    while len(merges) < count:
        pairs: Counter[Pair] = Counter()
        for piece, times in pieces.items():
            for pair in pairwise(piece):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for piece, times in pieces.items():
            merged[_join(piece, best)] += times
        pieces = merged
    return merges


def _join(piece: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    """Replace each ``pair`` from the left: (a, b, a, b, c) with (a, b) is (ab, ab, c)."""
    joined: list[str] = []
    position = 0
    while position < len(piece):
        width = 2 if piece[position : position + 2] == pair else 1
        joined.append("".join(piece[position : position + width]))
        position += width
    return tuple(joined)


def special_tokens(variant: Variant) -> dict[str, int]:
    """Every special token and its id, in id order; the fillers make the multimodal tokens start at V."""
    first = 256 + MERGES
    fillers = [f"<|extra_{k}|>" for k in range(variant.vocabulary - first - len(TEXT_TOKENS))]
    names = [*TEXT_TOKENS, *fillers, *MULTIMODAL_TOKENS]
    return {name: first + k for k, name in enumerate(names)}


def tokenizer_json(variant: Variant) -> dict[str, Any]:
    """The content of tokenizer.json. No normaliser, so any UTF-8 text comes back as it went in."""
    text = resources.files("molmo2_iree.build").joinpath("embedded_text.txt").read_text(encoding="utf-8")
    merges = learn_merges(text, MERGES)
    vocabulary = [*byte_symbols(), *("".join(pair) for pair in merges)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(name, number) for name, number in special_tokens(variant).items()],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
                _byte_level(),
            ],
        },
        "post_processor": _byte_level(),
        "decoder": _byte_level(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {symbol: number for number, symbol in enumerate(vocabulary)},
            "merges": [list(pair) for pair in merges],
        },
    }


def _byte_level() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def _added(name: str, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "content": name,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
