"""A method on the small class space of the tests, a batch for it, and parameters of which none is
zero.
"""

import numpy as np
import torch

from fedunseen.encoders.backbone import Backbone

SEEN = [0, 1, 2, 3, 4]
KEPT = [0, 1, 3]  # the samples of a batch that count
MAPS = (12, 2, 4)


def on(kind, space, shape=None, backbone=None, **settings):
    backbone = backbone or Backbone(shape or (MAPS if kind.takes == "maps" else (12,)))
    return kind(
        kind.Settings(**settings), space, torch.from_numpy(space.semantics).float(), backbone
    )


def batch(shape):
    inputs = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    return {
        "inputs": inputs,
        "labels": torch.tensor([1, 3, 2, 1]),
        "weights": torch.tensor([1.0, 1.0, 0.0, 1.0]),
    }


def drawn(method):
    rng = np.random.default_rng(0)
    return {
        name: torch.from_numpy(rng.normal(size=value.shape)).float()
        for name, value in method.init(rng).items()
    }


def others():
    """Semantics of three classes that are not in the space."""
    return torch.randn(3, 30, generator=torch.Generator().manual_seed(1))


def check_loss(method, params, b, expected, weights, rtol=1e-4, atol=1e-4):
    """Compare the loss's terms, and their weighted sum, with what was expected of the samples that
    count.
    """
    total, terms = method.loss(params, b, method.context())
    expected["loss"] = sum(weights[name] * expected[name] for name in weights)
    assert total is terms["loss"]
    torch.testing.assert_close(
        {**terms, "representation": 0}, {**expected, "representation": 0}, rtol=rtol, atol=atol
    )
    return terms["representation"]
