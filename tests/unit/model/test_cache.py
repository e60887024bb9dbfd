"""Cache writes touch the rows they own and no other, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molmo2_iree.model.cache import write_slots, write_span

L, K, H, X = 3, 2, 4, 8
"""Slots, kv heads, head dim, rows."""

Cache = tuple[np.ndarray, np.ndarray]
span = jax.jit(write_span)
slots = jax.jit(write_slots)


def numbered(dtype: str = "float32") -> Cache:
    """Every element another number: a misplaced row cannot hide."""
    keys = np.arange(L * K * H * X, dtype=np.float32).reshape(L, K, H, X)
    return jnp.asarray(keys, dtype), jnp.asarray(1000 + keys.reshape(L, K, X, H), dtype)  # type: ignore[return-value]


def rows(count: int) -> Cache:
    """k and v [count, K, H], negative so that they differ from what the cache holds."""
    k = -1 - np.arange(count * K * H, dtype=np.float32).reshape(count, K, H)
    return k, k - 500


def by_loop(cache: Cache, k: np.ndarray, v: np.ndarray, places: list[tuple[int, int, int]]) -> Cache:
    """(source row, slot, cache row) one by one."""
    keys, values = np.array(cache[0]), np.array(cache[1])
    for source, slot, row in places:
        keys[slot, :, :, row] = k[source]
        values[slot, :, row, :] = v[source]
    return keys, values


def same(got: tuple[jax.Array, jax.Array], wanted: Cache) -> None:
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs)


@pytest.mark.parametrize("start", range(X))
@pytest.mark.parametrize("tokens", [1, 3, X])
def test_a_span_at_every_start_up_to_the_last_row(start: int, tokens: int) -> None:
    """A span of T rows may start where fewer than T are left: only ``length`` of them are real."""
    for length in range(1, min(tokens, X - start) + 1):
        k, v = rows(tokens)
        got = span(*numbered(), k, v, np.int32(1), np.int32(start), np.int32(length))
        same(got, by_loop(numbered(), k, v, [(i, 1, start + i) for i in range(length)]))


def test_the_docstrings_span() -> None:
    """Of rows [a b c d], T 3, start 3, length 1 writes [a b c new]."""
    keys, values = jnp.array([[[[1.0, 2.0, 3.0, 4.0]]]]), jnp.array([[[[1.0], [2.0], [3.0], [4.0]]]])
    new = jnp.array([9.0, 8.0, 7.0]).reshape(3, 1, 1)
    got = write_span(keys, values, new, new, jnp.int32(0), jnp.int32(3), jnp.int32(1))
    assert [np.asarray(array).reshape(-1).tolist() for array in got] == [[1.0, 2.0, 3.0, 9.0]] * 2


@pytest.mark.parametrize("slot", range(L))
def test_a_span_stays_in_its_slot(slot: int) -> None:
    k, v = rows(3)
    got = span(*numbered(), k, v, np.int32(slot), np.int32(2), np.int32(3))
    same(got, by_loop(numbered(), k, v, [(i, slot, 2 + i) for i in range(3)]))


def test_a_span_of_no_rows_changes_nothing() -> None:
    k, v = rows(3)
    same(span(*numbered(), k, v, np.int32(1), np.int32(7), np.int32(0)), numbered())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, X - 1), st.booleans()), min_size=L, max_size=L))
def test_active_slots_get_their_row_and_others_keep_their_bytes(steps: list[tuple[int, bool]]) -> None:
    k, v = rows(L)
    positions, active = (np.array(column, np.int32) for column in zip(*steps, strict=True))
    got = slots(*numbered(), k, v, positions, active)
    same(got, by_loop(numbered(), k, v, [(i, i, row) for i, (row, live) in enumerate(steps) if live]))


def test_a_smaller_batch_leaves_the_other_slots() -> None:
    k, v = rows(2)
    got = slots(*numbered(), k, v, np.array([7, 0], np.int32), np.ones(2, np.int32))
    same(got, by_loop(numbered(), k, v, [(0, 0, 7), (1, 1, 0)]))


def test_inactive_rows_that_are_not_numbers_keep_their_bits() -> None:
    """A slot that was never written may hold anything, a NaN with a payload too."""
    keys, values = (np.array(array) for array in numbered())
    keys.view(np.uint32)[1, 0, 0, 3] = values.view(np.uint32)[1, 0, 3, 0] = 0x7FC12345
    k, v = rows(L)
    got = slots(keys, values, k, v, np.full(L, 3, np.int32), np.array([1, 0, 1], np.int32))
    for ours, theirs in zip(got, (keys, values), strict=True):
        np.testing.assert_array_equal(np.asarray(ours).view(np.uint32)[1], theirs.view(np.uint32)[1])


def test_new_rows_are_stored_in_the_caches_dtype() -> None:
    keys, values = numbered("bfloat16")
    k, v = rows(3)
    k[1, 0, 0] = v[1, 0, 0] = 1 + 2.0**-9
    for got in (
        span(keys, values, k, v, np.int32(0), np.int32(0), np.int32(3)),
        slots(keys, values, k, v, np.array([0, 1, 2], np.int32), np.ones(3, np.int32)),
    ):
        assert [array.dtype for array in got] == [jnp.bfloat16] * 2
    assert float(got[0][1, 0, 0, 1]) == float(got[1][1, 0, 1, 0]) == 1.0
