"""ESZSL: "an embarrassingly simple approach to zero-shot learning" (Romera-Paredes and Torr 2015), in closed form.

A centralised yardstick that costs nothing, and the first sanity check of any features.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.settings import NamedSettings
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.base import Method

__all__ = ["ESZSL", "ESZSLSettings"]


class ESZSLSettings(NamedSettings):
    """Settings of ESZSL: both regularisers as powers of ten, chosen on validation classes in the papers."""

    name: Literal["eszsl"] = "eszsl"
    log_gamma: float = 3.0
    """Exponent of the regulariser on features."""
    log_lambda: float = 0.0
    """Exponent of the regulariser on semantics."""


class ESZSL(Method):
    r"""Bilinear compatibility x V a with :math:`V = (X^TX + \gamma I)^{-1} X^T Y S\,(S^TS + \lambda I)^{-1}`."""

    Settings = ESZSLSettings

    def __init__(self, settings: ESZSLSettings, space: ClassSpace, semantics: Tensor, backbone: Backbone) -> None:
        self.space, self.semantics, self.backbone, self.width = space, semantics, backbone, backbone.shape[0]
        self.gamma, self.lamda = 10.0**settings.log_gamma, 10.0**settings.log_lambda

    def init(self, rng: np.random.Generator) -> Params:
        """Return V = 0."""
        return {"v": torch.zeros(self.width, self.semantics.shape[1])}

    def solve(self, inputs: Tensor, labels: Tensor) -> Params:
        """Solve for V over samples (n, d) with ``labels`` (n,); Y is +1 for a sample's class and -1 elsewhere."""
        classes, position = torch.unique(labels, return_inverse=True)
        x, s = self.backbone({}, inputs).double(), self.semantics[classes].double()
        y = -torch.ones(len(x), len(classes), dtype=x.dtype, device=x.device)
        y[torch.arange(len(x)), position] = 1.0
        left = x.T @ x + self.gamma * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        right = s.T @ s + self.lamda * torch.eye(s.shape[1], dtype=x.dtype, device=x.device)
        v = torch.linalg.solve(left, x.T @ y @ s)
        return {"v": torch.linalg.solve(right, v.T).T.float().contiguous()}

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Bilinear compatibility."""
        return self.backbone(params, inputs) @ params["v"] @ semantics.T
