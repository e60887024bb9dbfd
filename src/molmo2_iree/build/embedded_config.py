"""The JSON files of the embedded checkpoint, field for field as a Molmo2 release lays them out (contract section 1).

Widths are in elements, sizes in pixels. A :class:`Variant` holds everything that differs between two miniatures;
all other fields have the released values.
"""

from dataclasses import dataclass
from typing import Any, Literal

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
"""Ids V to V + 9 in the released order (contract 1.5)."""

TEXT_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Special tokens of the text vocabulary, the first ids after the merges."""

MERGES = 200
"""Merged symbols of the tokenizer; the special text tokens start at id 256 + MERGES."""


@dataclass(frozen=True)
class Variant:
    """What may differ between two embedded checkpoints; the defaults are the shipped one.

    ``vit_layers`` are as config.json states them, counted from ``vit_blocks``, more than are stored. ``yarn_layers``
    None means no RoPE scaling. ``shards`` 1 is one ``model.safetensors`` without an index.
    """

    vit_width: int = 64
    vit_heads: int = 4
    vit_head_dim: int = 16
    vit_intermediate: int = 144
    vit_blocks: int = 8
    vit_layers: tuple[int, ...] = (-4, -6, -3)
    patch_size: int = 14
    grid: int = 7
    margins: tuple[int, int] = (1, 1)
    max_crops: int = 8
    adapter_intermediate: int = 96
    pooling_mask: bool = True
    text_width: int = 80
    text_layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    text_intermediate: int = 160
    vocabulary: int = 512
    extra_vocabulary: int = 128
    qk_norm: Literal["qwen3", "olmo", "none"] = "qwen3"
    norm_after: bool = False
    rope_theta: float = 5e6
    yarn_layers: tuple[int, ...] | None = None
    yarn_original_positions: int = 256
    max_positions: int = 2048
    bos: str = "<|im_end|>"
    stop: tuple[str, ...] = ("<|im_end|>",)
    shards: int = 2

    @property
    def blocks(self) -> int:
        """Stored ViT blocks: up to the deepest selected one. Layers (-4, -6, -3) of 8 are 4, 2, 5, so 6 are stored."""
        return max(layer % self.vit_blocks for layer in self.vit_layers) + 1

    def token(self, name: str) -> int:
        """Id of a special token."""
        if name in TEXT_TOKENS:
            return 256 + MERGES + TEXT_TOKENS.index(name)
        return self.vocabulary + MULTIMODAL_TOKENS.index(name)


DEFAULT = Variant()
"""The shipped miniature, of the 4B's kind."""

OLMO = Variant(
    kv_heads=4,
    qk_norm="olmo",
    norm_after=True,
    rope_theta=5e5,
    yarn_layers=(1, 3),
    bos="<|endoftext|>",
    stop=("<|im_end|>", "<|endoftext|>"),
)
"""Of the O-7B's kind: post-norm, full-width q/k norm, YaRN on some layers, as many kv heads as heads."""


def json_files(variant: Variant) -> dict[str, dict[str, Any]]:
    """Every configuration file of the checkpoint as data, keyed by file name."""
    stop = [variant.token(name) for name in variant.stop]
    return {
        "config.json": _config(variant),
        "generation_config.json": {
            "bos_token_id": variant.token(variant.bos),
            "eos_token_id": stop[0] if len(stop) == 1 else stop,
            "pad_token_id": variant.token("<|endoftext|>"),
            "transformers_version": "4.57.1",
        },
        "preprocessor_config.json": _image_processor(variant),
        "processor_config.json": {
            "auto_map": {"AutoProcessor": "processing_molmo2.Molmo2Processor"},
            "image_use_col_tokens": True,
            "processor_class": "Molmo2Processor",
            "use_frame_special_tokens": False,
            "use_single_crop_col_tokens": False,
            "use_single_crop_start_token": True,
            "video_use_col_tokens": False,
        },
        "video_preprocessor_config.json": _video_processor(variant),
    }


def _config(variant: Variant) -> dict[str, Any]:
    token = variant.token
    return {
        "adapter_config": _adapter(variant),
        "architectures": ["Molmo2ForConditionalGeneration"],
        "auto_map": {
            "AutoConfig": "configuration_molmo2.Molmo2Config",
            "AutoModelForImageTextToText": "modeling_molmo2.Molmo2ForConditionalGeneration",
        },
        "dtype": "float32",
        "frame_end_token_id": token("<frame_end>"),
        "frame_start_token_id": token("<frame_start>"),
        "image_col_id": token("<im_col>"),
        "image_end_token_id": token("<im_end>"),
        "image_high_res_id": token("<im_patch>"),
        "image_low_res_id": token("<im_low>"),
        "image_patch_id": token("<im_patch>"),
        "image_start_token_id": token("<im_start>"),
        "initializer_range": 0.02,
        "low_res_image_start_token_id": token("<low_res_im_start>"),
        "model_type": "molmo2",
        "text_config": _text(variant),
        "tie_word_embeddings": False,
        "transformers_version": "4.57.1",
        "use_cache": True,
        "use_frame_special_tokens": False,
        "vit_config": _vit(variant),
    }


