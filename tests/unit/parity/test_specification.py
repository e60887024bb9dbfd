import numpy as np

from molmo2_iree.parity.specification_files import softmax
from molmo2_iree.parity.specification_text import prefill_mask, rotary_table

TEXT_4B = {"head_dim": 128, "rope_theta": 5e6, "rope_scaling": None, "rope_scaling_layers": None}
TEXT_O_7B = {
    "head_dim": 128,
    "rope_theta": 5e5,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 8192,
    },
    "rope_scaling_layers": [3],
}


def test_softmax_example() -> None:
    visible = np.array([True, True, False])
    np.testing.assert_array_equal(softmax(np.array([0.0, 0.0, 5.0]), visible), [0.5, 0.5, 0.0])
    np.testing.assert_array_equal(softmax(np.array([1.0, 2.0]), np.array([False, False])), [0.0, 0.0])


def test_prefill_mask_example() -> None:
    types = np.array([0, 1, 1])
    assert prefill_mask(types, causal_image=False).astype(int).tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 1]]
    assert prefill_mask(types, causal_image=True).astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_text_between_pictures_stays_causal() -> None:
    mask = prefill_mask(np.array([1, 0, 1]), causal_image=False)
    assert mask.astype(int).tolist() == [[1, 0, 1], [1, 1, 0], [1, 1, 1]]


def test_rotary_frequencies_of_the_4b() -> None:
    """First, second and last inverse frequency of contract section 7, read off the sine at position 1."""
    cos, sin = rotary_table(TEXT_4B, 0, 1, 1)
    assert sin.shape == (1, 64)
    np.testing.assert_allclose(np.arcsin(sin[0, [0, 1, 63]]), [1, 0.78582996, 2.5450797e-07], rtol=2e-7)
    np.testing.assert_allclose(cos**2 + sin**2, 1, atol=2e-7)


def test_yarn_of_the_o_7b() -> None:
    """Dimensions up to 18 keep their frequency, those from 35 turn 8 times slower, and both tables grow by 1.208."""
    plain, scaled = (np.arctan2(*rotary_table(TEXT_O_7B, layer, 1, 1)[::-1])[0] for layer in (0, 3))
    np.testing.assert_allclose(scaled[:19], plain[:19], rtol=3e-7)
    np.testing.assert_allclose(scaled[35:], plain[35:] / 8, rtol=3e-7)
    assert np.all(scaled[19:35] < plain[19:35])
    cos, sin = rotary_table(TEXT_O_7B, 3, 1000, 3)
    np.testing.assert_allclose(np.hypot(cos, sin), 1.2079441541679836, rtol=3e-7)


def test_positions_start_where_the_cache_ends() -> None:
    whole, tail = rotary_table(TEXT_4B, 0, 0, 9), rotary_table(TEXT_4B, 0, 7, 2)
    np.testing.assert_array_equal(whole[0][7:], tail[0])
    np.testing.assert_array_equal(whole[1][7:], tail[1])
