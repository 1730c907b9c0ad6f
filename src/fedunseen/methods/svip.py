"""SVIP: semantically contextualised visual patches (Chen et al. 2025), of a map or of a vision
transformer.

Patches in context predict attributes. A patch classifier learns which of them get attention through
all layers. A second pass adds a vector, made from word vectors, to the others, and a loss makes
both passes agree. A map gets a small transformer of its own. The official code joins each four of
14 x 14 patches to a block; here each stands by itself.
"""

import math
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params, linear_layer
from fedunseen.core.phases import Batch, Context, Terms
from fedunseen.losses import (
    decorrelation,
    patch_cross_entropy,
    relation_distillation,
    semantic_cross_entropy,
)
from fedunseen.methods.maps import MapMethod, MapSettings, weighted_loss
from fedunseen.methods.networks import linear

_HIDDEN = 512  # units of the patch classifier
DEPTH = 2
"""Layers of the method's own transformer."""
HEADS = 4
"""Heads of the method's own transformer."""
_WIDEN = 2  # hidden units of a layer of the transformer, as a multiple of its width


class SVIPSettings(MapSettings):
    """Settings of SVIP; the weights of the losses are the official code's for CUB. A weight of 0
    switches a loss off.

    AWA2 there: keep = 0.92 (45 of 49), decorrelation = 1, patches = 4. SUN there: keep = 0.92.
    """

    lr: float = Field(0.002, gt=0)
    """Learning rate of the local updates; the optimizer's state starts again each round."""
    scale: float = Field(5.0, gt=0)
    """Factor on the scores of classes."""
    sce: float = Field(1.0, gt=0)
    """Weight of the cross-entropy of classes: FedZSL Eq. 3 and DistZSL Eq. 3."""
    kl: float = Field(1.0, ge=0)
    """Weight of the divergence between both passes; 0 leaves the second pass and the words out."""
    temperature: float = Field(20.0, gt=0)
    """Temperature of the divergence: tau of FedZSL Eq. 5; DistZSL names none for its Eq. 6."""
    decorrelation: float = Field(0.09, ge=0)
    """Weight of the attribute decorrelation (DistZSL Eq. 4), which needs every attribute in a
    group; 0 needs none."""
    patches: float = Field(3.0, ge=0)
    """Weight of the cross-entropy of the patch classifier; 0 keeps all patches when classes are
    scored.
    """
    keep: float = Field(40 / 49, gt=0, le=1)
    """Share of the patches that matter; 40 of 49 blocks in the official code."""
    width: int = Field(64, ge=HEADS, multiple_of=HEADS)
    """Width of the method's own transformer, a multiple of its four heads; not used with a trained
    vision transformer.
    """
    words: str = "one-hot"
    """Word vectors of the attributes: `one-hot` (none), `minilm`, a text model's hub name or
    folder, or a file (.npy, or word vectors as .txt or .gz)."""


