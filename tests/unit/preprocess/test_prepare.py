"""The host side from messages and pictures to a checked payload, on the embedded checkpoint's own files."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from unit.preprocess.samples import SMALL, small_photo, with_bos

from molmo2_iree.architecture import Architecture
from molmo2_iree.build.embedded import OLMO, Variant, chat_template
from molmo2_iree.build.embedded_config import DEFAULT, json_files
from molmo2_iree.build.embedded_tokenizer import tokenizer_json
from molmo2_iree.detect import read_architecture
from molmo2_iree.errors import CheckpointError, RequestError, UnsupportedError
from molmo2_iree.preprocess.crops import cut_image
from molmo2_iree.preprocess.payload import check_payload
from molmo2_iree.preprocess.picture import open_picture
from molmo2_iree.preprocess.prepare import HostProcessor, load_processor, prepare, prompt_ids
from molmo2_iree.preprocess.prompt import messages_for


def folder_of(folder: Path, variant: Variant = DEFAULT) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(variant)), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(chat_template(), encoding="utf-8")
    return folder


@pytest.fixture
def processor(tmp_path: Path) -> HostProcessor:
    return load_processor(folder_of(tmp_path), SMALL)


def test_one_picture(processor: HostProcessor) -> None:
    photo = small_photo(150, 90)
    payload = prepare(processor, messages_for("Describe this image.", 1), [photo])
    image = cut_image(photo, SMALL.processor)
    np.testing.assert_array_equal(payload.patches, image.patches)
    np.testing.assert_array_equal(payload.groups, image.groups)
    assert (payload.grids.tolist(), payload.crops.tolist()) == ([[4, 4, 6, 4]], [3])
    token = processor.tokenizer.token_id
    start, end = token("<|im_start|>"), token("<|im_end|>")
    text = processor.tokenizer.encode_text
    high = [*[514] * 4, 515] * 6
    vision = [516, *[514] * 16, 513, 512, *high, 513]
    question = [start, *text("user\nDescribe this image."), end, *text("\n"), start, *text("assistant\n")]
    assert payload.ids.tolist() == [end, *vision, *question]
    assert payload.types.tolist() == [0, *[1] * len(vision), *[0] * len(question)]


def test_no_picture(processor: HostProcessor) -> None:
    payload = prepare(processor, messages_for("Hello"))
    assert (payload.images, payload.patches.shape, payload.groups.shape) == (0, (0, 49, 588), (0, 4))
    assert not payload.types.any()


def test_several_pictures_keep_their_order_and_labels(processor: HostProcessor) -> None:
    photos = [small_photo(50, 50), small_photo(150, 90)]
    payload = prepare(processor, messages_for("Compare.", 2), photos)
    assert payload.crops.tolist() == [2, 3]
    for image, photo in zip(payload, photos, strict=True):
        np.testing.assert_array_equal(image.patches, cut_image(photo, SMALL.processor).patches)
        np.testing.assert_array_equal(image.groups, cut_image(photo, SMALL.processor).groups)
    text = processor.tokenizer.encode_text
    ids = payload.ids.tolist()
    assert ids[1 : 1 + len(text("Image 1"))] == text("Image 1")
    second = ids.index(516, ids.index(516) + 1)
    assert ids[second - len(text("Image 2")) : second] == text("Image 2")


def test_every_kind_of_source_gives_the_same(processor: HostProcessor, tmp_path: Path) -> None:
    photo = small_photo(150, 90)
    buffer = io.BytesIO()
    Image.fromarray(photo).save(buffer, "PNG")
    (tmp_path / "photo.png").write_bytes(buffer.getvalue())
    sources = [photo, Image.fromarray(photo), buffer.getvalue(), tmp_path / "photo.png"]
    for source in sources:
        np.testing.assert_array_equal(open_picture(source), photo)
        payload = prepare(processor, messages_for("x", 1), [source])
        np.testing.assert_array_equal(payload.patches, cut_image(photo, SMALL.processor).patches)


FLAGS = [(a, b, c) for a in (True, False) for b in (True, False) for c in (True, False)]


@pytest.mark.parametrize(("column", "single", "start"), FLAGS)
def test_every_flag_combination_passes_the_check(tmp_path: Path, column: bool, single: bool, start: bool) -> None:
    flags = {"column_tokens": column, "single_crop_column_tokens": single, "single_crop_start_token": start}
    architecture = SMALL.model_copy(update={"processor": SMALL.processor.model_copy(update=flags)})
    payload = prepare(load_processor(folder_of(tmp_path), architecture), messages_for("x", 1), [small_photo(150, 90)])
    ids = payload.ids.tolist()
    assert ids.count(514) == 16 + 24
    assert ids.count(515) == 6 * column + 4 * single
    assert (ids.count(516), ids.count(512)) == ((1, 1) if start else (0, 2))
    assert int(payload.types.sum()) == 40 + 6 * column + 4 * single + 4


def test_bos_is_inserted_unless_the_prompt_starts_with_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    start = DEFAULT.token("<|im_start|>")
    for architecture, first in ((SMALL, [DEFAULT.token("<|im_end|>"), start]), (with_bos(SMALL, start), [start])):
        ids = prepare(load_processor(folder, architecture), messages_for("x")).ids.tolist()
        assert (
            ids[: len(first) + 1]
            == [*first, *load_processor(folder, architecture).tokenizer.encode_text("user\n")][: len(first) + 1]
        )


def test_the_other_embedded_kind_uses_its_own_bos(tmp_path: Path) -> None:
    architecture: Architecture = read_architecture(json_files(OLMO))
    payload = prepare(load_processor(folder_of(tmp_path, OLMO), architecture), messages_for("x"))
    assert payload.ids[0] == OLMO.token("<|endoftext|>")


@pytest.mark.parametrize("said", ["<|image|>", "<|im_end|>", "<im_patch>", "<|video|>", "Image 1<|image|>"])
def test_typed_special_tokens_never_become_ids(processor: HostProcessor, said: str) -> None:
    payload = prepare(processor, messages_for(f"a {said} b", 1), [small_photo(50, 50)])
    plain = prepare(processor, messages_for("a b", 1), [small_photo(50, 50)])
    special = set(range(456, 640))
    assert [i for i in payload.ids.tolist() if i in special] == [i for i in plain.ids.tolist() if i in special]
    shown = processor.tokenizer.decode(payload.ids.tolist())
    assert shown == f"user\na {said} b\nassistant\n"


@pytest.mark.parametrize(("images", "given"), [(0, 1), (1, 0), (2, 1), (1, 2)])
def test_pictures_and_image_parts_must_agree(processor: HostProcessor, images: int, given: int) -> None:
    with pytest.raises(RequestError, match=f"got {given} pictures, expected {images}"):
        prepare(processor, messages_for("x", images), [small_photo(20, 20)] * given)


@pytest.mark.parametrize("style", ["<|im_end|>", "a\nb", "\ue0000\ue001", "x<|image|>"])
def test_a_style_with_a_special_token_is_refused(processor: HostProcessor, style: str) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "x", "style": style}]}]
    with pytest.raises(RequestError, match=r"content\[0\]\.style"):
        prepare(processor, messages)


def test_a_role_with_a_special_token_is_refused(processor: HostProcessor) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\]\.role"):
        prepare(processor, [{"role": "<|im_end|>", "content": "x"}, *messages_for("x")])


def test_a_template_that_loses_images_is_refused(processor: HostProcessor, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("x", encoding="utf-8")
    blind = load_processor(tmp_path, SMALL)
    with pytest.raises(CheckpointError, match=r"got 0 .* for 1 images"):
        prompt_ids(blind, messages_for("x", 1), [(4, 4, 4, 4)])
    assert processor.template is not blind.template


def test_tokens_of_another_checkpoint_are_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, Variant(vocabulary=600))
    with pytest.raises(CheckpointError, match="got <im_start> = 600, expected 512, from config"):
        load_processor(tmp_path, SMALL)


def test_a_template_token_that_swallows_white_space_is_refused(tmp_path: Path) -> None:
    content = tokenizer_json(DEFAULT)
    content["added_tokens"][1]["rstrip"] = True
    folder_of(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UnsupportedError, match="white space"):
        load_processor(tmp_path, SMALL)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_missing_files_are_refused(tmp_path: Path, name: str) -> None:
    (folder_of(tmp_path) / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load_processor(tmp_path, SMALL)


def test_what_prepare_gives_has_passed_the_check(processor: HostProcessor) -> None:
    check_payload(prepare(processor, messages_for("x", 1), [small_photo(33, 77)]), SMALL)
