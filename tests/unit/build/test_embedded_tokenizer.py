import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from molmo2_iree.build.embedded import DEFAULT, OLMO, checkpoint_files
from molmo2_iree.build.embedded_config import MERGES
from molmo2_iree.build.embedded_tokenizer import byte_symbols, learn_merges, special_tokens

FILES = checkpoint_files()
TOKENIZER = Tokenizer.from_str(FILES["tokenizer.json"].decode())


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@given(st.lists(st.sampled_from([*special_tokens(DEFAULT), " a", "\n", "é", "<|", "im_end"])))
def test_special_tokens_come_back_among_text(parts: list[str]) -> None:
    text = "".join(parts)
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("byte", range(256))
def test_bytes_are_the_first_ids(byte: int) -> None:
    assert TOKENIZER.id_to_token(byte) == byte_symbols()[byte]


def test_byte_symbols_example() -> None:
    assert (byte_symbols()[65], byte_symbols()[32]) == ("A", chr(256 + 32))
    assert len(set(byte_symbols())) == 256


def test_special_ids_are_in_the_released_order() -> None:
    config = json.loads(FILES["config.json"])
    named = {
        "<im_start>": "image_start_token_id",
        "<im_end>": "image_end_token_id",
        "<im_patch>": "image_patch_id",
        "<im_col>": "image_col_id",
        "<low_res_im_start>": "low_res_image_start_token_id",
        "<|image|>": None,
        "<im_low>": "image_low_res_id",
        "<frame_start>": "frame_start_token_id",
        "<frame_end>": "frame_end_token_id",
        "<|video|>": None,
    }
    for number, (name, key) in enumerate(named.items(), start=512):
        assert TOKENIZER.token_to_id(name) == number
        assert key is None or config[key] == number
    assert [TOKENIZER.token_to_id(name) for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [456, 457, 458]
    assert all(DEFAULT.token(name) == TOKENIZER.token_to_id(name) for name in (*named, "<|im_end|>", "<|endoftext|>"))


def test_generation_ids() -> None:
    assert json.loads(FILES["generation_config.json"]) | {"transformers_version": ""} == {
        "bos_token_id": 458,
        "eos_token_id": 458,
        "pad_token_id": 456,
        "transformers_version": "",
    }
    olmo = json.loads(checkpoint_files(variant=OLMO)["generation_config.json"])
    assert (olmo["bos_token_id"], olmo["eos_token_id"]) == (456, [458, 456])


def test_every_id_decodes() -> None:
    assert TOKENIZER.get_vocab_size() == 522
    assert sorted(TOKENIZER.get_vocab().values()) == list(range(522))
    for number in range(128):
        assert TOKENIZER.decode([number]) == chr(number)
    for number in range(128, 522):
        assert TOKENIZER.decode([number], skip_special_tokens=False)


def test_words_of_the_training_text_are_short() -> None:
    assert TOKENIZER.encode("What is in this image?").tokens == ["What", "Ġis", "Ġin", "Ġthis", "Ġimage", "?"]
    assert TOKENIZER.encode("<|im_start|>user\nHi 12<|im_end|>\n").tokens[0] == "<|im_start|>"
    assert TOKENIZER.encode("42").tokens == ["4", "2"]


def test_merges_by_hand() -> None:
    """abab abab: (a, b) four times, then (ab, ab) twice, then the space of the second word."""
    assert learn_merges("abab abab", 3) == [("a", "b"), ("ab", "ab"), ("Ġ", "abab")]
    merges = json.loads(FILES["tokenizer.json"])["model"]["merges"]
    assert len(merges) == len({tuple(pair) for pair in merges}) == MERGES