@runtime_checkable
class TokenBackbone(Protocol):
    """A backbone that is a vision transformer: patches to tokens, then tokens in context."""

    def tokens(self, params: Params, inputs: Tensor) -> Tensor:
        """Return the tokens (n, 1 + P, width) of inputs before the first layer, the class token
        first.
        """

    def transform(self, params: Params, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens (n, 1 + P, width) in context, and the attention (layers, n, 1 + P, 1 + P)
        over heads.
        """


class SVIP(MapMethod, name="svip"):
    """Attributes from the patches that matter; a score is ``scale`` times their compatibility with
    unit semantics.
    """

    Settings = SVIPSettings
    settings: SVIPSettings

    def prepare(self) -> None:
        """Count the patches, and take the backbone for the transformer if it is one."""
        super().prepare()
        self.count = math.prod(self.backbone.shape[1:])
        self.kept = max(1, int(self.settings.keep * self.count + 0.5))
        self.encoder = self.backbone if isinstance(self.backbone, TokenBackbone) else None
        self.token_width = self.width if self.encoder else self.settings.width

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the backbone, the transformer unless the backbone is one, and the heads."""
        s = self.settings
        attributes = self.semantics.shape[1]
        width = self.token_width
        params = self.backbone.init(rng)
        if self.encoder is None:
            params |= linear_layer("embed", self.width, s.width, rng)
            for name, shape in (("first", (1, s.width)), ("positions", (1 + self.count, s.width))):
                params[name] = torch.from_numpy(rng.normal(0, 0.02, shape).astype(np.float32))
            params |= transformer_init("layers", s.width, DEPTH, rng)
        params |= linear_layer("g", width, attributes, rng)
        params["g.weight"] *= (
            0.1  # on normalized tokens, the usual start gives scores far from flat: SGD overshoots
        )
        if s.patches:
            params |= linear_layer("patches.0", width, _HIDDEN, rng) | linear_layer(
                "patches.1", _HIDDEN, 1, rng
            )
        if s.kl:
            params |= linear_layer("fill.words", self.words.shape[1], width, rng)
            params |= linear_layer("fill.block", attributes, 1, rng)
        return params

    def context(self) -> Context:
        """Semantics, mask and, where they take part, word vectors (attributes, w) and groups (L,
        attributes).
        """
        return super().context() | ({"words": self.words} if self.settings.kl else {})

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Cross-entropies of both passes and of the patches, divergence and decorrelation, weighted
        by name.
        """
        s = self.settings
        labels = batch["labels"]
        weights = batch["weights"]
        mask = context["mask"]
        tokens = self._tokens(params, batch["inputs"], training=True)
        patches = tokens[:, 1:]
        seen, attentions = self._transform(params, tokens)
        matters = highest(rollout(attentions), self.kept)  # (n, P), no gradient
        attributes = self._attributes(params, seen, matters)
        semantics = F.normalize(context["semantics"], dim=-1)
        logits = attributes @ semantics.T

        terms = {"sce": semantic_cross_entropy(s.scale * logits, labels, weights, mask)}
        if s.kl:
            filled = patches + (1 - matters).unsqueeze(-1) * self._fill(params, context["words"])
            again, _ = self._transform(params, torch.cat([tokens[:, :1], filled], dim=1))
            second = self._attributes(params, again, matters) @ semantics.T
            terms["sce"] = terms["sce"] + semantic_cross_entropy(
                s.scale * second, labels, weights, mask
            )
            # The official code divides the divergence by the number of classes too.
            terms["kl"] = (
                relation_distillation(logits, second, weights, mask, s.temperature) / mask.sum()
            )
        if s.decorrelation:
            terms["decorrelation"] = decorrelation(attributes, context["groups"], weights) / len(
                context["groups"]
            )
        if s.patches:
            terms["patches"] = patch_cross_entropy(
                self._judge(params, patches), 1 - matters, weights
            )
        return weighted_loss(s, terms, seen[:, 1:].mean(1))

    def _tokens(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Return the tokens (n, 1 + P, width) before the first layer, the one of the whole picture
        first.
        """
        if self.encoder is not None:
            return self.encoder.tokens(params, inputs)
        cells = self.backbone(params, inputs, training=training).flatten(2).mT
        patches = linear(params, "embed", cells)
        first = params["first"].expand(len(patches), 1, -1)
        return torch.cat([first, patches], dim=1) + params["positions"]

    def _transform(self, params: Params, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if self.encoder is not None:
            return self.encoder.transform(params, tokens)
        return transformer(params, "layers", tokens, HEADS)

    def _attributes(self, params: Params, seen: Tensor, matters: Tensor) -> Tensor:
        """Return the mean attributes (n, attributes) of the patches that matter (n, P)."""
        chosen = seen[:, 1:] * matters.unsqueeze(-1)
        return linear(
            params, "g", chosen.sum(1) / self.kept
        )  # g is linear: the mean of its answers

    def _fill(self, params: Params, words: Tensor) -> Tensor:
        """Return what is added to a patch that does not matter: (width,)."""
        vectors = linear(params, "fill.words", words)  # (attributes, width)
        return linear(params, "fill.block", vectors.T).squeeze(-1)

    def _judge(self, params: Params, patches: Tensor) -> Tensor:
        """Return (n, P), the higher the less a patch matters."""
        return linear(
            params, "patches.1", torch.relu(linear(params, "patches.0", patches))
        ).squeeze(-1)

    def _seen(self, params: Params, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens in context and the patches that the patch classifier keeps."""
        tokens = self._tokens(params, inputs)
        if self.settings.patches:
            matters = highest(-self._judge(params, tokens[:, 1:]), self.kept)
        else:
            matters = torch.full_like(
                tokens[:, 1:, 0], self.kept / self.count
            )  # the mean over all patches
        return self._transform(params, tokens)[0], matters

    def attributes(self, params: Params, inputs: Tensor) -> Tensor:
        """Predict attributes: the mean over the patches that the patch classifier keeps."""
        return self._attributes(params, *self._seen(params, inputs))

    def represent(self, params: Params, inputs: Tensor) -> Tensor:
        """Return the mean of the patches in context, (n, width)."""
        seen, _ = self._transform(params, self._tokens(params, inputs))
        return seen[:, 1:].mean(1)

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Scaled compatibility of the predicted attributes with each class's semantics, of unit
        length.
        """
        return self.settings.scale * (
            self.attributes(params, inputs) @ F.normalize(semantics, dim=-1).T
        )


def highest(values: Tensor, count: int) -> Tensor:
    """Mark the ``count`` highest of values (n, P) with 1, the others with 0; of equals, those that
    come first.
    """
    ranks = values.argsort(stable=True, dim=-1, descending=True).argsort(-1)
    return torch.lt(ranks, count).to(torch.float32)


def transformer_init(name: str, width: int, depth: int, rng: np.random.Generator) -> Params:
    """Draw ``depth`` layers of pre-norm self-attention and two linear layers each, and a last
    normalization.
    """
    params: Params = {}
    for i in range(depth):
        layer = f"{name}.{i}"
        params |= _norm_init(f"{layer}.norm1", width) | _norm_init(f"{layer}.norm2", width)
        params |= linear_layer(f"{layer}.qkv", width, 3 * width, rng) | linear_layer(
            f"{layer}.out", width, width, rng
        )
        params |= linear_layer(f"{layer}.widen", width, _WIDEN * width, rng)
        params |= linear_layer(f"{layer}.narrow", _WIDEN * width, width, rng)
    return params | _norm_init(f"{name}.norm", width)


def transformer(params: Params, name: str, tokens: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Apply the layers of :func:`transformer_init`."""
    n, count, width = tokens.shape
    attentions = []
    i = 0
    while f"{name}.{i}.qkv.weight" in params:
        layer = f"{name}.{i}"
        qkv = linear(params, f"{layer}.qkv", _norm(params, f"{layer}.norm1", tokens))
        query, key, value = (
            qkv.reshape(n, count, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
        )
        attention = (query @ key.mT * (width // heads) ** -0.5).softmax(-1)  # (n, heads, T, T)
        seen = (attention @ value).transpose(1, 2).reshape(n, count, width)
        tokens = tokens + linear(params, f"{layer}.out", seen)
        inner = F.gelu(linear(params, f"{layer}.widen", _norm(params, f"{layer}.norm2", tokens)))
        tokens = tokens + linear(params, f"{layer}.narrow", inner)
        attentions.append(attention.mean(1))
        i += 1
    return _norm(params, f"{name}.norm", tokens), torch.stack(attentions)


def rollout(attentions: Tensor) -> Tensor:
    """Return how much the first token looks at each other one through all layers (attention
    rollout).
    """
    attentions = attentions.detach().float()
    identity = torch.eye(attentions.shape[-1], device=attentions.device)
    through = identity
    for layer in attentions.unbind(0):
        through = (layer + identity) / (layer.sum(-1, keepdim=True) + 1) @ through
    return through[..., 0, 1:]


def _norm_init(name: str, width: int) -> Params:
    return {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}


def _norm(params: Params, name: str, tokens: Tensor) -> Tensor:
    return F.layer_norm(tokens, tokens.shape[-1:], params[f"{name}.weight"], params[f"{name}.bias"])
