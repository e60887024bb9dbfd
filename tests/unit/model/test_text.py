"""Pieces of the decoder and the connector with few numbers; whole stages are held against the specification."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from small_checkpoint import small_architecture

from molmo2_iree.model.connector import gather_groups
from molmo2_iree.model.text import embed, grouped, merge, prompt_mask, residual, stored

TEXT = small_architecture().text.model_copy(update={"vocabulary": 5, "extra_vocabulary": 2, "width": 3})
TABLES: Any = {
    "embedding.base": jnp.arange(15, dtype=jnp.float32).reshape(5, 3),
    "embedding.extra": 100 + jnp.arange(6, dtype=jnp.float32).reshape(2, 3),
}
PATCH = 5


def mask(types: list[int], length: int, causal: bool = False) -> list[list[int]]:
    return prompt_mask(jnp.array(types), jnp.int32(length), causal).astype(int).tolist()


def test_prompt_mask_example() -> None:
    assert mask([1, 1, 0], 3) == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    assert mask([1, 1, 0], 3, causal=True) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_images_see_each_other_across_text() -> None:
    assert mask([1, 0, 1], 3) == [[1, 0, 1], [1, 1, 0], [1, 1, 1]]


def test_padding_is_never_seen() -> None:
    """Whatever type the padding has."""
    assert mask([0, 1, 1, 1], 2) == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=9, max_size=9), st.integers(1, 9), st.booleans())
def test_prompt_mask_by_the_rule(types: list[int], length: int, causal: bool) -> None:
    def rule(a: int, b: int) -> bool:
        return b < length and (b <= a or (not causal and types[a] == types[b] == 1))

    assert mask(types, length, causal) == [[int(rule(a, b)) for b in range(9)] for a in range(9)]


def test_embedding_rows() -> None:
    """The last base row, both extra rows, and -1 as row 0."""
    got = embed(TEXT, TABLES, jnp.array([0, 4, 5, 6, -1]))
    np.testing.assert_array_equal(got, [[0, 1, 2], [12, 13, 14], [100, 101, 102], [103, 104, 105], [0, 1, 2]])


def test_narrow_embeddings_are_widened() -> None:
    narrow = {name: array.astype(jnp.bfloat16) for name, array in TABLES.items()}
    assert embed(TEXT, narrow, jnp.array([1])).dtype == jnp.float32


def ranks(ids: list[int], count: int) -> list[int]:
    _, taps = merge(TEXT, PATCH, TABLES, jnp.array(ids), jnp.zeros((len(ids), 3)), jnp.int32(count))
    return taps["image_rank"].tolist()


def test_merge_ranks() -> None:
    assert ranks([PATCH, 1, PATCH], 2) == [0, -1, 1]
    assert ranks([1, PATCH, PATCH, PATCH], 2) == [-1, 0, 1, -1]
    assert ranks([1, 2, 3], 0) == [-1, -1, -1]
    assert ranks([PATCH, PATCH], 0) == [-1, -1]


def test_merge_adds_the_token_to_the_patchs_own_row() -> None:
    tokens = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [np.nan] * 3, [np.inf] * 3])
    got, _ = merge(TEXT, PATCH, TABLES, jnp.array([PATCH, 1, PATCH, PATCH]), tokens, jnp.int32(2))
    np.testing.assert_array_equal(got, [[101, 101, 102], [3, 4, 5], [100, 102, 102], [100, 101, 102]])


def test_gather_groups_example() -> None:
    seen, gathered = gather_groups(jnp.array([[1.0], [2.0], [3.0]]), jnp.array([[2, -1]]))
    assert seen.tolist() == [[True, False]]
    assert gathered.tolist() == [[[3.0], [0.0]]]


def test_an_absent_patch_is_zero_even_where_patch_0_is_no_number() -> None:
    seen, gathered = gather_groups(jnp.array([[np.nan], [2.0]]), jnp.array([[-1, 1], [-1, -1]]))
    assert seen.tolist() == [[False, True], [False, False]]
    assert gathered.tolist() == [[[0.0], [2.0]], [[0.0], [0.0]]]


def test_query_heads_share_kv_heads_in_order() -> None:
    """Heads 0 and 1 read kv head 0, heads 2 and 3 kv head 1."""
    t = TEXT.model_copy(update={"heads": 4, "kv_heads": 2, "head_dim": 1})
    assert grouped(t, jnp.arange(4.0).reshape(1, 4, 1)).tolist() == [[[[0.0], [1.0]], [[2.0], [3.0]]]]


def test_residual_norms_before_or_after_the_inner_function() -> None:
    """With a shift of 1 as inner function: 3 + (norm(3) + 1) = 5, or 3 + norm(4) = 4."""
    got = []
    for after in (False, True):
        t = TEXT.model_copy(update={"norm_after": after, "eps": 0.0})
        got.append(float(residual(t, jnp.array([[3.0]]), jnp.ones(1), lambda x: x + 1)[0, 0]))
    np.testing.assert_allclose(got, [5.0, 4.0], rtol=1e-6)


def test_stored_rows_are_rounded_as_the_cache_rounds_them() -> None:
    x = jnp.array([1 + 2.0**-9], jnp.float32)
    assert stored(x, jnp.zeros(1, jnp.bfloat16)).tolist() == [1.0]
    assert stored(x, jnp.zeros(1, jnp.float32)).tolist() == [1 + 2.0**-9]