def _vit(variant: Variant) -> dict[str, Any]:
    side = variant.grid * variant.patch_size
    return {
        "attention_dropout": 0.0,
        "attn_implementation": "sdpa",
        "float32_attention": True,
        "head_dim": variant.vit_head_dim,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": variant.vit_width,
        "image_default_input_size": [side, side],
        "image_num_pos": variant.grid**2,
        "image_patch_size": variant.patch_size,
        "initializer_range": 0.02,
        "intermediate_size": variant.vit_intermediate,
        "layer_norm_eps": 1e-06,
        "model_type": "molmo2",
        "num_attention_heads": variant.vit_heads,
        "num_hidden_layers": variant.vit_blocks,
        "num_key_value_heads": variant.vit_heads,
        "residual_dropout": 0.0,
    }


def _adapter(variant: Variant) -> dict[str, Any]:
    return {
        "attention_dropout": 0.0,
        "attn_implementation": "sdpa",
        "float32_attention": True,
        "head_dim": variant.vit_head_dim,
        "hidden_act": "silu",
        "hidden_size": variant.vit_width,
        "image_feature_dropout": 0.0,
        "initializer_range": 0.02,
        "intermediate_size": variant.adapter_intermediate,
        "model_type": "molmo2",
        "num_attention_heads": variant.vit_heads,
        "num_key_value_heads": variant.vit_heads,
        "pooling_attention_mask": variant.pooling_mask,
        "residual_dropout": 0.0,
        "text_hidden_size": variant.text_width,
        "vit_layers": list(variant.vit_layers),
    }


def _text(variant: Variant) -> dict[str, Any]:
    return {
        "additional_vocab_size": variant.extra_vocabulary,
        "attention_dropout": 0.0,
        "attn_implementation": "sdpa",
        "embedding_dropout": 0.0,
        "head_dim": variant.head_dim,
        "hidden_act": "silu",
        "hidden_size": variant.text_width,
        "initializer_range": 0.02,
        "intermediate_size": variant.text_intermediate,
        "layer_norm_eps": 1e-06,
        "max_position_embeddings": variant.max_positions,
        "model_type": "molmo2_text",
        "norm_after": variant.norm_after,
        "num_attention_heads": variant.heads,
        "num_hidden_layers": variant.text_layers,
        "num_key_value_heads": variant.kv_heads,
        "qk_norm_type": "qwen3" if variant.qk_norm == "none" else variant.qk_norm,
        "qkv_bias": False,
        "residual_dropout": 0.0,
        "rope_scaling": _rope_scaling(variant),
        "rope_scaling_layers": None if variant.yarn_layers is None else list(variant.yarn_layers),
        "rope_theta": variant.rope_theta,
        "use_cache": True,
        "use_qk_norm": variant.qk_norm != "none",
        "vocab_size": variant.vocabulary,
    }


def _rope_scaling(variant: Variant) -> dict[str, Any] | None:
    if variant.yarn_layers is None:
        return None
    return {
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 8.0,
        "original_max_position_embeddings": variant.yarn_original_positions,
        "rope_type": "yarn",
    }


def _image_processor(variant: Variant) -> dict[str, Any]:
    side = variant.grid * variant.patch_size
    return {
        "auto_map": {
            "AutoImageProcessor": "image_processing_molmo2.Molmo2ImageProcessor",
            "AutoProcessor": "processing_molmo2.Molmo2Processor",
            "AutoVideoProcessor": "video_processing_molmo2.Molmo2VideoProcessor",
        },
        "do_convert_rgb": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Molmo2ImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "max_crops": variant.max_crops,
        "overlap_margins": list(variant.margins),
        "patch_size": variant.patch_size,
        "pooling_size": [2, 2],
        "processor_class": "Molmo2Processor",
        "resample": 2,
        "size": {"height": side, "width": side},
    }


def _video_processor(variant: Variant) -> dict[str, Any]:
    side = variant.grid * variant.patch_size
    return {
        "auto_map": {
            "AutoProcessor": "processing_molmo2.Molmo2Processor",
            "AutoVideoProcessor": "video_processing_molmo2.Molmo2VideoProcessor",
        },
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "do_sample_frames": True,
        "fps": None,
        "frame_sample_mode": "uniform_last_frame",
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "max_fps": 2.0,
        "num_frames": 384,
        "patch_size": variant.patch_size,
        "pooling_size": [3, 3],
        "processor_class": "Molmo2Processor",
        "resample": 2,
        "rescale_factor": 1 / 255,
        "sampling_fps": 2,
        "size": {"height": side, "width": side},
        "video_processor_type": "Molmo2VideoProcessor",
    }
