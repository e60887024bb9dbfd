"""A checkpoint as a build with narrower storage sees it, so that its arithmetic can be judged apart from its rounding.

With bfloat16 storage every matrix is rounded once; vectors, and the position table, stay float32. A reference that
reads the rounded matrices differs from the modules by float32 rounding alone, and greedy tokens stay comparable.
"""

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

_POSITIONS = "positional_embedding"


def rounded_checkpoint(folder: Path, storage: str, output: Path) -> Path:
    """``folder`` itself for float32; else a copy in ``output`` with every matrix rounded to ``storage``."""
    if storage == "float32":
        return folder
    output.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.suffix == ".safetensors":
            with safe_open(path, framework="numpy") as file:
                tensors = {name: rounded(name, file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
            save_file(tensors, output / path.name, metadata={"format": "pt"})
        elif path.is_file():
            shutil.copyfile(path, output / path.name)
    return output


def rounded(name: str, tensor: np.ndarray) -> np.ndarray:
    """float32; a matrix goes through bfloat16, to nearest even: 1.00390625 becomes 1.0."""
    values = tensor.astype(np.float32)
    if values.ndim != 2 or name.endswith(_POSITIONS):
        return values
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)
