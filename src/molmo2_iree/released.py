"""The fields this project reads of a release's JSON files, under their own names and with their types.

Fields that are not listed are not read. Bounds keep a damaged number from becoming a long loop; whether a value is
supported is decided in ``detect``.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Size = Annotated[int, Field(ge=1, lt=2**31)]
Index = Annotated[int, Field(ge=0, lt=2**31)]
Depth = Annotated[int, Field(ge=1, le=1024)]
Crops = Annotated[int, Field(ge=1, le=64)]
Layers = Annotated[list[int], Field(max_length=1024)]
Positive = Annotated[float, Field(gt=0)]
Sizes = Annotated[list[Size], Field(min_length=2, max_length=2)]
Margins = Annotated[list[Index], Field(min_length=2, max_length=2)]
Channels = Annotated[list[float], Field(min_length=3, max_length=3)]
Spreads = Annotated[list[Positive], Field(min_length=3, max_length=3)]


class Section(BaseModel):
    """A JSON object: no coercion, no NaN, no infinity."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class VitConfig(Section):
    """``vit_config`` of config.json."""

    hidden_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    intermediate_size: Size
    num_hidden_layers: Depth
    hidden_act: str
    layer_norm_eps: Positive
    image_default_input_size: Sizes
    image_patch_size: Size
    image_num_pos: Size


class AdapterConfig(Section):
    """``adapter_config`` of config.json."""

    vit_layers: Layers
    hidden_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    intermediate_size: Size
    text_hidden_size: Size
    pooling_attention_mask: bool
    hidden_act: str


class RopeScaling(Section):
    """``rope_scaling`` of ``text_config``, of type yarn."""

    factor: Positive
    attention_factor: Positive
    beta_fast: Positive
    beta_slow: Positive
    original_max_position_embeddings: Size


class TextConfig(Section):
    """``text_config`` of config.json."""

    hidden_size: Size
    num_hidden_layers: Depth
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    intermediate_size: Size
    vocab_size: Size
    additional_vocab_size: Size
    qkv_bias: bool
    use_qk_norm: bool
    qk_norm_type: str | None = None
    norm_after: bool
    rope_theta: Annotated[float, Field(gt=1)]
    rope_scaling: dict[str, Any] | None = None
    rope_scaling_layers: Layers | None = None
    layer_norm_eps: Positive
    max_position_embeddings: Size
    hidden_act: str


class MainConfig(Section):
    """config.json."""

    vit_config: VitConfig
    adapter_config: AdapterConfig
    text_config: TextConfig
    tie_word_embeddings: bool = False
    use_frame_special_tokens: bool
    image_start_token_id: Index
    image_end_token_id: Index
    image_patch_id: Index
    image_high_res_id: Index
    image_col_id: Index
    low_res_image_start_token_id: Index
    image_low_res_id: Index
    frame_start_token_id: Index
    frame_end_token_id: Index


class GenerationConfig(Section):
    """generation_config.json."""

    bos_token_id: Index
    eos_token_id: Index | Annotated[list[Index], Field(min_length=1, max_length=64)]
    pad_token_id: Index


class PictureSize(Section):
    """``size`` of preprocessor_config.json."""

    height: Size
    width: Size


class PreprocessorConfig(Section):
    """preprocessor_config.json."""

    size: PictureSize
    patch_size: Size
    max_crops: Crops
    overlap_margins: Margins
    pooling_size: Sizes
    image_mean: Channels
    image_std: Spreads
    resample: int
    do_convert_rgb: bool


class ProcessorConfig(Section):
    """processor_config.json."""

    image_use_col_tokens: bool
    use_single_crop_col_tokens: bool
    use_single_crop_start_token: bool
