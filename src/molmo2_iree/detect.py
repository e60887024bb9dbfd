"""Read an :class:`Architecture` from a checkpoint's JSON files, refusing by name what this project does not build."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from molmo2_iree.architecture import Architecture, Connector, Processor, Text, Tokens, Vision, Yarn
from molmo2_iree.errors import CheckpointError
from molmo2_iree.family import COMPARE, check_kind, unsupported
from molmo2_iree.released import (
    AdapterConfig,
    GenerationConfig,
    MainConfig,
    PreprocessorConfig,
    ProcessorConfig,
    RopeScaling,
    Section,
    TextConfig,
    VitConfig,
)

JSON_FILES = ("config.json", "preprocessor_config.json", "processor_config.json", "generation_config.json")
"""Files an architecture is read from; ``video_preprocessor_config.json`` only says that video is possible."""

VIDEO_FILE = "video_preprocessor_config.json"

_Parsed = TypeVar("_Parsed", bound=Section)


def read_architecture(files: Mapping[str, Any]) -> Architecture:
    """Build the architecture from parsed JSON files, keyed by file name.

    Raises UnsupportedError naming the field, its value and the supported ones; CheckpointError for a missing or
    mistyped field.
    """
    for name in JSON_FILES:
        if name not in files:
            raise CheckpointError(
                name, got="no such file", expected="a checkpoint in the original Molmo2 format", fix="add the file"
            )
    check_kind(files["config.json"])
    config = _parse(MainConfig, files["config.json"], "config.json")
    image = _parse(PreprocessorConfig, files["preprocessor_config.json"], "preprocessor_config.json")
    flags = _parse(ProcessorConfig, files["processor_config.json"], "processor_config.json")
    generation = _parse(GenerationConfig, files["generation_config.json"], "generation_config.json")
    _require("config.json tie_word_embeddings", config.tie_word_embeddings, (False,))
    vision = _vision(config.vit_config, config.adapter_config)
    text = _text(config.text_config)
    return Architecture(
        vision=vision,
        connector=_connector(config.adapter_config, vision, text.width),
        text=text,
        tokens=_tokens(config, generation, text),
        processor=_processor(image, flags, vision),
        video=VIDEO_FILE in files,
    )


def _parse(kind: type[_Parsed], raw: object, where: str) -> _Parsed:
    try:
        return kind.model_validate(raw)
    except ValidationError as wrong:
        first = wrong.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        missing = first["type"] == "missing"
        raise CheckpointError(
            f"{where}, {field}" if field else where,
            got="no such field" if missing else repr(first["input"])[:120],
            expected="the fields of a Molmo2 release" if missing else first["msg"],
            fix=COMPARE,
        ) from wrong


def _require(field: str, value: object, supported: tuple[object, ...]) -> None:
    if value not in supported:
        raise unsupported(field, repr(value), " or ".join(repr(s) for s in supported))


def _vision(vit: VitConfig, adapter: AdapterConfig) -> Vision:
    declared = vit.num_hidden_layers
    for layer in adapter.vit_layers:
        if not -declared <= layer < declared:
            raise unsupported("adapter_config.vit_layers", layer, f"{-declared} to {declared - 1}")
    if not adapter.vit_layers:
        raise unsupported("adapter_config.vit_layers", "an empty list", "at least one layer")
    _require("vit_config.num_key_value_heads", vit.num_key_value_heads, (vit.num_attention_heads,))
    _require("vit_config.hidden_act", vit.hidden_act, ("gelu_pytorch_tanh",))
    size, patch = vit.image_default_input_size, vit.image_patch_size
    if any(side % patch for side in size):
        raise unsupported("vit_config.image_default_input_size", size, f"two multiples of the patch size {patch}")
    vision = Vision(
        width=vit.hidden_size,
        heads=vit.num_attention_heads,
        head_dim=vit.head_dim,
        intermediate=vit.intermediate_size,
        declared_blocks=declared,
        layers=tuple(layer % declared for layer in adapter.vit_layers),
        activation="gelu_pytorch_tanh",
        eps=vit.layer_norm_eps,
        patch_size=patch,
        image_size=(size[0], size[1]),
    )
    _require(
        "vit_config.image_num_pos (a patch grid other than the position table's)", vit.image_num_pos, (vision.patches,)
    )
    return vision


def _connector(adapter: AdapterConfig, vision: Vision, text_width: int) -> Connector:
    _require("adapter_config.num_key_value_heads", adapter.num_key_value_heads, (adapter.num_attention_heads,))
    _require("adapter_config.hidden_act", adapter.hidden_act, ("silu",))
    _require("adapter_config.text_hidden_size", adapter.text_hidden_size, (text_width,))
    _require("adapter_config.hidden_size", adapter.hidden_size, (vision.width,))
    return Connector(
        width=adapter.hidden_size,
        heads=adapter.num_attention_heads,
        head_dim=adapter.head_dim,
        intermediate=adapter.intermediate_size,
        pooling_mask=adapter.pooling_attention_mask,
        activation="silu",
    )


def _text(text: TextConfig) -> Text:
    _require("text_config.qkv_bias", text.qkv_bias, (False,))
    _require("text_config.hidden_act", text.hidden_act, ("silu",))
    if text.num_attention_heads % text.num_key_value_heads:
        raise unsupported(
            "text_config.num_key_value_heads",
            text.num_key_value_heads,
            f"a divisor of {text.num_attention_heads} heads",
        )
    if text.head_dim % 2:
        raise unsupported("text_config.head_dim", text.head_dim, "an even number: dimensions rotate in pairs")
    if text.use_qk_norm:
        _require("text_config.qk_norm_type", text.qk_norm_type, ("qwen3", "olmo"))
    return Text(
        width=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_dim=text.head_dim,
        intermediate=text.intermediate_size,
        vocabulary=text.vocab_size,
        extra_vocabulary=text.additional_vocab_size,
        norm_after=text.norm_after,
        qk_norm="none" if not text.use_qk_norm else "full" if text.qk_norm_type == "olmo" else "head",
        rope_theta=text.rope_theta,
        yarn=_yarn(text),
        eps=text.layer_norm_eps,
        max_positions=text.max_position_embeddings,
        activation="silu",
    )


def _yarn(text: TextConfig) -> Yarn | None:
    raw, depth = text.rope_scaling, text.num_hidden_layers
    if raw is None:
        return None
    _require("text_config.rope_scaling rope_type", raw.get("rope_type", raw.get("type")), ("yarn",))
    scaling = _parse(RopeScaling, raw, "config.json, text_config.rope_scaling")
    listed = tuple(range(depth)) if text.rope_scaling_layers is None else tuple(text.rope_scaling_layers)
    if any(not 0 <= layer < depth for layer in listed):
        raise unsupported("text_config.rope_scaling_layers", list(listed), f"layers 0 to {depth - 1}")
    return Yarn(
        layers=listed,
        factor=scaling.factor,
        attention_factor=scaling.attention_factor,
        beta_fast=scaling.beta_fast,
        beta_slow=scaling.beta_slow,
        original_positions=scaling.original_max_position_embeddings,
    )


def _tokens(config: MainConfig, generation: GenerationConfig, text: Text) -> Tokens:
    eos = generation.eos_token_id
    stop = tuple(eos) if isinstance(eos, list) else (eos,)
    _require("config.json image_high_res_id", config.image_high_res_id, (config.image_patch_id,))
    _require("config.json use_frame_special_tokens", config.use_frame_special_tokens, (False,))
    rows = text.vocabulary + text.extra_vocabulary
    placed = {f"config.json {name}": getattr(config, name) for name in MainConfig.model_fields if name.endswith("_id")}
    placed |= {f"generation_config.json {name}": getattr(generation, name) for name in ("bos_token_id", "pad_token_id")}
    limits = [(name, value, rows) for name, value in placed.items()]
    for name, value, limit in [*limits, ("generation_config.json eos_token_id", max(stop), text.vocabulary)]:
        if value >= limit:
            raise unsupported(name, value, f"an id below {limit}, the rows of its table")
    return Tokens(
        image_start=config.image_start_token_id,
        image_end=config.image_end_token_id,
        image_patch=config.image_patch_id,
        image_column=config.image_col_id,
        low_res_image_start=config.low_res_image_start_token_id,
        image_low_res=config.image_low_res_id,
        frame_start=config.frame_start_token_id,
        frame_end=config.frame_end_token_id,
        bos=generation.bos_token_id,
        pad=generation.pad_token_id,
        stop=stop,
    )


def _processor(image: PreprocessorConfig, flags: ProcessorConfig, vision: Vision) -> Processor:
    _require("preprocessor_config.json resample (2 is bilinear)", image.resample, (2,))
    _require("preprocessor_config.json do_convert_rgb", image.do_convert_rgb, (True,))
    size = (image.size.height, image.size.width)
    _require("preprocessor_config.json size", size, (vision.image_size,))
    _require("preprocessor_config.json patch_size", image.patch_size, (vision.patch_size,))
    margins, pooling, mean, std = image.overlap_margins, image.pooling_size, image.image_mean, image.image_std
    if sum(margins) >= min(vision.grid):
        raise unsupported(
            "preprocessor_config.json overlap_margins", margins, f"a sum below {min(vision.grid)} patches"
        )
    return Processor(
        image_size=size,
        patch_size=image.patch_size,
        max_crops=image.max_crops,
        overlap_margins=(margins[0], margins[1]),
        pooling_size=(pooling[0], pooling[1]),
        mean=(mean[0], mean[1], mean[2]),
        std=(std[0], std[1], std[2]),
        column_tokens=flags.image_use_col_tokens,
        single_crop_column_tokens=flags.use_single_crop_col_tokens,
        single_crop_start_token=flags.use_single_crop_start_token,
    )
