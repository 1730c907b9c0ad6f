"""Which of 80 known samples a class has, from its exact total: a limit that SECURITY.md states."""

import numpy as np
import pytest
from scipy.optimize import linprog

from fedunseen.data import Quantization

WIDTH, KNOWN = 64, 80


@pytest.mark.parametrize("noise", [0.0, 40.0])
def test_an_exact_total_tells_which_known_samples_a_class_has_and_noise_hides_it(noise):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(KNOWN, WIDTH)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    step = np.abs(rows).max() / 127
    codes, _ = Quantization(8, np.float32([step]), np.float32([0.0])).codes(rows)
    there = rng.permutation(KNOWN) < KNOWN // 2
    total = codes[there].astype(float).sum(0)
    total += noise * np.sqrt(there.sum()) * rng.normal(size=WIDTH)
    slack = np.eye(WIDTH + 1)
    of_sums = np.hstack([np.vstack([codes.T, np.ones(KNOWN)]), slack, -slack])
    solved = linprog(
        np.r_[np.zeros(KNOWN), np.ones(2 * (WIDTH + 1))],
        A_eq=of_sums,
        b_eq=np.r_[total, there.sum()],
        bounds=[(0, 1)] * KNOWN + [(0, None)] * (2 * (WIDTH + 1)),
    )
    right = ((solved.x[:KNOWN] > 0.5) == there).mean()
    assert right == 1 if noise == 0 else right < 0.9
