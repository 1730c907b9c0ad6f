"""DistZSL: FedZSL's alignment and regularizer, attribute decorrelation and a bilateral connection (Chen et al. 2025).

Every row of the paper's ablation (Table II) is a setting of the four weights. DistZSL Eq. 9 gives mu_1 to the bilateral
loss and mu_2 to the divergence, line 17 of Algorithm 1 the other way round; here each weight has its loss's name.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator, model_validator
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.phases import Batch, Context, Terms
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.losses import consistency, decorrelation, relation_distillation, semantic_cross_entropy
from fedunseen.methods.base import MethodSettings, unset
from fedunseen.methods.fedzsl import Classes, FedZSL, FedZSLSettings
from fedunseen.methods.maps import group_matrix, weighted_sum
from fedunseen.methods.networks import linear, mlp


class DistZSLSettings(MethodSettings):
    """Settings of DistZSL; the weights of the losses are the paper's for CUB. A weight of 0 switches a loss off."""

    name: Literal["distzsl"] = "distzsl"
    lr: float | None = Field(None, gt=0)  # type: ignore[assignment]
    """Learning rate of the clients' SGD. Unset or `"auto"`: half of the largest that is stable, from the lengths of
    features and semantics and the weights of the losses; for a trained encoder 0.003 at most: the divergence's weight
    of 10 bears little more."""
    hidden: tuple[PositiveInt, ...] = ()
    """Widths of trained layers on top of the backbone; empty: none."""
    start: Literal["random", "closed-form"] = "random"
    """How g begins: at random, or as the model that `gaussian` solves from sums, which parties send before round 1."""
    sce: float = Field(1.0, ge=0)
    """Weight of the semantic cross-entropy, DistZSL Eq. 3."""
    kl: float = Field(10.0, ge=0)
    """Weight of the cross-device attribute regularizer, DistZSL Eq. 5 to DistZSL Eq. 7."""
    bilateral: float = Field(0.1, ge=0)
    """Weight of the bilateral connection, DistZSL Eq. 8; 0 leaves h out."""
    decorrelation: float = Field(0.3, ge=0)
    """Weight of the attribute decorrelation, DistZSL Eq. 4. It needs every attribute in a group; 0 needs none."""
    temperature: float = Field(10.0, gt=0)
    """tau of DistZSL Eq. 6; the paper names none, this is FedZSL's."""
    alpha: float = Field(0.01, gt=0)
    """Penalty of the graphical lasso, delta of DistZSL Eq. 5: no similarity moves further than this from the
    correlation of two classes' semantics. A run warns where a smaller value than 0.01 has no effect."""
    scale: float = Field(1.0, gt=0)
    """Factor on the compatibilities; DistZSL Eq. 3 has none (1)."""
    sce_classes: Classes = "seen"
    """Classes in the denominator of DistZSL Eq. 3; as printed, it is "all"."""
    kl_classes: Classes = "seen"
    """Classes in the softmaxes of DistZSL Eq. 6; as printed, it is "all"."""

    _auto = field_validator("lr", mode="before")(unset)

    @model_validator(mode="after")
    def _check_losses(self) -> DistZSLSettings:
        if not (self.sce or self.kl or self.bilateral):
            raise ValueError("sce, kl and bilateral are all 0, so that there is nothing to learn: give one a weight")
        return self


class DistZSL(FedZSL):
    """FedZSL's networks and Gamma with DistZSL's losses (DistZSL Eq. 9)."""

    Settings = DistZSLSettings  # type: ignore[assignment]  # a class of its own: it has no consistency loss
    trained_rate = 0.003

    def __init__(self, settings: DistZSLSettings, space: ClassSpace, semantics: Tensor, backbone: Backbone) -> None:
        same = settings.model_dump(exclude={"name", "bilateral", "decorrelation"})
        # The bilateral connection stands where FedZSL has its consistency loss: with it comes h.
        super().__init__(FedZSLSettings(**same, consistency=settings.bilateral), space, semantics, backbone)
        self.options = settings
        if settings.decorrelation:
            self.groups = group_matrix(space, "method.decorrelation", "method.decorrelation = 0")

    def context(self) -> Context:
        """FedZSL's context and, where the decorrelation is on, the groups (L, attributes)."""
        return super().context() | ({"groups": self.groups} if self.options.decorrelation else {})

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """DistZSL Eq. 9: ``sce`` is DistZSL Eq. 3, ``kl`` Eq. 7, ``bilateral`` Eq. 8, ``decorrelation`` Eq. 4."""
        features = mlp(params, "f", self.backbone(params, batch["inputs"], training=True))
        attributes = linear(params, "g", features)
        s, labels, weights = self.options, batch["labels"], batch["weights"]
        logits = s.scale * (attributes @ context["semantics"].T)
        terms = {}
        if s.sce:
            terms["sce"] = semantic_cross_entropy(logits, labels, weights, context["sce_mask"])
        if s.kl:
            rows = context["gamma"][labels]
            terms["kl"] = relation_distillation(logits, rows, weights, context["kl_mask"], s.temperature)
        if s.bilateral:
            terms["bilateral"] = consistency(linear(params, "h", attributes), features, weights)
        if s.decorrelation:
            terms["decorrelation"] = decorrelation(attributes, context["groups"], weights)
        total = weighted_sum(s, terms)
        representation = features if self.trains_features else attributes
        return total, {"loss": total, **terms, "representation": representation}
