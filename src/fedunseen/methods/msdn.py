"""MSDN: mutually semantic distillation (Chen et al. 2022), on the spatial map of a backbone.

In one sub-network every attribute attends to cells, in the other every cell to attributes. A
distillation loss makes their scores alike. Cells have unit length. Word vectors start from those of
the attributes' names and are trained.
"""

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.phases import Batch, Context, Terms
from fedunseen.losses import jensen_shannon, self_calibration, semantic_cross_entropy, weighted_l1
from fedunseen.methods.maps import Classes, MapMethod, MapSettings, weighted_loss


class MSDNSettings(MapSettings):
    """Settings of MSDN; the weights of the losses are the official code's for CUB. A weight of 0
    switches a loss off.

    AWA2 there: calibration = 0.12, distillation = 1e-7, fusion = 1. SUN there: calibration = 1e-4,
    distillation = 0.01, fusion = 0.7. It trains with RMSprop, here with the SGD of all methods.
    """

    lr: float = Field(0.1, gt=0)
    """Learning rate of the local updates; the optimizer's state starts again each round."""
    sce_classes: Classes = "all"
    """Classes in the softmax of the cross-entropy; as DistZSL Eq. 3 is printed, and in MSDN's code,
    `all`."""
    sce: float = Field(1.0, gt=0)
    """Weight of the cross-entropy of classes: FedZSL Eq. 3 and DistZSL Eq. 3."""
    calibration: float = Field(0.1, ge=0)
    """Weight of the self-calibration, which keeps the unseen classes possible; 0 unless sce_classes
    = "all".
    """
    distillation: float = Field(1e-3, ge=0)
    """Weight of the distance between the two sub-networks' answers: their Jensen-Shannon divergence
    and, as in the official code, the weighted L1 distance of scores."""
    fusion: float = Field(0.9, ge=0, le=1)
    """Weight of the attribute-to-visual sub-network when classes are scored; the other one has the
    rest.
    """
    words: str = "one-hot"
    """Word vectors of the attributes: `one-hot` (none), `minilm`, a text model's hub name or
    folder, or a file (.npy, or word vectors as .txt or .gz)."""

    @model_validator(mode="after")
    def _check_calibration(self) -> "MSDNSettings":
        if self.calibration and self.sce_classes != "all":
            raise ValueError(
                f"calibration = {self.calibration:g} has no effect with sce_classes = "
                f"{self.sce_classes!r}, a softmax without the unseen classes: set calibration = 0, "
                "or sce_classes = 'all'"
            )
        return self


class MSDN(MapMethod, name="msdn"):
    """Two attentions between attributes and cells that teach each other."""

    Settings = MSDNSettings
    settings: MSDNSettings

    def prepare(self) -> None:
        """Say whether the unseen classes are calibrated."""
        super().prepare()
        self.calibrates = bool(self.settings.calibration) and len(self.space.unseen) > 0

    def init(self, rng: np.random.Generator) -> Params:
        """Take word vectors (attributes, w); draw the first W (w, channels) from N(0, 1), the
        others are zero.
        """
        words = self.words
        shape = (words.shape[1], self.width)
        drawn = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
        return self.backbone.init(rng) | {
            "words": words.clone(),
            "visual.score": drawn,
            "visual.attend": torch.zeros(shape),
            "semantic.score": torch.zeros(shape),
            "semantic.attend": torch.zeros(shape),
        }

    def context(self) -> Context:
        """Semantics, mask and, where self-calibration is on, the unseen classes (C,)."""
        context = super().context()
        if self.calibrates:
            unseen = torch.zeros(len(self.space.names), dtype=torch.bool)
            unseen[torch.from_numpy(self.space.unseen)] = True
            context["unseen"] = unseen
        return context

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Cross-entropy and self-calibration of both sub-networks, and their distillation, weighted
        by name.
        """
        maps = self.backbone(params, batch["inputs"], training=True)
        s = self.settings
        labels = batch["labels"]
        weights = batch["weights"]
        mask = context["mask"]
        first, second = self._both(params, maps)
        semantics = F.normalize(context["semantics"], dim=-1)
        both = (first @ semantics.T, second @ semantics.T)
        terms = {
            "sce": torch.stack(
                [semantic_cross_entropy(z, labels, weights, mask) for z in both]
            ).sum()
        }
        if self.calibrates:
            parts = [self_calibration(z, context["unseen"], weights, mask) for z in both]
            terms["calibration"] = torch.stack(parts).sum()
        if s.distillation:
            terms["distillation"] = jensen_shannon(*both, weights, mask) + weighted_l1(
                *both, weights, mask
            )
        return weighted_loss(s, terms, self.representation(maps, self._fused(first, second)))

    def _both(self, params: Params, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attributes (n, attributes) of both sub-networks."""
        cells = F.normalize(maps.flatten(2), dim=1)  # (n, channels, r)

        def answers(weight: str) -> Tensor:
            return torch.einsum("kc,ncr->nkr", params["words"] @ params[weight], cells)

        over_cells = (answers("visual.attend").softmax(-1) * answers("visual.score")).sum(-1)
        over_attributes = (answers("semantic.attend").softmax(-2) * answers("semantic.score")).sum(
            -1
        )
        return over_cells, over_attributes

    def _fused(self, first: Tensor, second: Tensor) -> Tensor:
        return self.settings.fusion * first + (1 - self.settings.fusion) * second

    def attributes(self, params: Params, inputs: Tensor) -> Tensor:
        """Predict attributes: those of both sub-networks, fused."""
        return self._fused(*self._both(params, self.backbone(params, inputs)))

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Compatibility of the fused attributes with each class's semantics, scaled to unit
        length.
        """
        return self.attributes(params, inputs) @ F.normalize(semantics, dim=-1).T
