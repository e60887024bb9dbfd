"""Prefill, extend and decode under JAX against the float64 specification, on every kind of decoder."""

import numpy as np
import pytest
from stage_cases import (
    DECODERS,
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

NEW = [72, 105, 10, 33, 7]


@pytest.fixture(scope="module", params=DECODERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write(tmp_path_factory.mktemp("checkpoint"), DECODERS[request.param])


@pytest.fixture(scope="module")
def case(checkpoint: Checkpoint) -> tuple[Request, Arrays]:
    """A request with two images, and what the specification says about it."""
    request = make_request(checkpoint.architecture, 5)
    return request, request.specify(checkpoint.folder)


@pytest.mark.parametrize("causal", [False, True])
def test_prefill(checkpoint: Checkpoint, case: tuple[Request, Arrays], causal: bool) -> None:
    request, wanted = case
    wanted = request.specify(checkpoint.folder, causal=causal) if causal else wanted
    before, length = junk_cache(checkpoint), len(request.ids)
    got = prefill(checkpoint, wanted, request, 1, before, causal=causal)
    close(got["logits"], wanted["prefill.logits"][-1], RELATIVE)
    close(got["all_logits"][:length], wanted["prefill.logits"], RELATIVE)
    for layer in range(checkpoint.architecture.text.layers):
        close(got[f"layer.{layer}"][:length], wanted[f"prefill.layer.{layer}"], RELATIVE)
        keys, values = got[f"keys.{layer}"], got[f"values.{layer}"]
        close(keys[1, :, :, :length], wanted[f"prefill.keys.{layer}"], RELATIVE)
        close(values[1, :, :length], wanted[f"prefill.values.{layer}"], RELATIVE)
        keys, values = keys.copy(), values.copy()
        keys[1, :, :, :length] = before[2 * layer][1, :, :, :length]
        values[1, :, :length] = before[2 * layer + 1][1, :, :length]
        np.testing.assert_array_equal(keys, before[2 * layer])
        np.testing.assert_array_equal(values, before[2 * layer + 1])


def test_the_mask_policy_matters(checkpoint: Checkpoint, case: tuple[Request, Arrays]) -> None:
    request, wanted = case
    both = [prefill(checkpoint, wanted, request, 0, junk_cache(checkpoint), causal=c)["logits"] for c in (False, True)]
    assert np.abs(both[0] - both[1]).max() > 100 * RELATIVE * np.abs(both[0]).max()


def test_extend_is_the_prefill_of_the_longer_text(checkpoint: Checkpoint, case: tuple[Request, Arrays]) -> None:
    """In two pieces; other slots keep their bytes."""
    request, wanted = case
    length, slot = len(request.ids), 2
    filled = prefill(checkpoint, wanted, request, slot, junk_cache(checkpoint))
    longer = request.specify(checkpoint.folder, NEW)
    first = extend(checkpoint, NEW[:3], length, slot, filled)
    close(first["logits"], longer["prefill.logits"][length + 2], RELATIVE)
    second = extend(checkpoint, NEW[3:], length + 3, slot, first)
    close(second["logits"], longer["prefill.logits"][-1], RELATIVE)
    for layer in range(checkpoint.architecture.text.layers):
        close(second[f"layer.{layer}"][:2], longer[f"prefill.layer.{layer}"][-2:], RELATIVE)
        close(second[f"keys.{layer}"][slot, :, :, : length + 5], longer[f"prefill.keys.{layer}"], RELATIVE)
        close(second[f"values.{layer}"][slot, :, : length + 5], longer[f"prefill.values.{layer}"], RELATIVE)
    for old, new in zip(cache_of(filled), cache_of(second), strict=True):
        np.testing.assert_array_equal(np.delete(new, slot, 0), np.delete(old, slot, 0))


def extend(checkpoint: Checkpoint, tokens: list[int], start: int, slot: int, before: Arrays) -> Arrays:
    """At most eight tokens; the ids behind them are junk."""
    ids = padded(np.array(tokens, np.int32), 8, 500)
    return checkpoint.run("extend-t8x80-taps", ids, i32(start), i32(len(tokens)), i32(slot), *cache_of(before))


def test_extend_up_to_the_last_row_of_the_cache(checkpoint: Checkpoint) -> None:
    """The last piece is rows 77, 78 and 79 of 80: the window of 8 is shifted back and the rows before are kept."""
    request = make_request(checkpoint.architecture, 7, ())
    at = len(request.ids)
    text = [20 + k for k in range(80 - at)]
    results = prefill(checkpoint, request.specify(checkpoint.folder), request, 0, junk_cache(checkpoint))
    pieces = [text[k : k + 8] for k in range(0, len(text) - 3, 8)]
    pieces[-1] = pieces[-1][: len(text) - 3 - 8 * (len(pieces) - 1)]
    for piece in [*pieces, text[-3:]]:
        results = extend(checkpoint, piece, at, 0, results)
        at += len(piece)
    assert at == 80
    longer = request.specify(checkpoint.folder, text)
    close(results["logits"], longer["prefill.logits"][-1], RELATIVE)
    close(results["keys.1"][0], longer["prefill.keys.1"], RELATIVE)


def test_decode_of_slots_at_different_positions(checkpoint: Checkpoint, case: tuple[Request, Arrays]) -> None:
    """Slots 0 and 2 step on; slot 1 is inactive and slot 3 outside of the batch, both keep their bytes."""
    requests = [case[0], make_request(checkpoint.architecture, 6, (1,)), make_request(checkpoint.architecture, 7, ())]
    specified = [case[1], *(request.specify(checkpoint.folder) for request in requests[1:])]
    cache = junk_cache(checkpoint)
    for slot, (request, wanted) in enumerate(zip(requests, specified, strict=True)):
        cache = cache_of(prefill(checkpoint, wanted, request, slot, cache))
    said: list[list[int]] = [[], [], []]
    for step in range(2):
        ids = np.array([NEW[step], 3, NEW[step + 2]], np.int32)
        positions = np.array([len(requests[0].ids) + step, 9 * step, len(requests[2].ids) + step], np.int32)
        before = cache
        got = checkpoint.run("decode-b3x72-taps", ids, positions, np.array([1, 0, 1], np.int32), *before)
        cache = cache_of(got)
        for slot in (0, 2):
            said[slot].append(int(ids[slot]))
            longer = requests[slot].specify(checkpoint.folder, said[slot])
            close(got["logits"][slot], longer["prefill.logits"][-1], RELATIVE)
            for layer in range(checkpoint.architecture.text.layers):
                close(got[f"layer.{layer}"][slot], longer[f"prefill.layer.{layer}"][-1], RELATIVE)
        row = checkpoint.architecture.text.kv_heads * checkpoint.architecture.text.head_dim
        for old, new in zip(before, cache, strict=True):
            np.testing.assert_array_equal(new[[1, 3]], old[[1, 3]])
            assert np.count_nonzero(new != old) == 2 * row
