"""Messages and pictures to the record that the compiled stages take: the host side from end to end."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import numpy as np

from molmo2_iree.architecture import Architecture
from molmo2_iree.errors import CheckpointError, RequestError, UnsupportedError
from molmo2_iree.preprocess.crops import cut_image
from molmo2_iree.preprocess.layout import image_ids, token_types
from molmo2_iree.preprocess.payload import Image, Payload, check_payload
from molmo2_iree.preprocess.picture import Source, open_picture
from molmo2_iree.preprocess.prompt import Message, check_labels, check_messages, compile_template, count_images, render
from molmo2_iree.preprocess.tokenizer import IMAGE_PLACEHOLDER, MULTIMODAL_TOKENS, Tokenizer, load_tokenizer


@dataclass(frozen=True)
class HostProcessor:
    """What one checkpoint's preparation needs. Never changed after loading, so threads may share it."""

    architecture: Architecture
    tokenizer: Tokenizer
    template: jinja2.Template


def load_processor(folder: Path, architecture: Architecture) -> HostProcessor:
    """Read ``tokenizer.json`` and ``chat_template.jinja`` of a checkpoint, and check them against its configuration."""
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    path = folder / "chat_template.jinja"
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise CheckpointError(
            str(path), got=str(wrong), expected="the checkpoint's chat template", fix="fetch the checkpoint again"
        ) from wrong
    _check_tokens(tokenizer, architecture)
    swallowing = [token for token in tokenizer.stripping if token in source]
    if swallowing:
        raise UnsupportedError(
            "tokenizer.json",
            got=f"{swallowing} that take in the white space around them",
            expected="plain added tokens in the chat template",
            fix="use the tokenizer of a Molmo2 release",
        )
    return HostProcessor(architecture, tokenizer, compile_template(source))


def _check_tokens(tokenizer: Tokenizer, architecture: Architecture) -> None:
    """The ten multimodal tokens have the ids that the configuration gives them, or follow on from the vocabulary."""
    first = architecture.text.vocabulary
    expected = {token: first + k for k, token in enumerate(MULTIMODAL_TOKENS)}
    tokens = architecture.tokens
    expected |= {
        "<im_start>": tokens.image_start,
        "<im_end>": tokens.image_end,
        "<im_patch>": tokens.image_patch,
        "<im_col>": tokens.image_column,
        "<low_res_im_start>": tokens.low_res_image_start,
        "<im_low>": tokens.image_low_res,
        "<frame_start>": tokens.frame_start,
        "<frame_end>": tokens.frame_end,
    }
    for token, number in expected.items():
        if tokenizer.token_id(token) != number:
            raise CheckpointError(
                "tokenizer.json",
                got=f"{token} = {tokenizer.token_id(token)}",
                expected=f"{number}, from config.json",
                fix="use tokenizer.json and config.json of the same revision",
            )


def prepare(processor: HostProcessor, messages: Sequence[Message], pictures: Sequence[Source] = ()) -> Payload:
    """The checked payload of a request: ``pictures`` in the order of the messages' image parts."""
    check_messages(messages)
    check_labels(messages, processor.tokenizer)
    count = count_images(messages)
    if len(pictures) != count:
        raise RequestError(
            "pictures",
            got=f"{len(pictures)} pictures",
            expected=f"{count}, one for each image part of the messages",
            fix="give as many pictures as image parts",
        )
    images = [cut_image(open_picture(picture), processor.architecture.processor) for picture in pictures]
    payload = join(prompt_ids(processor, messages, [image.grid for image in images]), images, processor.architecture)
    check_payload(payload, processor.architecture)
    return payload


def prompt_ids(
    processor: HostProcessor, messages: Sequence[Message], grids: Sequence[tuple[int, int, int, int]]
) -> np.ndarray:
    """int32 [S]: the prompt's ids, BOS first, each placeholder replaced by the ids of its image's grid."""
    architecture, tokenizer = processor.architecture, processor.tokenizer
    ids = tokenizer.encode_pieces(render(processor.template, messages))
    placeholder = tokenizer.token_id(IMAGE_PLACEHOLDER)
    if ids.count(placeholder) != len(grids):
        raise CheckpointError(
            "chat_template.jinja",
            got=f"{ids.count(placeholder)} {IMAGE_PLACEHOLDER} for {len(grids)} images",
            expected="one for each",
            fix="use the chat template of a Molmo2 release",
        )
    parts, remaining = [], iter(grids)
    if ids[0] != architecture.tokens.bos:
        parts.append([architecture.tokens.bos])
    for number in ids:
        if number == placeholder:
            parts.append(image_ids(next(remaining), architecture.processor, architecture.tokens))
        else:
            parts.append([number])
    return np.concatenate(parts).astype(np.int32)


def join(ids: np.ndarray, images: Sequence[Image], architecture: Architecture) -> Payload:
    """Put ids and cut images together; without images the arrays have no rows."""
    vision, group = architecture.vision, architecture.processor.group_size
    no_patches = np.zeros((0, vision.patches, vision.patch_values), np.float32)
    return Payload(
        ids=ids,
        types=token_types(ids, architecture.tokens),
        patches=np.concatenate([no_patches, *(image.patches for image in images)]),
        groups=np.concatenate([np.zeros((0, group), np.int32), *(image.groups for image in images)]),
        grids=np.array([image.grid for image in images], np.int32).reshape(-1, 4),
        crops=np.array([image.crops for image in images], np.int32),
    )
