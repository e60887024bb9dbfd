"""Vision, connector and merge under JAX against the float64 specification, on every kind of architecture."""

import numpy as np
import pytest
from stage_cases import JUNK, PICTURES, RELATIVE, Arrays, Checkpoint, Request, close, i32, make_request, padded, write

from molmo2_iree.stages import dimensions, parse_program

TOKENS = 64


@pytest.fixture(scope="module", params=PICTURES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write(tmp_path_factory.mktemp("checkpoint"), *PICTURES[request.param])


@pytest.fixture(scope="module")
def case(checkpoint: Checkpoint) -> tuple[Request, Arrays]:
    """A request with two images, and what the specification says about it."""
    request = make_request(checkpoint.architecture, 5)
    return request, request.specify(checkpoint.folder)


def test_vision(checkpoint: Checkpoint, case: tuple[Request, Arrays]) -> None:
    request, wanted = case
    got = checkpoint.run("vision-c4-taps", padded(request.patches, 4))
    for name, array in got.items():
        close(array[: len(request.patches)], wanted[f"vision.{name}"], RELATIVE, name)


def test_connector(checkpoint: Checkpoint, case: tuple[Request, Arrays]) -> None:
    request, wanted = case
    program, crop, row = "connector-c3-taps", 0, 0
    size = dimensions(parse_program(program), checkpoint.architecture)["G"]
    for crops, count in zip(request.crops, request.group_counts, strict=True):
        features = padded(wanted["vision.features"][crop : crop + crops], 3)
        got = checkpoint.run(program, features, padded(request.groups[row : row + count], size, -1))
        for name, array in got.items():
            expected = wanted[f"connector.{name}"][row : row + count]
            used = got["valid"][:count] == 1 if name == "pooled" else slice(None)
            close(array[:count][used], expected[used], RELATIVE, name)
            assert np.isfinite(array).all(), name
        assert not got["tokens"][got["valid"] == 0].any()
        assert not got["valid"][count:].any()
        crop, row = crop + crops, row + count


def test_groups_never_read_patch_0_for_an_absent_one(checkpoint: Checkpoint, case: tuple[Request, Arrays]) -> None:
    """Patch 0 is in no group, so a huge one changes not a bit; absent patches are gathered from there."""
    request, wanted = case
    size = dimensions(parse_program("connector-c3"), checkpoint.architecture)["G"]
    features = padded(wanted["vision.features"][: request.crops[0]], 3)
    table = padded(request.groups[: request.group_counts[0]], size, -1)
    before = checkpoint.run("connector-c3", features, table)
    features[0, 0] = 1e30
    after = checkpoint.run("connector-c3", features, table)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_merge(checkpoint: Checkpoint, case: tuple[Request, Arrays]) -> None:
    request, wanted = case
    kept = wanted["connector.tokens"][wanted["connector.valid"] == 1]
    length = len(request.ids)
    ids = padded(request.ids, TOKENS, checkpoint.architecture.tokens.image_patch)
    got = checkpoint.run(f"merge-s{TOKENS}-taps", ids, padded(kept, TOKENS), i32(len(kept)))
    close(got["embeddings"][:length], wanted["merge.embeddings"], RELATIVE)
    places = np.flatnonzero(request.ids == checkpoint.architecture.tokens.image_patch)
    assert got["image_rank"][places].tolist() == list(range(len(kept)))
    assert (np.delete(got["image_rank"], places) == -1).all()


def test_merge_of_text_alone(checkpoint: Checkpoint) -> None:
    request = make_request(checkpoint.architecture, 6, ())
    wanted = request.specify(checkpoint.folder)["merge.embeddings"]
    tokens = np.full((TOKENS, checkpoint.architecture.text.width), JUNK, np.float32)
    got = checkpoint.run(f"merge-s{TOKENS}", padded(request.ids, TOKENS, 0), tokens, i32(0))
    np.testing.assert_array_equal(got["embeddings"][: len(request.ids)], wanted.astype(np.float32))
