"""Narrower storage: bfloat16 matrices and cache rows, float32 arithmetic."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from stage_cases import (
    LAYOUT,
    LEAN,
    RELATIVE,
    Arrays,
    Checkpoint,
    Request,
    cache_of,
    close,
    i32,
    junk_cache,
    make_request,
    padded,
    prefill,
    write,
)

from molmo2_iree.model.programs import Model, traceable
from molmo2_iree.stages import CacheLayout, dimensions, parse_program

NARROW = replace(LAYOUT, dtype="bfloat16")
NARROW_CACHE = 0.02
"""Error of logits with bfloat16 cache rows, as a share of the largest: 0.006 was measured, 2 ** -8 is one rounding."""
FLIPS = 0.002
"""Room for a few cache rows that fall on the other side of a rounding; unrounded rows would differ by 0.006."""
NARROW_MATRICES = 0.05
"""Error of logits against unrounded matrices: 0.015 was measured."""
TOKEN = 72


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write(tmp_path_factory.mktemp("checkpoint"), LEAN, storage="bfloat16")


@pytest.fixture(scope="module")
def case(checkpoint: Checkpoint) -> tuple[Request, Arrays]:
    """A request, and what the specification says of the rounded matrices about it."""
    request = make_request(checkpoint.architecture, 5)
    return request, request.specify(checkpoint.folder)


def test_stages_read_what_the_archive_holds(checkpoint: Checkpoint) -> None:
    model = Model(checkpoint.architecture, NARROW, "bfloat16", False)
    for program in ("vision-c2", "connector-c2", "merge-s64", "prefill-s64", "extend-t8x72", "decode-b3x72"):
        prepared = traceable(model, parse_program(program))
        for parameter, spec in zip(prepared.parameters, prepared.parameter_specs, strict=True):
            assert spec.dtype == checkpoint.arrays[parameter.name].dtype, parameter.name
            assert spec.shape == checkpoint.arrays[parameter.name].shape, parameter.name
            assert spec.dtype == (ml_dtypes.bfloat16 if parameter.kind == "matrix" else np.float32), parameter.name


def test_pictures_follow_the_rounded_matrices(checkpoint: Checkpoint, case: tuple[Request, Arrays]) -> None:
    request, wanted = case
    got = checkpoint.run("vision-c3", padded(request.patches, 3))
    close(got["features"], wanted["vision.features"], RELATIVE)
    size, count = dimensions(parse_program("connector-c2"), checkpoint.architecture)["G"], request.group_counts[0]
    table = padded(request.groups[:count], size, -1)
    got = checkpoint.run("connector-c2", wanted["vision.features"][:2].astype(np.float32), table)
    close(got["tokens"][:count], wanted["connector.tokens"][:count], RELATIVE)
    kept = wanted["connector.tokens"][wanted["connector.valid"] == 1]
    got = checkpoint.run("merge-s64", padded(request.ids, 64, 0), padded(kept, 64), i32(len(kept)))
    close(got["embeddings"][: len(request.ids)], wanted["merge.embeddings"], RELATIVE)


@pytest.mark.parametrize(("layout", "relative"), [(LAYOUT, RELATIVE), (NARROW, NARROW_CACHE)], ids=["f32", "bf16"])
def test_text_follows_the_rounded_matrices(
    checkpoint: Checkpoint, case: tuple[Request, Arrays], layout: CacheLayout, relative: float
) -> None:
    request, wanted = case
    length, cache = len(request.ids), junk_cache(checkpoint, layout)
    filled = prefill(checkpoint, wanted, request, 0, cache, layout=layout)
    close(filled["logits"], wanted["prefill.logits"][-1], relative)
    longer = request.specify(checkpoint.folder, [TOKEN])["prefill.logits"][-1]
    ids = np.array([TOKEN, 0, 0], np.int32)
    positions, active = np.array([length, 0, 0], np.int32), np.array([1, 0, 0], np.int32)
    got = checkpoint.run("decode-b3x72", ids, positions, active, *cache_of(filled), cache=layout)
    close(got["logits"][0], longer, relative)
    for old, new in zip(cache_of(filled), cache_of(got), strict=True):
        np.testing.assert_array_equal(new[1:], old[1:])
    ids = padded(ids[:1], 8, 500)
    got = checkpoint.run("extend-t8x72", ids, i32(length), i32(1), i32(0), *cache_of(filled), cache=layout)
    close(got["logits"], longer, relative)


def test_a_narrow_cache_gives_prefill_the_rows_it_will_give_later(checkpoint: Checkpoint) -> None:
    """The last token's logits are the same whether it is part of the prompt or appended."""
    request = make_request(checkpoint.architecture, 6, ())
    more = {"ids": np.append(request.ids, np.int32(TOKEN)), "types": np.append(request.types, np.int32(0))}
    whole = replace(request, **more)
    results = []
    for part in (whole, request):
        embeddings = part.specify(checkpoint.folder)
        results.append(prefill(checkpoint, embeddings, part, 1, junk_cache(checkpoint, NARROW), layout=NARROW))
    ids, start = padded(np.array([TOKEN], np.int32), 8, 0), i32(len(request.ids))
    later = checkpoint.run("extend-t8x72", ids, start, i32(1), i32(1), *cache_of(results[1]), cache=NARROW)
    close(later["logits"], results[0]["logits"], FLIPS)


def test_rounding_the_matrices_moves_the_logits_little(checkpoint: Checkpoint, case: tuple[Request, Arrays]) -> None:
    request, wanted = case
    unrounded = request.specify(checkpoint.folder.parent)["prefill.logits"][-1]
    filled = prefill(checkpoint, wanted, request, 0, junk_cache(checkpoint, NARROW), layout=NARROW)
    close(filled["logits"], unrounded, NARROW_MATRICES)
