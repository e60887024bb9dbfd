"""A hand-made group table: 4, 2, 1 and 0 valid entries, over features whose patch 0 no group names.

No real picture makes a group without any patch; a padded batch does. Patch 0 holds a large sentinel: whoever reads -1
as 0 and forgets to mask it shows it at once.
"""

import numpy as np

SENTINEL = 1e4


def hand_groups(size: int) -> np.ndarray:
    """int32 [4, size]: for 4, [[5, 1, 2, 3], [4, -1, 6, -1], [-1, -1, -1, 7], [-1, -1, -1, -1]]."""
    table = np.full((4, size), -1, np.int32)
    table[0] = np.arange(size)
    table[0, 0] = size + 1
    table[1, 0], table[1, 2] = size, size + 2
    table[2, size - 1] = size + 3
    return table


def sentinel_features(features: np.ndarray) -> np.ndarray:
    """float32 features [C, N, F] of a picture's first two crops, patch 0 replaced by +-SENTINEL."""
    marked = features[:2].astype(np.float32)
    marked[0, 0] = np.where(np.arange(marked.shape[-1]) % 2, SENTINEL, -SENTINEL)
    return marked
