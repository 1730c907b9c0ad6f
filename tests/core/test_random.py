import hashlib

import numpy as np
import pytest

from fedunseen.core.random import stream


def test_the_numbers_of_a_stream_never_change():
    # Stored once: other numbers would make every published result of a seed another one.
    assert stream(0, "batches", 3, 1).integers(1000, size=4).tolist() == [656, 392, 758, 186]


@pytest.mark.parametrize(
    "keys", [(), (0,), (3, 1), (2**32 - 1, 0), (2**32, 5), (7, 2**40), (np.int64(3), np.int64(1))]
)
@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**70])
def test_a_stream_is_numpys_of_its_seed_purpose_and_keys(seed, keys):
    word = int.from_bytes(hashlib.sha256(b"p").digest()[:8], "little")
    slow = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, word, *keys])))
    assert (stream(seed, "p", *keys).integers(2**62, size=5) == slow.integers(2**62, size=5)).all()
