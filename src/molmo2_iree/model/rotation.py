"""Rotary position tables as data: the compiler's own cosine loses 1e-5 at position 500 and 9e-4 at position 36,000.

Angles are rounded as the reference rounds them (power, quotient and product to float32, contract section 7); cosine
and sine are taken in float64 of that float32 angle and rounded once. So is the power: numpy's own float32 power is an
ulp off in a fifth of the entries, and which ones depends on the machine.
"""

import math

import numpy as np

from molmo2_iree.architecture import Text, Yarn


def rotation_shapes(text: Text) -> dict[str, tuple[int, int]]:
    """``rope.{plain,yarn}.{cos,sin}`` -> [max positions, head_dim / 2]; a kind no layer uses is left out."""
    kinds = sorted({rotation_kind(text, layer) for layer in range(text.layers)})
    return {
        f"rope.{kind}.{part}": (text.max_positions, text.head_dim // 2) for kind in kinds for part in ("cos", "sin")
    }


def rotation_table(text: Text, name: str) -> np.ndarray:
    """The float32 table of one of those names."""
    _, kind, part = name.split(".")
    inverse, scale = _frequencies(text, text.yarn if kind == "yarn" else None)
    angles = (np.arange(text.max_positions, dtype=np.float32)[:, None] * inverse[None, :]).astype(np.float64)
    values = np.cos(angles) if part == "cos" else np.sin(angles)
    return values.astype(np.float32) * np.float32(scale)


def rotation_kind(text: Text, layer: int) -> str:
    """Which table a layer reads."""
    return "yarn" if text.yarn is not None and layer in text.yarn.layers else "plain"


def _frequencies(text: Text, yarn: Yarn | None) -> tuple[np.ndarray, float]:
    half = text.head_dim // 2
    exponents = np.arange(half, dtype=np.float32) * np.float32(2) / np.float32(text.head_dim)
    frequencies = np.power(text.rope_theta, exponents.astype(np.float64)).astype(np.float32)
    plain = np.float32(1) / frequencies
    if yarn is None:
        return plain, 1.0
    low, high = _correction_range(text, yarn)
    ramp = np.clip((np.arange(half, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    stretched = np.float32(1) / (np.float32(yarn.factor) * frequencies)
    return stretched * ramp + plain * (np.float32(1) - ramp), yarn.attention_factor


def _correction_range(text: Text, yarn: Yarn) -> tuple[float, float]:
    """First and last dimension of the ramp: (18, 35) for theta 5e5, 128 dimensions and 8,192 original positions."""

    def dimension(rotations: float) -> float:
        turns = yarn.original_positions / (rotations * 2 * math.pi)
        return text.head_dim * math.log(turns) / (2 * math.log(text.rope_theta))

    low = max(math.floor(dimension(yarn.beta_fast)), 0)
    high = min(math.ceil(dimension(yarn.beta_slow)), text.head_dim - 1)
    return low, high if high > low else low + 0.001
