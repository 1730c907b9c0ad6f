"""The losses of zero-shot learning from attributes, each named for its quantity and the equation it comes from.

Equation numbers are those of FedZSL (Chen et al. 2022) or, where it says so, of DistZSL (Chen et al. 2025). All are
means over the samples of a batch whose weight is not zero; the papers write sums, and their learning rates only make
sense for means.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.phases import weighted_mean

__all__ = [
    "attribute_error",
    "compactness",
    "consistency",
    "decorrelation",
    "group_norms",
    "jensen_shannon",
    "patch_cross_entropy",
    "precise",
    "probability_distance",
    "relation_distillation",
    "restrict",
    "self_calibration",
    "semantic_cross_entropy",
    "weighted_l1",
]

_OUT = -1e9  # a logit that softmax turns into exactly zero; -inf would make 0 * inf in the divergence


def restrict(logits: Tensor, mask: Tensor) -> Tensor:
    """Take classes out of a softmax: logits (..., C) where ``mask`` (C,) is true, as good as -inf elsewhere."""
    return logits.masked_fill(~mask, _OUT)


def _log_softmax(logits: Tensor, mask: Tensor, temperature: float = 1.0) -> Tensor:
    """Return (B, C) log-probabilities over the classes of ``mask`` (C,) at a temperature."""
    return F.log_softmax(restrict(precise(logits) / temperature, mask), dim=-1)


def precise(values: Tensor) -> Tensor:
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
    squared = (precise(generated) - precise(features)).square().sum(-1)
    # The square root has no derivative at zero: there the subgradient 0 is taken.
    positive = squared > 0
    distance = torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), 0.0)
    return weighted_mean(distance, weights)


def group_norms(squares: Tensor, groups: Tensor) -> Tensor:
    """Return the L2 norm of each group of attributes; its derivative where a whole group is zero is taken to be 0.

    Args:
        squares: (..., attributes) squared values.
        groups: (L, attributes) 1 where the attribute belongs to the group, else 0.

    Returns:
        (..., L).

    Example:
        >>> group_norms(torch.tensor([3.0, 4.0, 2.0]).square(), torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
        tensor([5., 2.])
    """
    # Not as a matrix product, which autocast would make in bfloat16.
    return _root((precise(squares).unsqueeze(-2) * groups).sum(-1))


def decorrelation(attributes: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
    r"""DistZSL Eq. 4: :math:`\sum_l \|\hat a^l\|_2`, summed over groups as printed, the mean over samples.

    Args:
        attributes: (B, attributes) predicted.
        groups: (L, attributes) 1 where the attribute belongs to the group, else 0.
        weights: (B,) 0 drops a sample.
    """
    return weighted_mean(group_norms(precise(attributes).square(), groups).sum(-1), weights)


def attribute_error(predicted: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Return the squared error of attributes (B, attributes), the mean over attributes and samples."""
    return weighted_mean((precise(predicted) - precise(target)).square().mean(-1), weights)


def compactness(attention: Tensor, weights: Tensor) -> Tensor:
    r"""Compactness of APN and GEM: :math:`\sum_{k,r} m_{kr}\,\|r - r^*_k\|^2`, the mean over samples.

    :math:`r^*_k` is the cell where the map of attribute k is highest; distances are counted in cells (rows and
    columns), so that maps need not be square. No gradient goes through the place of the peak.

    Args:
        attention: (B, attributes, height, width), not negative.
        weights: (B,) 0 drops a sample.
    """
    height, width = attention.shape[-2:]
    rows = torch.arange(height, device=attention.device).repeat_interleave(width)
    columns = torch.arange(width, device=attention.device).repeat(height)
    squared = (rows[:, None] - rows).square() + (columns[:, None] - columns).square()  # (cells, cells)
    maps = precise(attention).flatten(-2)
    distance = squared.to(maps.dtype)[maps.detach().argmax(-1)]
    return weighted_mean((maps * distance).sum((-2, -1)), weights)


def self_calibration(logits: Tensor, weights: Tensor, mask: Tensor, unseen: Tensor) -> Tensor:
    r"""MSDN's self-calibration: :math:`-\log` of the mean probability of all unseen classes together.

    Args:
        logits: (B, C) class scores.
        weights: (B,) 0 drops a sample.
        mask: (C,) bool, the classes that the softmax runs over.
        unseen: (C,) bool, the unseen classes, all in ``mask``.
    """
    mass = (_log_softmax(logits, mask).exp() * unseen).sum(-1)
    return -weighted_mean(mass, weights).clamp_min(1e-12).log()


def jensen_shannon(first: Tensor, second: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """Jensen-Shannon divergence of two softmaxes, in nats (0 to log 2).

    Args:
        first: (B, C) class scores.
        second: (B, C) class scores.
        weights: (B,) 0 drops a sample.
        mask: (C,) bool, the classes that both softmaxes run over.
    """
    log_p, log_q = _log_softmax(first, mask), _log_softmax(second, mask)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    divergence = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return weighted_mean(divergence.sum(-1) / 2, weights)


def weighted_l1(first: Tensor, second: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    r"""Weighted L1 distance of two score vectors, :math:`\sum_c |r_c|^3 / \|r\|_2` with r their difference.

    The large differences weigh most; its derivative where both are equal is 0.

    Args:
        first: (B, C) class scores.
        second: (B, C) class scores.
        weights: (B,) 0 drops a sample.
        mask: (C,) bool, the classes that count.
    """
    gap = (precise(first) - precise(second)) * mask
    norm = _root(gap.square().sum(-1, keepdim=True))
    share = gap.square() / torch.where(norm > 0, norm, 1.0)
    return weighted_mean((share * gap.abs()).sum(-1), weights)


def probability_distance(first: Tensor, second: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """Squared L2 distance of two softmaxes; arguments as for :func:`jensen_shannon`."""
    gap = _log_softmax(first, mask).exp() - _log_softmax(second, mask).exp()
    return weighted_mean(gap.square().sum(-1), weights)


def patch_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Binary cross-entropy of patches, the mean over patches and samples.

    Args:
        logits: (B, P) before the sigmoid.
        labels: (B, P) 0 or 1.
        weights: (B,) 0 drops a sample.
    """
    logits = precise(logits)
    return weighted_mean((F.softplus(logits) - labels * logits).mean(-1), weights)


def _root(squared: Tensor) -> Tensor:
    """Return the square root; where it has no derivative, at zero, the subgradient 0 is taken."""
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), 0.0)
