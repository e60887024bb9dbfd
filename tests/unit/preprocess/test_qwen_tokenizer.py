"""The real Qwen3 tokenizer with Molmo2's tokens: the ids of Molmo2-4B and 8B, with transformers as second witness."""

import json
import unicodedata
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen_tokenizer import MULTIMODAL, fetch, molmo2_tokenizer
from tokenizers import Tokenizer as Library
from transformers import PreTrainedTokenizerFast
from unit.preprocess.samples import RELEASED, photo_of, with_bos

from molmo2_iree.build.embedded import chat_template
from molmo2_iree.preprocess.prepare import HostProcessor, prepare
from molmo2_iree.preprocess.prompt import compile_template, messages_for
from molmo2_iree.preprocess.tokenizer import Tokenizer
from molmo2_iree.runtime.detokenize import TextStream

END, START, PAD = 151_645, 151_644, 151_643


@cache
def described() -> str:
    return json.dumps(molmo2_tokenizer())


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(described())


@cache
def witness() -> PreTrainedTokenizerFast:
    library = Library.from_str(described())
    return PreTrainedTokenizerFast(tokenizer_object=library, eos_token="<|im_end|>", chat_template=chat_template())


@cache
def processor() -> HostProcessor:
    return HostProcessor(with_bos(RELEASED, END), tokenizer(), compile_template(chat_template()))


def witness_ids(messages: list[dict[str, Any]], grids: list[list[int]]) -> list[int]:
    """The native processor's way: the BOS string in front, each placeholder replaced by token strings, one encoding."""
    prompt = witness().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    head, *rest = str(prompt).split("<|image|>")
    for (low_rows, low_columns, rows, columns), after in zip(grids, rest, strict=True):
        low = "<low_res_im_start>" + "<im_patch>" * low_rows * low_columns + "<im_end>"
        high = "<im_start>" + ("<im_patch>" * columns + "<im_col>") * rows + "<im_end>"
        head += low + high + after
    return witness()("<|im_end|>" + head, add_special_tokens=False)["input_ids"]


def test_the_fetched_file_is_qwens() -> None:
    added = json.loads(fetch().read_text(encoding="utf-8"))["added_tokens"]
    assert (added[0]["id"], added[-1]["id"]) == (151_643, 151_668)


def test_ids_of_special_tokens() -> None:
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *MULTIMODAL]
    assert [tokenizer().token_id(name) for name in names] == [PAD, START, END, *range(151_936, 151_946)]


def test_ids_of_ordinary_text() -> None:
    assert tokenizer().encode_text("Describe this image.") == [74785, 419, 2168, 13]
    assert tokenizer().encode_text("user\n") == [872, 198]
    assert tokenizer().encode_text("Hello, world! 你好") == [9707, 11, 1879, 0, 220, 108386]


def test_known_prompt_of_the_largest_kind() -> None:
    payload = prepare(processor(), messages_for("Describe this image.", 1), [photo_of(480, 640)])
    ids = payload.ids.tolist()
    assert ids[:2] == [END, 151_940]
    tail = [START, 872, 198, 74785, 419, 2168, 13, END, 198, START, 77091, 198]
    assert ids[-12:] == tail
    assert len(ids) == 1 + 196 + 23 * 24 + 4 + 12
    assert int(payload.types.sum()) == 196 + 23 * 24 + 4
    assert ids == witness_ids(messages_for("Describe this image.", 1), payload.grids.tolist())


CONVERSATIONS: dict[str, list[tuple[str, str, int]]] = {
    "newlines at the border": [("user", "\n\nfoo\n", 0)],
    "spaces at the border": [("user", "  foo  ", 2)],
    "two turns": [("user", "Where is it?", 1), ("assistant", "There.", 0), ("user", "  And\nnow? ", 1)],
    "digits and quotes": [("user", "I'll pay 1234.50 for it's 'name'", 3)],
    "unicode": [("user", "é e\u0301 你好 😀 \u200b नमस्ते", 1)],
    "an empty answer": [("user", "a", 0), ("assistant", "", 0), ("user", "b", 0)],
}


def messages_of(turns: list[tuple[str, str, int]]) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": [*[{"type": "image"}] * images, {"type": "text", "text": said}]}
        for role, said, images in turns
    ]


@pytest.mark.parametrize("turns", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_ids_equal_the_witness(turns: list[tuple[str, str, int]]) -> None:
    messages = messages_of(turns)
    photos = [photo_of(120 + 300 * k, 400) for k in range(sum(images for _, _, images in turns))]
    payload = prepare(processor(), messages, photos)
    assert payload.ids.tolist() == witness_ids(messages, payload.grids.tolist())


@given(st.text(min_size=1), st.text(), st.text(min_size=1))
@settings(deadline=None)
def test_any_ordinary_text_gives_the_witness_ids(first: str, answer: str, second: str) -> None:
    messages = messages_of([("user", first, 0), ("assistant", answer, 0), ("user", second, 0)])
    assert prepare(processor(), messages).ids.tolist() == witness_ids(messages, [])


@cache
def added() -> list[str]:
    return [entry["content"] for entry in molmo2_tokenizer()["added_tokens"]]


def test_no_typed_added_token_becomes_its_id() -> None:
    assert len(added()) == 26 + 267 + 10
    for token in added():
        for said in (token, f"a {token} b", token * 2):
            ids = tokenizer().encode_text(said)
            assert max(ids) < PAD, token
            assert tokenizer().decode(ids) == said


TYPED = st.deferred(lambda: st.sampled_from(added())) | st.text(max_size=5)


@given(st.lists(TYPED, min_size=1).map("".join).filter(bool))
@settings(deadline=None)
def test_typed_added_tokens_leave_the_prompts_own_alone(said: str) -> None:
    ids = prepare(processor(), messages_for(said)).ids
    assert ids[ids >= PAD].tolist() == [END, START, END, START]


@given(st.text())
@settings(deadline=None)
def test_round_trip_up_to_unicode_composition(said: str) -> None:
    assert tokenizer().decode(tokenizer().encode_text(said)) == unicodedata.normalize("NFC", said)


@given(st.lists(st.integers(0, 152_063) | st.integers(0, 255) | st.integers(151_640, 151_950)))
@settings(deadline=None)
def test_stream_equals_decode(ids: list[int]) -> None:
    stream = TextStream(tokenizer())
    assert "".join([*map(stream.push, ids), stream.flush()]) == tokenizer().decode(ids)


def test_stream_never_shows_half_a_character() -> None:
    said = "日本語 😀👩‍👩‍👧 naïve 🏳️‍🌈 नमस्ते 𝔘"
    stream = TextStream(tokenizer())
    pieces = [stream.push(number) for number in tokenizer().encode_text(said)]
    assert "�" not in "".join(pieces)
    assert "".join(pieces) == said


def test_a_long_text_equals_the_witness() -> None:
    said = "A sentence of ordinary words, repeated. " * 2000
    assert np.array_equal(tokenizer().encode_text(said), witness()(said, add_special_tokens=False)["input_ids"])
