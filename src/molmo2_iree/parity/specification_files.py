"""Reads a checkpoint for the float64 specification: original tensor names and config.json, nothing in between."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from molmo2_iree.errors import CheckpointError


class Original:
    """A checkpoint folder in the release format. ``array`` reads one tensor when asked, so 19 GB need not fit twice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        index = folder / "model.safetensors.index.json"
        if index.exists():
            self.files: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        else:
            with safe_open(folder / "model.safetensors", framework="numpy") as file:
                self.files = dict.fromkeys(file.keys(), "model.safetensors")

    def array(self, name: str) -> np.ndarray:
        """One tensor as float64, by its original name."""
        if name not in self.files:
            raise CheckpointError(
                str(self.folder),
                got=f"no tensor {name}",
                expected="the tensors of a Molmo2 release",
                fix="fetch the checkpoint again: molmo2 fetch",
            )
        with safe_open(self.folder / self.files[name], framework="numpy") as file:
            return file.get_tensor(name).astype(np.float64)

    def linear(self, x: np.ndarray, name: str, *, bias: bool) -> np.ndarray:
        """x [..., in] through ``name``, stored [out, in] (contract section 2)."""
        y = x @ self.array(f"{name}.weight").T
        return y + self.array(f"{name}.bias") if bias else y


def softmax(scores: np.ndarray, visible: np.ndarray | None = None) -> np.ndarray:
    """Over the last axis, only where ``visible``; a row that sees nothing has weights 0.

    scores [0., 0., 5.] with visible [True, True, False] give [0.5, 0.5, 0.].
    """
    seen = np.ones(scores.shape, bool) if visible is None else np.broadcast_to(visible, scores.shape)
    top = np.where(seen, scores, -np.inf).max(-1, keepdims=True)
    powers = np.where(seen, np.exp(np.where(seen, scores - np.where(np.isfinite(top), top, 0), 0)), 0)
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + e^-x), elementwise."""
    return x / (1 + np.exp(-x))
