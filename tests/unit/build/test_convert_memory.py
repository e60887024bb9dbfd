"""Conversion of a checkpoint several times larger than the memory it may take."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from molmo2_iree.build.embedded import DEFAULT
from molmo2_iree.build.embedded_tensors import shapes

LARGE = replace(
    DEFAULT,
    text_width=2048,
    text_intermediate=2560,
    text_layers=15,
    heads=16,
    kv_heads=4,
    head_dim=128,
    vocabulary=6144,
    max_positions=256,
)
"""50 MB the largest tensor, 1.7 GB in all."""
SHARDS = 3
BASE = 400 * 10**6

MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
sys.exit(code)
"""
"""A small process in between: a child's peak starts from its parent's, and pytest's own may be larger."""

CONVERT = """
import sys
from pathlib import Path
from molmo2_iree.build.convert import convert
from molmo2_iree.build.embedded import Variant
from molmo2_iree.build.embedded_config import json_files
from molmo2_iree.detect import read_architecture
convert(Path(sys.argv[1]), read_architecture(json_files({variant!r})), "bfloat16", Path(sys.argv[2]), lambda _: None)
"""


def write_holes(folder: Path) -> tuple[int, int]:
    """Shards of zeros that take no room on the disk; returns the bytes of the largest tensor and of all."""
    table = shapes(LARGE)
    owner, sizes = {}, [4 * math.prod(shape) for shape in table.values()]
    for number in range(SHARDS):
        header, end = {}, 0
        for name, shape in list(table.items())[number::SHARDS]:
            start, end = end, end + 4 * math.prod(shape)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
            owner[name] = f"model-{number}.safetensors"
        text = json.dumps(header).encode()
        path = folder / f"model-{number}.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(path, 8 + len(text) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": owner}), encoding="utf-8")
    return max(sizes), sum(sizes)


def test_peak_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    largest, total = write_holes(tmp_path)
    allowed = 2 * largest + BASE
    assert total > 3 * allowed
    code = CONVERT.format(variant=LARGE)
    command = [sys.executable, "-c", MEASURE, sys.executable, "-c", code, str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        assert done.returncode == 0, done.stderr
        written = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    finally:
        for path in [*tmp_path.glob("*.safetensors"), *(tmp_path / "out").glob("*.irpa")]:
            path.unlink()
    assert written > total // 2
    assert int(done.stdout) < allowed, f"{int(done.stdout):,} bytes, {allowed:,} allowed"
