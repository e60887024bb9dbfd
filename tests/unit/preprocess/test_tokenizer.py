"""The embedded checkpoint's tokenizer; the real Qwen3 one is in test_qwen_tokenizer.py."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molmo2_iree.build.embedded_config import DEFAULT
from molmo2_iree.build.embedded_tokenizer import tokenizer_json
from molmo2_iree.errors import CheckpointError, RequestError, UnsupportedError
from molmo2_iree.preprocess.tokenizer import BYTE_OF, MULTIMODAL_TOKENS, Tokenizer, load_tokenizer
from molmo2_iree.runtime.detokenize import TextStream

CONTENT = tokenizer_json(DEFAULT)


@cache
def embedded() -> Tokenizer:
    return Tokenizer(json.dumps(CONTENT))


def changed(**fields: Any) -> str:
    return json.dumps({**copy.deepcopy(CONTENT), **fields})


def test_the_ten_multimodal_tokens_follow_the_vocabulary() -> None:
    assert [embedded().token_id(token) for token in MULTIMODAL_TOKENS] == list(range(512, 522))


def test_an_unknown_token_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no token <nothing>"):
        embedded().token_id("<nothing>")


@pytest.mark.parametrize("token", [entry["content"] for entry in CONTENT["added_tokens"]][:5] + list(MULTIMODAL_TOKENS))
def test_a_typed_special_token_is_text(token: str) -> None:
    ids = embedded().encode_text(f"a {token} b")
    assert max(ids) < 456
    assert embedded().decode(ids) == f"a {token} b"


@given(st.text())
def test_round_trip(text: str) -> None:
    ids = embedded().encode_text(text)
    assert all(0 <= number < 456 for number in ids)
    assert embedded().decode(ids) == text


@given(st.lists(st.integers(0, 700)))
def test_stream_equals_decode_for_any_ids(ids: list[int]) -> None:
    stream = TextStream(embedded())
    pieces = [stream.push(number) for number in ids] + [stream.flush()]
    assert "".join(pieces) == embedded().decode(ids)


def test_stream_holds_back_an_unfinished_character_only() -> None:
    stream, tokenizer = TextStream(embedded()), embedded()
    first, *rest = "né😀".encode()
    byte_id = {value: tokenizer.token_id(character) for character, value in BYTE_OF.items()}
    assert stream.push(byte_id[first]) == "n"
    assert [stream.push(byte_id[value]) for value in rest] == ["", "é", "", "", "", "😀"]
    assert stream.flush() == ""
    assert [stream.push(byte_id[0xF0]), stream.push(byte_id[0x41])] == ["", "�A"]
    assert [stream.push(byte_id[0xC3]), stream.flush(), stream.push(byte_id[0x42])] == ["", "�", "B"]


def test_stream_keeps_a_character_across_a_special_token() -> None:
    stream, tokenizer = TextStream(embedded()), embedded()
    first, second = (tokenizer.token_id({v: c for c, v in BYTE_OF.items()}[value]) for value in "é".encode())
    ids = [first, tokenizer.token_id("<|im_end|>"), second]
    assert [stream.push(number) for number in ids] == ["", "", "é"]
    assert tokenizer.decode(ids) == "é"


def test_decode_skips_special_tokens_and_cleans_nothing_up() -> None:
    tokenizer = embedded()
    ids = [*tokenizer.encode_text(" It 's  a , test ."), tokenizer.token_id("<|im_end|>"), 639]
    assert tokenizer.decode(ids) == " It 's  a , test ."


def test_pieces_split_at_template_tokens_only() -> None:
    tokenizer = embedded()
    end = tokenizer.token_id("<|im_end|>")
    pieces = [("<|im_end|>user\n", True), ("\nfoo<|im_end|>", False), ("<|im_end|>\n", True)]
    expected = [end, *tokenizer.encode_text("user\n\nfoo<|im_end|>"), end, *tokenizer.encode_text("\n")]
    assert tokenizer.encode_pieces(pieces) == expected
    assert tokenizer.encode_pieces([("<|im_", True), ("end|>", False)]) == tokenizer.encode_text("<|im_end|>")
    assert tokenizer.encode_pieces([]) == []


@given(st.lists(st.tuples(st.sampled_from(["a", "\n", "<|im_end|>", " ", "<|", "im_end|>", "é"]), st.booleans())))
def test_pieces_of_the_template_alone_equal_the_library(pieces: list[tuple[str, bool]]) -> None:
    tokenizer = embedded()
    text = "".join(piece for piece, _ in pieces)
    assert tokenizer.encode_pieces([(text, True)]) == tokenizer._whole.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode_pieces([(piece, False) for piece, _ in pieces]) == tokenizer.encode_text(text)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "x\ud83d"])
def test_lone_surrogates_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="lone surrogate"):
        embedded().encode_text(text)


def test_non_special_added_tokens_are_text_when_typed_and_shown_when_decoded() -> None:
    added = [*CONTENT["added_tokens"], {**CONTENT["added_tokens"][0], "id": 600, "content": "<call>", "special": False}]
    tokenizer = Tokenizer(changed(added_tokens=added))
    number = tokenizer.token_id("<call>")
    assert number not in tokenizer.encode_text("<call>")
    assert tokenizer.encode_pieces([("<call>", True)]) == [number]
    stream = TextStream(tokenizer)
    assert tokenizer.decode([number]) == stream.push(number) == "<call>"


def test_the_longest_of_overlapping_added_tokens_is_found() -> None:
    added = [*CONTENT["added_tokens"], {**CONTENT["added_tokens"][0], "id": 600, "content": "<|im_end|>\n"}]
    tokenizer = Tokenizer(changed(added_tokens=added))
    text = "a<|im_end|>\nb<|im_end|>"
    assert tokenizer.encode_pieces([(text, True)]) == tokenizer._whole.encode(text, add_special_tokens=False).ids


def test_merges_that_build_an_added_token_are_refused() -> None:
    vocabulary = CONTENT["model"]["vocab"]
    added = [*CONTENT["added_tokens"], {**CONTENT["added_tokens"][0], "id": vocabulary["q"], "content": "q"}]
    tokenizer = Tokenizer(changed(added_tokens=added))
    with pytest.raises(UnsupportedError, match="made from plain text"):
        tokenizer.encode_text("q")


def test_truncation_and_padding_of_the_file_do_not_touch_text() -> None:
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    assert len(Tokenizer(changed(truncation=cut)).encode_text("0 1 2 3 4 5 6 7 8 9")) > 10


def test_another_decoder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(changed(decoder={"type": "Fuse"}), encoding="utf-8")
    with pytest.raises(UnsupportedError, match="ByteLevel"):
        load_tokenizer(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"decoder": {"type": "ByteLevel"}}'])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_byte_alphabet_of_the_docstring() -> None:
    assert (BYTE_OF["A"], BYTE_OF["Ġ"]) == (65, 32)
    assert sorted(BYTE_OF.values()) == list(range(256))
