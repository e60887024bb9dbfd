"""Conversions that must be refused, and the bytes of a shard taken apart and put together again."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from small_checkpoint import small_architecture

from molmo2_iree.build.convert import convert
from molmo2_iree.errors import WeightsError

WTE = "model.transformer.wte.embedding"
ATT = "model.transformer.blocks.1.self_attn.att_proj.weight"
FIRST = "model.transformer.blocks.0.attn_norm.weight"


def quiet(_: int) -> None:
    """No progress."""


def refused(folder: Path, match: str, storage: str = "float32") -> WeightsError:
    """The refusal of a conversion, of which nothing may be left."""
    output = folder.parent / f"{folder.name}-converted"
    with pytest.raises(WeightsError, match=match) as refusal:
        convert(folder, small_architecture(), storage, output, quiet)
    assert not output.exists() or not list(output.iterdir())
    assert refusal.value.exit_code == 6
    return refusal.value


def taken_apart(path: Path) -> tuple[dict[str, Any], bytes]:
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


def put_together(path: Path, header: bytes, data: bytes, length: int | None = None) -> None:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
