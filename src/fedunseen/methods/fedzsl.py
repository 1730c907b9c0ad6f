"""FedZSL: visual-semantic alignment, relation distillation and consistency (Chen et al. 2022,
section 3.2).

f maps an input to visual features (the identity if they are frozen), g features to attributes, h
attributes to features. Every row of the paper's ablation (Table 2) is a setting of the losses'
weights; ``kl = consistency = 0`` with the strategy ``fedavg`` is the paper's FedAvg.
"""

from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.class_similarity import class_similarity
from fedunseen.core.parameters import Params, linear_layer
from fedunseen.core.phases import Adam, Batch, Context, Optimiser, Terms
from fedunseen.core.settings import Widths
from fedunseen.losses import consistency, relation_distillation, semantic_cross_entropy
from fedunseen.methods.base import AutoRate, MethodSettings, class_mask
from fedunseen.methods.maps import weighted_loss
from fedunseen.methods.networks import Layered, linear, mlp, mlp_init

Classes = Literal["seen", "all", "local"]
_ADAM_RATE = 0.001  # Kingma and Ba's


class AlignmentSettings(MethodSettings):
    """Settings that FedZSL and DistZSL share; a weight of 0 switches a loss off."""

    lr: AutoRate = None  # type: ignore[assignment]
    """Learning rate of the local updates. Unset or `"auto"`: half of the largest that is stable,
    from the lengths of features and semantics and the weights of the losses; for a trained encoder
    0.01 at most, with `distzsl` 0.003."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """Of the local updates. The papers say SGD; with `"adam"` an unset `lr` is 0.001."""
    hidden: Widths = ()
    """Widths of the trained layers on top of the features; empty: none."""
    start: Literal["random", "closed-form"] = "random"
    """How g begins: at random, or as the model that `gaussian` solves from sums, which parties send
    before round 1.
    """
    sce: float = Field(1.0, ge=0)
    """Weight of the cross-entropy of classes: FedZSL Eq. 3 and DistZSL Eq. 3."""
    kl: float = Field(3.0, ge=0)
    """Weight of the relation distillation: mu in FedZSL Eq. 8, the regularizer of DistZSL Eq. 5 to
    DistZSL Eq. 7."""
    temperature: float = Field(10.0, gt=0)
    """Temperature of the divergence: tau of FedZSL Eq. 5; DistZSL names none for its Eq. 6."""
    alpha: float = Field(0.01, gt=0)
    """Penalty of the graphical lasso, delta of FedZSL Eq. 4 and DistZSL Eq. 5: no similarity moves
    further than this from the correlation of two classes' semantics. A run warns where a smaller
    value than 0.01 has no effect."""
    sce_classes: Classes = "seen"
    """Classes in the softmax of the cross-entropy; as DistZSL Eq. 3 is printed, and in MSDN's code,
    `all`."""
    kl_classes: Classes = "seen"
    """Classes in the softmaxes of the distillation; as DistZSL Eq. 6 is printed, it is "all"."""


class FedZSL(Layered, name="fedzsl"):
    """Attribute regression with FedZSL's three local objectives (FedZSL Eq. 8)."""

    class Settings(AlignmentSettings):
        """Settings of FedZSL; the defaults of the losses are the paper's."""

        losses = "sce", "kl", "consistency"
        consistency: float = Field(1.0, ge=0)
        """Weight of the consistency loss, FedZSL Eq. 7; 0 leaves h out."""

    grows = True
    settings: AlignmentSettings
    of_h: ClassVar[str] = "consistency"
    """The loss that trains h."""

    def prepare(self) -> None:
        """Say which classes are in which softmax."""
        self.masks = {"sce_mask": self.settings.sce_classes, "kl_mask": self.settings.kl_classes}

    def init(self, rng: np.random.Generator) -> Params:
        """Draw f, g and, where the consistency loss is on, h."""
        widths = [self.width, *self.settings.hidden]
        attributes = self.semantics.shape[1]
        params = (
            self.backbone.init(rng)
            | mlp_init("f", widths, rng)
            | linear_layer("g", widths[-1], attributes, rng)
        )
        if getattr(self.settings, self.of_h):
            params |= linear_layer("h", attributes, widths[-1], rng)
        return params

    def warm_start(self, params: Params, weight: Tensor, bias: Tensor) -> Params:
        """Put the linear g in place that scores the classes that take part as closely as attributes
        allow.
        """
        part = torch.from_numpy(np.union1d(self.space.seen, self.space.unseen))
        s = self.semantics.double().cpu()[part]
        wanted = torch.cat([weight, bias[:, None]], 1).double().cpu()[part]
        # attributes that hardly differ between classes are not blown up
        result = torch.linalg.pinv(s - s.mean(0), rtol=1e-4) @ (wanted - wanted.mean(0))
        like = params["g.weight"]
        weight = result[:, :-1].to(like).contiguous()
        bias = result[:, -1].to(like).contiguous()
        return params | {"g.weight": weight, "g.bias": bias}

    def steepness(self) -> float:
        r"""Return the curvature of FedZSL Eq. 3 and FedZSL Eq. 6, each times its weight.

        That of FedZSL Eq. 6 is at most lambda, the largest variance of the classes' semantics in
        any direction. That of FedZSL Eq. 3 is at most :math:`r^2 / 4`, r being the largest distance
        between two classes' semantics; for a network, which can tell such classes apart, it is
        lambda too.
        """
        s = self.semantics[torch.from_numpy(self.space.seen)].double().cpu()
        c = self.settings
        variance = float(torch.linalg.matrix_norm(s - s.mean(0), 2).square()) / len(s)
        apart = variance if self.trains_features else float(torch.cdist(s, s).max().square()) / 4
        return c.sce * apart + c.kl * variance

    def rate(self, params: Params, inputs: Tensor) -> float:
        """Return half of the largest stable rate of SGD; Adam's does not depend on the inputs."""
        return super().rate(params, inputs) if self.settings.optimiser == "sgd" else _ADAM_RATE

    def optimiser(self) -> Optimiser:
        """Return the optimizer that the settings name."""
        s = self.settings
        if s.optimiser == "sgd":
            return super().optimiser()
        return Adam(_ADAM_RATE if s.lr is None else s.lr, weight_decay=s.weight_decay)

    def context(self) -> Context:
        """Semantics (C, attributes), the masks that all clients share and, with relation
        distillation, Gamma (C, C).
        """
        nothing = np.array([], dtype=np.int64)
        shared = {name: choice for name, choice in self.masks.items() if choice != "local"}
        context = {name: class_mask(choice, self.space, nothing) for name, choice in shared.items()}
        context["semantics"] = self.semantics
        if self.settings.kl:
            context["gamma"] = self._gamma()
        return context

    def _gamma(self) -> Tensor:
        """Estimate Gamma among the classes that take part; the rows and columns of others stay
        zero, unused.
        """
        part = np.union1d(self.space.seen, self.space.unseen)
        gamma = np.zeros((len(self.space.names),) * 2, dtype=np.float32)
        gamma[np.ix_(part, part)] = class_similarity(
            self.space.semantics[part], self.settings.alpha
        )
        return torch.from_numpy(gamma)

    def client_context(self, classes: NDArray[np.int64]) -> Context:
        """Return the masks of denominators that run over a client's own classes."""
        return {
            name: class_mask(choice, self.space, classes)
            for name, choice in self.masks.items()
            if choice == "local"
        }

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """FedZSL Eq. 8: ``sce`` is FedZSL Eq. 3, ``kl`` FedZSL Eq. 6, ``consistency`` FedZSL Eq.
        7.
        """
        features = mlp(params, "f", self.backbone(params, batch["inputs"], training=True))
        attributes = linear(params, "g", features)
        s = self.settings
        labels = batch["labels"]
        weights = batch["weights"]
        logits = attributes @ context["semantics"].T
        terms = {}
        if s.sce:
            terms["sce"] = semantic_cross_entropy(logits, labels, weights, context["sce_mask"])
        if s.kl:
            rows = context["gamma"][labels]
            terms["kl"] = relation_distillation(
                logits, rows, weights, context["kl_mask"], s.temperature
            )
        terms |= self.more_terms(params, features, attributes, batch, context)
        representation = features if self.trains_features else attributes
        return weighted_loss(s, terms, representation)

    def more_terms(
        self, params: Params, features: Tensor, attributes: Tensor, batch: Batch, context: Context
    ) -> Terms:
        """Return FedZSL Eq. 7, from the samples' ``features`` and predicted ``attributes``."""
        if not getattr(self.settings, self.of_h):
            return {}
        generated = linear(params, "h", context["semantics"][batch["labels"]])
        return {"consistency": consistency(generated, features, batch["weights"])}

    def features(self, params: Params, inputs: Tensor) -> Tensor:
        """Return the visual features f(x)."""
        return mlp(params, "f", self.backbone(params, inputs))

    def attributes(self, params: Params, inputs: Tensor) -> Tensor:
        """Predict attributes: g(f(x))."""
        return linear(params, "g", self.features(params, inputs))

    def represent(self, params: Params, inputs: Tensor) -> Tensor:
        """Return the features f(x), or the predicted attributes where f is frozen."""
        return (
            self.features(params, inputs)
            if self.trains_features
            else self.attributes(params, inputs)
        )

    def reconstruct(self, params: Params, attributes: Tensor) -> Tensor:
        """Return the features that h makes of attributes."""
        return linear(params, "h", attributes)

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Compatibility of the predicted attributes with each class's semantics."""
        return self.attributes(params, inputs) @ semantics.T
