"""APN: attribute prototype network (Xu et al. 2020), on the spatial map of a backbone.

The filters V predict the attributes that score the classes, pooled over cells. P has one prototype
for each attribute, whose highest cell is where the attribute is. The paper's warm-up of V and P
alone is left out, and so is the official code's softmax before the cross-entropy's own: its small
gradients are made for Adam, and SGD learns more slowly.
"""

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.phases import Batch, Context, Terms
from fedunseen.losses import attribute_error, compactness, group_norms, semantic_cross_entropy
from fedunseen.methods.maps import MapMethod, MapSettings, group_matrix, project, weighted_loss


class APNSettings(MapSettings):
    """Settings of APN; the weights of the losses are the official code's for CUB. A weight of 0
    switches a loss off.

    AWA2 there: pool = "average", sce_p = 1 (0 for ZSL alone), mse = 1e-4, mse_p = 0.01, groups_v =
    5e-4, groups_p = 5e-7, grouped = false, compactness = 0. SUN there: pool = "average", mse =
    1e-4, mse_p = 0.05, groups_v = 1e-3, groups_p = 5e-3, compactness = 1.3e-5. The groups are the
    class space's: for CUB its 28, where the official code takes seven body parts, so that the norms
    sum to more here.
    """

    losses = "sce", "sce_p", "mse", "mse_p"
    lr: float = Field(0.03, gt=0)
    """Learning rate of the local updates; the optimizer's state starts again each round."""
    pool: Literal["max", "average"] = "max"
    """How the answers of V at the cells become attributes."""
    sce: float = Field(1.0, ge=0)
    """Weight of the cross-entropy of classes: FedZSL Eq. 3 and DistZSL Eq. 3."""
    sce_p: float = Field(1.0, ge=0)
    """Weight of the cross-entropy of the prototypes' attributes."""
    mse: float = Field(0.01, ge=0)
    """Weight of the squared error of V's attributes."""
    mse_p: float = Field(0.1, ge=0)
    """Weight of the squared error of the prototypes' attributes."""
    groups_v: float = Field(5e-5, ge=0)
    """Weight of the norms of the attribute groups of V."""
    groups_p: float = Field(0.04, ge=0)
    """Weight of the norms of the attribute groups of P."""
    grouped: bool = True
    """Whether those norms are taken group by group (every attribute needs one), or once over all
    attributes.
    """
    compactness: float = Field(6.4e-8, ge=0)
    """Weight of the compactness of attributes' maps, which APN's official code sums over a batch of
    64 (1e-9)."""


class APN(MapMethod, name="apn"):
    """Attribute prototypes on maps.

    Scores are compatibilities. The official code's probabilities round to zero far from the best
    class.
    """

    Settings = APNSettings
    settings: APNSettings

    def prepare(self) -> None:
        """Lay out the groups (L, attributes)."""
        super().prepare()
        self.groups = torch.ones(1, self.space.attributes)
        if self.settings.grouped and (self.settings.groups_v or self.settings.groups_p):
            remedy = "method.grouped = false, or method.groups_v = method.groups_p = 0"
            self.groups = group_matrix(self.space, "method.grouped", remedy)

    def init(self, rng: np.random.Generator) -> Params:
        """Draw V and P (attributes, channels), small and positive as in the official code: 2e-4
        U(0, 1).
        """
        params = self.backbone.init(rng)
        for name in ("v", "p"):
            values = 2e-4 * rng.uniform(0, 1, (self.semantics.shape[1], self.width))
            params[name] = torch.from_numpy(values.astype(np.float32))
        return params

    def context(self) -> Context:
        """Semantics, mask and the groups (L, attributes)."""
        return super().context() | {"groups": self.groups}

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Cross-entropies, squared errors of attributes, group norms and compactness, each weighted
        by its name.
        """
        maps = self.backbone(params, batch["inputs"], training=True)
        s = self.settings
        labels = batch["labels"]
        weights = batch["weights"]
        local = project(params["p"], maps)
        attributes = self._pooled(params, maps)
        peaks = local.amax((-2, -1))
        target = context["semantics"][labels]

        semantics = context["semantics"]
        mask = context["mask"]
        terms = {}
        if s.sce:
            terms["sce"] = semantic_cross_entropy(attributes @ semantics.T, labels, weights, mask)
        if s.sce_p:
            terms["sce_p"] = semantic_cross_entropy(peaks @ semantics.T, labels, weights, mask)
        if s.mse:
            terms["mse"] = attribute_error(attributes, target, weights)
        if s.mse_p:
            terms["mse_p"] = attribute_error(peaks, target, weights)
        if s.groups_v:
            terms["groups_v"] = group_norms(params["v"].square().sum(-1), context["groups"]).sum()
        if s.groups_p:
            terms["groups_p"] = group_norms(params["p"].square().sum(-1), context["groups"]).sum()
        if s.compactness:
            terms["compactness"] = compactness(local.sigmoid(), weights)
        return weighted_loss(s, terms, self.representation(maps, attributes))

    def _pooled(self, params: Params, maps: Tensor) -> Tensor:
        """Return the attributes (n, attributes) that V sees in maps."""
        answers = project(params["v"], maps)
        return answers.amax((-2, -1)) if self.settings.pool == "max" else answers.mean((-2, -1))

    def attributes(self, params: Params, inputs: Tensor) -> Tensor:
        """Predict attributes with V."""
        return self._pooled(params, self.backbone(params, inputs))

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Compatibility of V's attributes with each class's semantics."""
        return self.attributes(params, inputs) @ semantics.T
