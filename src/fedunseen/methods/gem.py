"""GEM-ZSL: goal-oriented gaze (Liu et al. 2021), on the spatial map of a backbone.

A class's score is the cosine between its semantics and a linear map of the averaged features. In
training, word vectors attend to cells. The paper's gaze loss is missing from its released training
loop, and here as well.
"""

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.phases import Batch, Context, Terms
from fedunseen.losses import attribute_error, compactness, group_norms, semantic_cross_entropy
from fedunseen.methods.base import AutoRate
from fedunseen.methods.maps import MapMethod, MapSettings, project, weighted_loss

TURN = 6e-4  # the learning rate for a V of length 1


class GEMSettings(MapSettings):
    """Settings of GEM; the weights of the losses are the official code's for CUB. A weight of 0
    switches a loss off.

    AWA2 there: the same. SUN there: scale = 25, regression = 0.5.
    """

    lr: AutoRate = None  # type: ignore[assignment]
    """Learning rate of the clients' SGD. Unset or `"auto"`: for frozen maps 6e-4 times the squared
    length of V as it is drawn, which is the product of the numbers of attributes and channels; for
    a trained encoder 0.01."""
    scale: float = Field(20.0, gt=0)
    """Factor on the scores of classes."""
    sce: float = Field(1.0, gt=0)
    """Weight of the cross-entropy of classes: FedZSL Eq. 3 and DistZSL Eq. 3."""
    regression: float = Field(1.0, ge=0)
    """Weight of the squared error of the highest attention as an attribute."""
    decorrelation: float = Field(0.1, ge=0)
    """Weight of the attribute decorrelation (DistZSL Eq. 4), which needs every attribute in a
    group; 0 needs none."""
    compactness: float = Field(0.2, ge=0)
    """Weight of the compactness of attributes' maps, which APN's official code sums over a batch of
    64 (1e-9)."""
    words: str = "one-hot"
    """Word vectors of the attributes: `one-hot` (none), `minilm`, a text model's hub name or
    folder, or a file (.npy, or word vectors as .txt or .gz)."""


class GEM(MapMethod, name="gem"):
    """Scaled cosines, with attention from word vectors as an aid in training."""

    Settings = GEMSettings
    settings: GEMSettings

    def prepare(self) -> None:
        """Say whether attention takes part."""
        super().prepare()
        s = self.settings
        self.attends = bool(s.regression or s.decorrelation or s.compactness)

    def init(self, rng: np.random.Generator) -> Params:
        """Draw V (attributes, channels) and, where attention takes part, W (w, channels)."""
        params = self.backbone.init(rng)
        # A cosine does not see how long V is, but long filters turn slowly; short ones overshoot on
        # a trained backbone.
        filters = rng.normal(size=(self.semantics.shape[1], self.width))
        params["v"] = torch.from_numpy(filters.astype(np.float32))
        if self.attends:
            # Queries about as long as 1, at any width, so that attention starts neither flat nor
            # settled.
            queries = rng.normal(0, self.width**-0.5, (self.words.shape[1], self.width))
            params["w"] = torch.from_numpy(queries.astype(np.float32))
        return params

    def rate(self, params: Params, inputs: Tensor) -> float:
        """Return what turns V as fast at any length: a cosine's gradient is as short as V is
        long.
        """
        return (
            self.trained_rate if self.backbone.trained else TURN * float(params["v"].square().sum())
        )

    def context(self) -> Context:
        """Semantics, mask and, where they take part, word vectors (attributes, w) and groups (L,
        attributes).
        """
        return super().context() | ({"words": self.words} if self.attends else {})

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Cross-entropy of cosines, and the three losses of the attention, each weighted by its
        name.
        """
        maps = self.backbone(params, batch["inputs"], training=True)
        s = self.settings
        labels = batch["labels"]
        weights = batch["weights"]
        attributes = self._attributes(params, maps)
        logits = self._cosines(attributes, context["semantics"])
        terms = {"sce": semantic_cross_entropy(logits, labels, weights, context["mask"])}
        if self.attends:
            queries = context["words"] @ params["w"]  # (attributes, channels)
            attention = attend(queries, maps)
            if s.regression:
                target = context["semantics"][labels]
                terms["regression"] = attribute_error(attention.amax((-2, -1)), target, weights)
            if s.decorrelation:
                terms["decorrelation"] = group_norms(queries.square().T, context["groups"]).mean()
            if s.compactness:
                cells = attention[
                    0
                ].numel()  # the official code takes the mean over attributes and cells
                terms["compactness"] = compactness(attention, weights) / cells
        return weighted_loss(s, terms, self.representation(maps, attributes))

    def _cosines(self, attributes: Tensor, semantics: Tensor) -> Tensor:
        return self.settings.scale * (attributes @ F.normalize(semantics, dim=-1).T)

    def _attributes(self, params: Params, maps: Tensor) -> Tensor:
        return F.normalize(maps.flatten(2).mean(-1) @ params["v"].T, dim=-1)

    def attributes(self, params: Params, inputs: Tensor) -> Tensor:
        """Predict attributes, of unit length: only their direction takes part in a cosine."""
        return self._attributes(params, self.backbone(params, inputs))

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Scaled cosine of the predicted attributes with each class's semantics."""
        return self._cosines(self.attributes(params, inputs), semantics)


def attend(queries: Tensor, maps: Tensor) -> Tensor:
    """Return the attention (n, k, height, width) of queries (k, channels) to maps' cells; it sums
    to 1 over cells.
    """
    answers = project(queries, maps)
    return answers.flatten(2).softmax(-1).reshape(answers.shape)
