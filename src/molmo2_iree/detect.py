"""Read an :class:`Architecture` from a checkpoint's own JSON files, refusing by name what this project does not build."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from molmo2_iree.architecture import Architecture, Connector, Processor, Text, Tokens, Vision, Yarn
from molmo2_iree.errors import CheckpointError, UnsupportedError

JSON_FILES = ("config.json", "preprocessor_config.json", "processor_config.json", "generation_config.json")
"""Files an architecture is read from; ``video_preprocessor_config.json`` only says that video is possible."""

SIBLINGS = {
    "molmo": "Molmo v1 maps image positions in another way; the nearest supported model is allenai/Molmo2-4B",
    "molmo_point": "Molmo Point needs a pointing head; the nearest supported model is allenai/Molmo2-4B, which points in text",
    "molmo2_point": "Molmo Point needs a pointing head; the nearest supported model is allenai/Molmo2-4B, which points in text",
    "molmopoint": "Molmo Point needs a pointing head; the nearest supported model is allenai/Molmo2-4B, which points in text",
    "molmoact": "MolmoAct predicts actions; the nearest supported model is allenai/Molmo2-4B",
    "molmoact2": "MolmoAct predicts actions; the nearest supported model is allenai/Molmo2-4B",
}


def read_architecture(files: Mapping[str, dict[str, Any]]) -> Architecture:
    """Build the architecture from parsed JSON files, keyed by file name.

    Raises UnsupportedError naming the field, its value and the supported ones; CheckpointError for a missing or
    mistyped field.
    """
    for name in JSON_FILES:
        if name not in files:
            raise CheckpointError(
                name, got="no such file", expected="a checkpoint in the original Molmo2 format", fix="add the file"
            )
    config = files["config.json"]
    _check_model_type(config)
    try:
        vision = _vision(config["vit_config"], config["adapter_config"])
        processor = _processor(files["preprocessor_config.json"], files["processor_config.json"])
        _require("preprocessor_config.json size", processor.image_size, (vision.image_size,))
        _require("preprocessor_config.json patch_size", processor.patch_size, (vision.patch_size,))
        return Architecture(
            vision=vision,
            connector=_connector(config["adapter_config"], vision, config["text_config"]["hidden_size"]),
            text=_text(config["text_config"], config.get("tie_word_embeddings", False)),
            tokens=_tokens(config, files["generation_config.json"]),
            processor=processor,
            video="video_preprocessor_config.json" in files,
        )
    except KeyError as missing:
        raise CheckpointError(
            "checkpoint configuration",
            got=f"no field {missing}",
            expected="the fields of a Molmo2 release",
            fix="compare with allenai/Molmo2-4B's config.json",
        ) from missing
    except ValidationError as wrong:
        first = wrong.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(
            f"checkpoint configuration, {field}",
            got=repr(first["input"]),
            expected=first["msg"],
            fix="compare with allenai/Molmo2-4B's config.json",
        ) from wrong


def _require(field: str, value: object, supported: tuple[object, ...]) -> None:
    if value not in supported:
        raise UnsupportedError(
            field,
            got=repr(value),
            expected=" or ".join(repr(s) for s in supported),
            fix="use a Molmo2 checkpoint with a supported value",
        )


def _check_model_type(config: Mapping[str, Any]) -> None:
    kind = str(config.get("model_type"))
    names = [str(name).lower() for name in config.get("architectures") or ()]
    for sibling in sorted(SIBLINGS, key=len, reverse=True):
        if kind == sibling or any(name.startswith(f"{sibling.replace('_', '')}for") for name in names):
            raise UnsupportedError("config.json model_type", got=repr(kind), expected="'molmo2'", fix=SIBLINGS[sibling])
    _require("config.json model_type", kind, ("molmo2",))
    if "molmo2forconditionalgeneration" not in names:
        raise UnsupportedError(
            "config.json architectures",
            got=config.get("architectures"),
            expected="Molmo2ForConditionalGeneration",
            fix="use allenai/Molmo2-4B or a fine-tune of it",
        )


def _vision(vit: Mapping[str, Any], adapter: Mapping[str, Any]) -> Vision:
    declared = vit["num_hidden_layers"]
    layers = []
    for layer in adapter["vit_layers"]:
        resolved = layer + declared if layer < 0 else layer
        if not 0 <= resolved < declared:
            raise UnsupportedError(
                "adapter_config.vit_layers",
                got=layer,
                expected=f"{-declared} to {declared - 1}",
                fix="correct the layer list",
            )
        layers.append(resolved)
    if not layers:
        raise UnsupportedError(
            "adapter_config.vit_layers",
            got="an empty list",
            expected="at least one layer",
            fix="correct the layer list",
        )
    _require("vit_config.num_key_value_heads", vit["num_key_value_heads"], (vit["num_attention_heads"],))
    _require("vit_config.hidden_act", vit["hidden_act"], ("gelu_pytorch_tanh",))
    size, patch = tuple(vit["image_default_input_size"]), vit["image_patch_size"]
    if len(size) != 2 or any(side % patch for side in size):
        raise UnsupportedError(
            "vit_config.image_default_input_size",
            got=size,
            expected=f"two multiples of the patch size {patch}",
            fix="correct the size",
        )
    vision = Vision(
        width=vit["hidden_size"],
        heads=vit["num_attention_heads"],
        head_dim=vit["head_dim"],
        intermediate=vit["intermediate_size"],
        declared_blocks=declared,
        layers=tuple(layers),
        activation=vit["hidden_act"],
        eps=vit["layer_norm_eps"],
        patch_size=patch,
        image_size=size,
    )
    _require(
        "vit_config.image_num_pos (a patch grid other than the position table's)",
        vit["image_num_pos"],
        (vision.patches,),
    )
    return vision


def _connector(adapter: Mapping[str, Any], vision: Vision, text_width: int) -> Connector:
    _require("adapter_config.num_key_value_heads", adapter["num_key_value_heads"], (adapter["num_attention_heads"],))
    _require("adapter_config.hidden_act", adapter["hidden_act"], ("silu",))
    _require("adapter_config.text_hidden_size", adapter["text_hidden_size"], (text_width,))
    _require("adapter_config.hidden_size", adapter["hidden_size"], (vision.width,))
    return Connector(
        width=adapter["hidden_size"],
        heads=adapter["num_attention_heads"],
        head_dim=adapter["head_dim"],
        intermediate=adapter["intermediate_size"],
        pooling_mask=adapter["pooling_attention_mask"],
        activation=adapter["hidden_act"],
    )


def _text(text: Mapping[str, Any], tied: bool) -> Text:
    _require("config.json tie_word_embeddings", tied, (False,))
    _require("text_config.qkv_bias", text["qkv_bias"], (False,))
    _require("text_config.hidden_act", text["hidden_act"], ("silu",))
    if text["num_attention_heads"] % text["num_key_value_heads"]:
        raise UnsupportedError(
            "text_config.num_key_value_heads",
            got=text["num_key_value_heads"],
            expected=f"a divisor of {text['num_attention_heads']} heads",
            fix="correct the head counts",
        )
    qk_norm = "none"
    if text["use_qk_norm"]:
        _require("text_config.qk_norm_type", text["qk_norm_type"], ("qwen3", "olmo"))
        qk_norm = {"qwen3": "head", "olmo": "full"}[text["qk_norm_type"]]
    return Text(
        width=text["hidden_size"],
        layers=text["num_hidden_layers"],
        heads=text["num_attention_heads"],
        kv_heads=text["num_key_value_heads"],
        head_dim=text["head_dim"],
        intermediate=text["intermediate_size"],
        vocabulary=text["vocab_size"],
        extra_vocabulary=text["additional_vocab_size"],
        norm_after=text["norm_after"],
        qk_norm=qk_norm,
        rope_theta=float(text["rope_theta"]),
        yarn=_yarn(text.get("rope_scaling"), text.get("rope_scaling_layers"), text["num_hidden_layers"]),
        eps=text["layer_norm_eps"],
        max_positions=text["max_position_embeddings"],
        activation=text["hidden_act"],
    )


def _yarn(scaling: Mapping[str, Any] | None, layers: list[int] | None, depth: int) -> Yarn | None:
    if scaling is None:
        return None
    _require("text_config.rope_scaling rope_type", scaling.get("rope_type", scaling.get("type")), ("yarn",))
    listed = tuple(range(depth)) if layers is None else tuple(layers)
    if any(not 0 <= layer < depth for layer in listed):
        raise UnsupportedError(
            "text_config.rope_scaling_layers",
            got=listed,
            expected=f"layers 0 to {depth - 1}",
            fix="correct the layer list",
        )
    return Yarn(
        layers=listed,
        factor=float(scaling["factor"]),
        attention_factor=float(scaling["attention_factor"]),
        beta_fast=float(scaling["beta_fast"]),
        beta_slow=float(scaling["beta_slow"]),
        original_positions=scaling["original_max_position_embeddings"],
    )


def _tokens(config: Mapping[str, Any], generation: Mapping[str, Any]) -> Tokens:
    stop = generation["eos_token_id"]
    _require("config.json image_high_res_id", config["image_high_res_id"], (config["image_patch_id"],))
    _require("config.json use_frame_special_tokens", config["use_frame_special_tokens"], (False,))
    return Tokens(
        image_start=config["image_start_token_id"],
        image_end=config["image_end_token_id"],
        image_patch=config["image_patch_id"],
        image_column=config["image_col_id"],
        low_res_image_start=config["low_res_image_start_token_id"],
        image_low_res=config["image_low_res_id"],
        frame_start=config["frame_start_token_id"],
        frame_end=config["frame_end_token_id"],
        bos=generation["bos_token_id"],
        pad=generation["pad_token_id"],
        stop=tuple(stop) if isinstance(stop, list) else (stop,),
    )


def _processor(image: Mapping[str, Any], processor: Mapping[str, Any]) -> Processor:
    _require("preprocessor_config.json resample (2 is bilinear)", image["resample"], (2,))
    _require("preprocessor_config.json do_convert_rgb", image["do_convert_rgb"], (True,))
    return Processor(
        image_size=(image["size"]["height"], image["size"]["width"]),
        patch_size=image["patch_size"],
        max_crops=image["max_crops"],
        overlap_margins=tuple(image["overlap_margins"]),
        pooling_size=tuple(image["pooling_size"]),
        mean=tuple(float(v) for v in image["image_mean"]),
        std=tuple(float(v) for v in image["image_std"]),
        column_tokens=processor["image_use_col_tokens"],
        single_crop_column_tokens=processor["use_single_crop_col_tokens"],
        single_crop_start_token=processor["use_single_crop_start_token"],
    )
