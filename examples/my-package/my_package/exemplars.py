"""A method in closed form: the nearest predicted mean."""

import torch
from pydantic import Field

from fedunseen.core.settings import NamedSettings
from fedunseen.methods.closed_form.base import ClosedForm


class ExemplarsSettings(NamedSettings):
    """What the experiment file may say about it."""

    ridge: float = Field(0.1, gt=0)
    """How far the regression is drawn towards zero."""


class Exemplars(ClosedForm, name="exemplars"):
    """The mean of a class is a linear function of its description."""

    Settings = ExemplarsSettings

    def solve(self, sums):
        there = sums["count"] > 0
        means = sums["total"][there] / sums["count"][there, None]
        described = self.semantics.double().cpu()[there]
        left = described.T @ described + self.settings.ridge * torch.eye(
            described.shape[1], dtype=torch.float64
        )
        return {"to_mean": torch.linalg.solve(left, described.T @ means).float()}

    def scores(self, params, inputs, semantics):
        return -torch.cdist(self.backbone(params, inputs), semantics @ params["to_mean"])
