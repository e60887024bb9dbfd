"""The model's sizes and its files without weights: configuration, tokenizer and chat template, as in a release."""

import json
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from molmo2_iree.architecture import Architecture
from molmo2_iree.build.embedded import chat_template
from molmo2_iree.build.embedded_config import MERGES, Variant, json_files
from molmo2_iree.build.embedded_tokenizer import byte_symbols, learn_merges, tokenizer_json
from molmo2_iree.detect import read_architecture
from molmo2_iree.preprocess.prepare import HostProcessor
from molmo2_iree.preprocess.prompt import compile_template
from molmo2_iree.preprocess.tokenizer import Tokenizer
from training.questions import NO_PICTURE, SINGLE, compare
from training.world import make_scene

VARIANT = Variant(
    vit_width=128,
    vit_heads=4,
    vit_head_dim=32,
    vit_intermediate=384,
    vit_blocks=7,
    vit_layers=(-3, -5),
    patch_size=12,
    adapter_intermediate=256,
    max_crops=4,
    text_width=128,
    head_dim=32,
    text_intermediate=384,
    rope_theta=1e4,
)
"""The trained model: 7 blocks declared and 5 stored, 7 x 7 patches of 12 pixels a crop, four crops at most."""


def sample_text(count: int = 1500) -> str:
    """Questions with their answers, for the tokenizer to learn its merges from; always the same."""
    generator = np.random.default_rng(2026)
    lines = [NO_PICTURE] * (count // 50)
    for _ in range(count):
        scenes = make_scene(generator, 100, 100, anywhere=True), make_scene(generator, 100, 100, anywhere=True)
        asks = [maker(generator, scenes[0]) for maker, shares in SINGLE.values() if shares[0]]
        asks.append(compare(generator, *scenes))
        lines += [f"{ask.question} {ask.answer}" for ask in asks if ask]
    ordinary = resources.files("molmo2_iree.build").joinpath("embedded_text.txt").read_text(encoding="utf-8")
    return "\n".join([ordinary, *["user assistant Image"] * (count // 10), *lines])


@cache
def tokenizer_file() -> str:
    """Content of tokenizer.json: the embedded miniature's, with merges for this world's words."""
    data = tokenizer_json(VARIANT)
    merges = learn_merges(sample_text(), MERGES)
    symbols = [*byte_symbols(), *("".join(pair) for pair in merges)]
    data["model"] |= {
        "vocab": {symbol: number for number, symbol in enumerate(symbols)},
        "merges": [list(pair) for pair in merges],
    }
    return _text(data)


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def small_files(variant: Variant = VARIANT, dtype: str = "float32") -> dict[str, bytes]:
    """Every file but the weights, by name."""
    data = json_files(variant)
    data["config.json"]["dtype"] = dtype
    files = {name: _text(content).encode() for name, content in data.items()}
    return files | {"tokenizer.json": tokenizer_file().encode(), "chat_template.jinja": chat_template().encode()}


def architecture(variant: Variant = VARIANT) -> Architecture:
    """The project's own reading of the configuration files."""
    return read_architecture(json_files(variant))


@cache
def host(variant: Variant = VARIANT) -> HostProcessor:
    """The project's own preparation of prompts and pictures for this model."""
    return HostProcessor(architecture(variant), Tokenizer(tokenizer_file()), compile_template(chat_template()))
