"""The losses of zero-shot learning from attributes, each named for its quantity and the equation it comes from.

Equation numbers are those of FedZSL (Chen et al. 2022). All are means over the samples of a batch whose weight is not
zero; the paper writes sums, and its learning rates only make sense for means.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.phases import weighted_mean

__all__ = ["consistency", "relation_distillation", "restrict", "semantic_cross_entropy"]

_OUT = -1e9  # a logit that softmax turns into exactly zero; -inf would make 0 * inf in the divergence


def restrict(logits: Tensor, mask: Tensor) -> Tensor:
    """Take classes out of a softmax: logits (..., C) where ``mask`` (C,) is true, as good as -inf elsewhere."""
    return logits.masked_fill(~mask, _OUT)


def _log_softmax(logits: Tensor, mask: Tensor, temperature: float = 1.0) -> Tensor:
    """Return (B, C) log-probabilities over the classes of ``mask`` (C,) at a temperature."""
    return F.log_softmax(restrict(_precise(logits) / temperature, mask), dim=-1)


def _precise(values: Tensor) -> Tensor:
    """Go on in at least float32: under autocast, matrix products come in bfloat16, whose 8 bits no loss can bear."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def semantic_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    r"""FedZSL Eq. 3: cross-entropy of the compatibility :math:`\hat a^T a_j` with every class of the denominator.

    Args:
        logits: (B, C) compatibilities of predicted attributes with each class's semantics.
        labels: (B,) class ids.
        weights: (B,) 0 drops a sample.
        mask: (C,) bool, the classes that the denominator runs over; must include the labels.

    Example:
        >>> loss = semantic_cross_entropy(torch.zeros(1, 4), torch.tensor([2]), torch.ones(1), torch.ones(4).bool())
        >>> round(loss.item(), 4)  # log 4
        1.3863
    """
    log_p = _log_softmax(logits, mask)
    return weighted_mean(-log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1), weights)


def relation_distillation(
    logits: Tensor, similarities: Tensor, weights: Tensor, mask: Tensor, temperature: float
) -> Tensor:
    r"""FedZSL Eqs. 5-6 (CARD): :math:`\tau^2\,KL(\mathrm{softmax}(\Gamma_y/\tau)\,\|\,\mathrm{softmax}(z/\tau))`.

    The paper's Eq. 6 names the divergence the other way round but then expands it as here, which is the usual
    distillation loss. As the temperature grows it tends to half the variance over classes of :math:`z - \Gamma_y`.

    Args:
        logits: (B, C) compatibilities z.
        similarities: (B, C) the row of the class-similarity matrix that belongs to each sample's label.
        weights: (B,) 0 drops a sample.
        mask: (C,) bool, the classes that both softmaxes run over.
        temperature: tau > 0.
    """
    log_target = _log_softmax(similarities, mask, temperature)
    log_p = _log_softmax(logits, mask, temperature)
    divergence = (log_target.exp() * (log_target - log_p)).sum(-1)
    return temperature**2 * weighted_mean(divergence, weights)


def consistency(generated: Tensor, features: Tensor, weights: Tensor) -> Tensor:
    r"""FedZSL Eq. 7: :math:`\|h(a_y) - f(x)\|_2`, the distance of generated from extracted visual features.

    Args:
        generated: (B, d) features made from the label's semantics.
        features: (B, d) features of the samples.
        weights: (B,) 0 drops a sample.
    """
    squared = (_precise(generated) - _precise(features)).square().sum(-1)
    # The square root has no derivative at zero: there the subgradient 0 is taken.
    positive = squared > 0
    distance = torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), 0.0)
    return weighted_mean(distance, weights)
