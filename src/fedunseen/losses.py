r"""The papers' losses as pure functions on plain tensors: nothing to set up, nothing remembered.

============================================ ================================== =======================
equation                                     here                               used by
============================================ ================================== =======================
FedZSL Eq. 3, DistZSL Eq. 3                  :func:`semantic_cross_entropy`     fedzsl, distzsl, ...
FedZSL Eqs. 5-6, DistZSL Eqs. 6-7 (CARD)     :func:`relation_distillation`      fedzsl, distzsl, svip
FedZSL Eq. 7, DistZSL Eq. 8 (bilateral)      :func:`consistency`                fedzsl, distzsl
DistZSL Eq. 4, APN                           :func:`decorrelation`              distzsl, apn, svip
APN and GEM                                  :func:`attribute_error`            apn, gem
APN and GEM                                  :func:`compactness`                apn, gem
MSDN                                         :func:`self_calibration`           msdn
MSDN, distillation between its two branches  :func:`jensen_shannon`             msdn
the same, as in MSDN's code; FREE's cycle    :func:`weighted_l1`                msdn, free
SVIP                                         :func:`patch_cross_entropy`        svip
f-VAEGAN                                     :func:`reconstruction`             vaegan, free
f-VAEGAN                                     :func:`posterior_divergence`       vaegan, free
FREE (SAMC)                                  :func:`margin_loss`                free
FedFSL Eqs. 12 and 14                        :func:`kl_divergence`              maml-mi, maml-mi-adv
============================================ ================================== =======================

The critics of f-CLSWGAN and f-VAEGAN belong to a network of a fixed form:
``fedunseen.methods.generative.wasserstein``. The similarities that FedZSL Eq. 6 distils are those
of ``fedunseen.core.class_similarity.class_similarity`` (Eq. 4).

FedZSL is Chen et al. 2022, DistZSL Chen et al. 2025, FedFSL Fan and Huang 2021, APN Xu et al. 2020,
MSDN Chen et al. 2022, f-VAEGAN Xian et al. 2019, FREE Chen et al. 2021, SVIP Chen et al. 2025.

Every loss returns a scalar, the mean over a batch. ``weights`` (B,) from 0 says how much each
sample counts; a sample of weight 0 has no part in the loss, and if none is left, it is 0. ``mask``
(C,) bool names the classes of a softmax; by default all count.
Shapes that differ raise ``ArgumentError``. The papers write sums, but their learning rates only
make sense for means. All losses work under ``torch.func.grad`` and ``torch.func.vmap``; half
precision is turned into float32 first.

Example:
    >>> logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]])  # two samples, three classes
    >>> loss = semantic_cross_entropy(logits, torch.tensor([0, 1]))
    >>> round(loss.item(), 4)
    0.4795
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.errors import ArgumentError
from fedunseen.core.phases import weighted_mean

__all__ = [
    "attribute_error", "compactness", "consistency", "decorrelation", "group_norms", "jensen_shannon",
    "kl_divergence", "margin_loss", "patch_cross_entropy", "posterior_divergence",
    "reconstruction", "relation_distillation", "self_calibration", "semantic_cross_entropy", "weighted_l1",
]  # fmt: skip

_OUT = (
    -1e9
)  # a logit that softmax turns into exactly zero; -inf would make 0 * inf in the divergence


# From attributes


def semantic_cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    r"""FedZSL Eq. 3, the cross-entropy of compatibilities: :math:`-\log\mathrm{softmax}(z)_y`.

    ``logits`` (B, C) are compatibilities :math:`z_j = \hat a^T a_j` of predicted attributes with
    each class's semantics, ``labels`` (B,) class ids y. A label outside ``mask`` has the
    probability 0, so the loss is infinite.

    Example:
        >>> round(semantic_cross_entropy(torch.zeros(1, 4), torch.tensor([2])).item(), 4)  # log 4
        1.3863
    """
    _check_shapes("logits", logits, "labels", labels, 2, 1)
    log_p = _log_softmax(logits, mask).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    if mask is not None:
        log_p = log_p + torch.where(mask, 0.0, -torch.inf)[labels]
    return _mean(-log_p, weights)


def relation_distillation(
    logits: Tensor,
    similarities: Tensor,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    temperature: float = 10.0,
) -> Tensor:
    r"""FedZSL Eq. 5 and FedZSL Eq. 6 (CARD): the divergence of the model's class relations from
    those of the semantics.

    It is :math:`\tau^2\,KL(\mathrm{softmax}(\Gamma_y/\tau)\,\|\,\mathrm{softmax}(z/\tau))`, of
    ``logits`` z (B, C) and, in ``similarities`` (B, C), the rows of Gamma of the samples' labels;
    the ``temperature`` tau must be above 0. The paper names the divergence the other way round but
    expands it as here. As tau grows it tends to half the variance over classes of :math:`z -
    \Gamma_y`.

    Example:
        >>> gamma = torch.tensor([[1.0, 0.2], [0.2, 1.0]])
        >>> labels, logits = torch.tensor([0]), torch.tensor([[0.0, 0.0]])
        >>> round(relation_distillation(logits, gamma[labels]).item(), 3)  # nearly half of (1, 0.2)'s variance, 0.16
        0.08
    """
    _check_shapes("logits", logits, "similarities", similarities, 2, 2)
    if not temperature > 0:
        raise ArgumentError(f"temperature = {temperature}: give a number above 0")
    log_target = _log_softmax(similarities, mask, temperature)
    log_p = _log_softmax(logits, mask, temperature)
    divergence = (log_target.exp() * (log_target - log_p)).sum(-1)
    return temperature**2 * _mean(divergence, weights)


def consistency(generated: Tensor, features: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""FedZSL Eq. 7: :math:`\|h(a_y) - f(x)\|_2`, the distance of ``generated`` from extracted
    ``features`` (B, d).

    DistZSL's bilateral connection (its Eq. 8) is the same of features that are generated from
    predicted attributes. The derivative where both are equal is taken to be 0.

    Example:
        >>> consistency(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)).item()
        5.0
    """
    _check_shapes("generated", generated, "features", features, 2, 2)
    return _mean(_root((precise(generated) - precise(features)).square().sum(-1)), weights)


def group_norms(squares: Tensor, groups: Tensor) -> Tensor:
    """Return the L2 norm (..., L) of each group of attributes, from ``squares`` (..., attributes)
    of values.

    ``groups`` (L, attributes) is 1 where the attribute belongs to the group, else 0. The derivative
    where a whole group is zero is taken to be 0.

    Example:
        >>> group_norms(torch.tensor([3.0, 4.0, 2.0]).square(), torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
        tensor([5., 2.])
    """
    # Not as a matrix product, which autocast would make in bfloat16.
    return _root((precise(squares).unsqueeze(-2) * groups).sum(-1))


def decorrelation(attributes: Tensor, groups: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""DistZSL Eq. 4: :math:`\sum_l \|\hat a^l\|_2` of ``attributes`` (B, attributes), summed over
    groups as printed.

    ``groups`` (L, attributes) is as for :func:`group_norms`.

    Example:
        >>> decorrelation(torch.tensor([[3.0, 4.0, 2.0]]), torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])).item()
        7.0
    """
    if attributes.shape[-1:] != groups.shape[-1:]:
        raise ArgumentError(_apart("attributes", attributes, "groups", groups))
    return _mean(group_norms(precise(attributes).square(), groups).sum(-1), weights)


def attribute_error(predicted: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """APN's attribute regression: the squared error of ``predicted`` from ``target`` (B,
    attributes), a mean over both.

    Example:
        >>> attribute_error(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 1.0]])).item()
        2.0
    """
    _check_shapes("predicted", predicted, "target", target, 2, 2)
    return _mean((precise(predicted) - precise(target)).square().mean(-1), weights)


def compactness(attention: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Compactness of APN and GEM: :math:`\sum_{k,r} m_{kr}\,\|r - r^*_k\|^2`, the mean over
    samples.

    ``attention`` m (B, attributes, height, width) is not negative, and :math:`r^*_k` the cell where
    the map of attribute k is highest; distances are counted in cells. No gradient goes through the
    place of the peak.

    Example:
        >>> compactness(torch.tensor([[[[1.0, 0.0, 0.5]]]])).item()  # half the mass of the peak, two cells away
        2.0
    """
    if attention.ndim != 4:
        raise ArgumentError(
            f"attention has the shape {tuple(attention.shape)}: give (B, attributes, height, width)"
        )
    height, width = attention.shape[-2:]
    rows = torch.arange(height, device=attention.device).repeat_interleave(width)
    columns = torch.arange(width, device=attention.device).repeat(height)
    squared = (rows[:, None] - rows).square() + (
        columns[:, None] - columns
    ).square()  # (cells, cells)
    maps = precise(attention).flatten(-2)
    distance = squared.to(maps.dtype)[maps.detach().argmax(-1)]
    return _mean((maps * distance).sum((-2, -1)), weights)


def self_calibration(
    logits: Tensor, unseen: Tensor, weights: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    r"""MSDN's self-calibration: :math:`-\log` of the mean probability of all unseen classes
    together.

    ``logits`` (B, C) are class scores, ``unseen`` (C,) bool the unseen classes, all in ``mask``.

    Example:
        >>> round(self_calibration(torch.zeros(1, 4), torch.tensor([0, 0, 0, 1]).bool()).item(), 4)  # log 4
        1.3863
    """
    if logits.shape[-1:] != unseen.shape:
        raise ArgumentError(_apart("logits", logits, "unseen", unseen))
    mass = _mean((_log_softmax(logits, mask).exp() * unseen).sum(-1), weights)
    loss = -mass.clamp_min(1e-12).log()
    return loss if weights is None else torch.where(weights.sum() > 0, loss, 0.0)


def jensen_shannon(
    first: Tensor, second: Tensor, weights: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """MSDN: the Jensen-Shannon divergence of two softmaxes of class scores (B, C), in nats (0 to
    log 2).

    Example:
        >>> far = torch.tensor([[99.0, 0.0], [0.0, 99.0]])
        >>> round(jensen_shannon(far[:1], far[1:]).item(), 4)  # log 2
        0.6931
    """
    _check_shapes("first", first, "second", second, 2, 2)
    log_p = _log_softmax(first, mask)
    log_q = _log_softmax(second, mask)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    divergence = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return _mean(divergence.sum(-1) / 2, weights)


def weighted_l1(
    first: Tensor, second: Tensor, weights: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    r"""Weighted L1 distance of two score vectors (B, C), :math:`\sum_c |r_c|^3 / \|r\|_2` with r
    their difference.

    The large differences weigh most; its derivative where both are equal is 0. From the codes of
    MSDN and FREE.

    Example:
        >>> weighted_l1(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)).item()  # (27 + 64) / 5
        18.2...
    """
    _check_shapes("first", first, "second", second, 2, 2)
    gap = precise(first) - precise(second)
    if mask is not None:
        gap = gap * mask
    norm = _root(gap.square().sum(-1, keepdim=True))
    share = gap.square() / torch.where(norm > 0, norm, 1.0)
    return _mean((share * gap.abs()).sum(-1), weights)


def patch_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """SVIP: the binary cross-entropy of patches, from ``logits`` (B, P) and ``labels`` (B, P) 0 or
    1.

    Example:
        >>> round(patch_cross_entropy(torch.zeros(1, 9), torch.ones(1, 9)).item(), 4)  # log 2
        0.6931
    """
    _check_shapes("logits", logits, "labels", labels, 2, 2)
    logits = precise(logits)
    return _mean((F.softplus(logits) - labels * logits).mean(-1), weights)


# Of generated features


def reconstruction(
    made: Tensor,
    real: Tensor,
    weights: Tensor | None = None,
    output: Literal["linear", "relu", "sigmoid"] = "linear",
) -> Tensor:
    """f-VAEGAN: the negative log-likelihood of features, but for a constant, summed over features.

    Binary cross-entropy of ``made`` from ``real`` (B, d) where the decoder's last activation
    ``output`` is a sigmoid, which needs features in [0, 1]; otherwise half the squared error.

    Example:
        >>> half = torch.tensor([[0.5, 0.5]])
        >>> round(reconstruction(half, torch.tensor([[1.0, 0.0]]), output="sigmoid").item(), 4)  # 2 log 2
        1.3863
        >>> reconstruction(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]])).item()
        2.5
    """
    _check_shapes("made", made, "real", real, 2, 2)
    made = precise(made)
    if output == "sigmoid":
        eps = 1e-12  # as in TF-VAEGAN's code: a saturated sigmoid would give an infinite loss
        error = -(real * torch.log(made + eps) + (1 - real) * torch.log(1 - made + eps)).sum(-1)
    else:
        error = 0.5 * ((made - real) ** 2).sum(-1)
    return _mean(error, weights)


def posterior_divergence(mean: Tensor, logvar: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""f-VAEGAN: :math:`KL(N(\mu, \sigma^2)\,\|\,N(0, 1)) = \frac12\sum(\mu^2 + \sigma^2 - 1 -
    \log\sigma^2)`, in nats.

    ``mean`` and ``logvar`` (B, z) are those of the encoder's posterior.

    Example:
        >>> posterior_divergence(torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2)).item()
        2.0
    """
    _check_shapes("mean", mean, "logvar", logvar, 2, 2)
    return _mean(0.5 * (mean**2 + torch.exp(logvar) - 1.0 - logvar).sum(-1), weights)


def margin_loss(
    means: Tensor,
    centres: Tensor,
    labels: Tensor,
    held: Tensor | None = None,
    margin: float = 50.0,
    balance: float = 0.5,
    other: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    r"""FREE's SAMC: :math:`\max(0, \Delta + g\,\|\mu - c_y\|^2 - (1 - g)\,\|\mu - c_{y'}\|^2)`.

    ``means`` mu (B, a) are the predicted attributes, ``centres`` c (C, a) the classes' learned
    centres, ``labels`` y (B,), ``margin`` Delta and ``balance`` g. y' is ``other`` (B,), by default
    the nearest wrong centre among the classes ``held`` (C,); a client with one class has none, and
    its term is left out.

    Example:
        >>> centres = torch.tensor([[0.0], [1.0], [5.0]])
        >>> held = torch.tensor([True, False, True])
        >>> margin_loss(torch.tensor([[0.5]]), centres, torch.tensor([0]), held, 20.0).item()  # 20 + 0.125 - 10.125
        10.0
    """
    _check_shapes("means", means, "labels", labels, 2, 1)
    if means.shape[-1] != centres.shape[-1]:
        raise ArgumentError(_apart("means", means, "centres", centres))
    # Multiplied out: differences of all samples and centres would be (B, C, a) numbers.
    squared = (means**2).sum(-1, keepdim=True) - 2 * means @ centres.T + (centres**2).sum(-1)
    right = squared.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    if other is not None:
        wrong = squared.gather(-1, other.unsqueeze(-1)).squeeze(-1)
    else:
        open_ = torch.arange(len(centres), device=centres.device) != labels.unsqueeze(-1)
        if held is not None:
            open_ = held & open_
        wrong = squared.masked_fill(~open_, torch.inf).amin(-1)
        wrong = torch.where(open_.any(-1), wrong, torch.zeros_like(wrong))
    return _mean(F.relu(margin + balance * right - (1 - balance) * wrong), weights)


# Between answers


def kl_divergence(first: Tensor, second: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""FedFSL Eq. 12 and FedFSL Eq. 14: :math:`KL(\mathrm{softmax}(u)\,\|\,\mathrm{softmax}(v))` of
    logits (B, N).

    FedFSL's mutual information takes a peer's answers for the first and the client's own for the
    second.

    Example:
        >>> p = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
        >>> round(kl_divergence(p[:1], p[1:]).item(), 4)  # log(0.5 / 0.9) / 2 + log(0.5 / 0.1) / 2
        0.5108
    """
    _check_shapes("first", first, "second", second, 2, 2)
    log_p = first.log_softmax(-1)
    log_q = second.log_softmax(-1)
    return _mean((log_p.exp() * (log_p - log_q)).sum(-1), weights)


# What they share


def precise(values: Tensor) -> Tensor:
    """Continue in at least float32: under autocast, matrix products come in bfloat16, whose 8 bits
    no loss can bear.
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _log_softmax(logits: Tensor, mask: Tensor | None, temperature: float = 1.0) -> Tensor:
    """Return (B, C) log-probabilities over the classes of ``mask`` (C,) at a temperature."""
    scaled = precise(logits) if temperature == 1 else precise(logits) / temperature
    # Added: filling takes three times as long, and as long again for its gradient.
    return F.log_softmax(scaled if mask is None else scaled + torch.where(mask, 0.0, _OUT), dim=-1)


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of values (B,), all alike or by weights (B,)."""
    return values.mean() if weights is None else weighted_mean(values, weights)


def _root(squared: Tensor) -> Tensor:
    """Return the square root; where it has no derivative, at zero, the subgradient 0 is taken."""
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), 0.0)


def _check_shapes(
    name: str, first: Tensor, other: str, second: Tensor, first_ndim: int, second_ndim: int
) -> None:
    """Refuse tensors that broadcasting would combine by accident.

    Raises:
        ArgumentError: the dimensions are not as many as asked, or those that both have differ.
    """
    common = min(first_ndim, second_ndim)
    fits = (
        first.ndim == first_ndim
        and second.ndim == second_ndim
        and first.shape[:common] == second.shape[:common]
    )
    if not fits:
        raise ArgumentError(_apart(name, first, other, second))


def _apart(name: str, first: Tensor, other: str, second: Tensor) -> str:
    return (
        f"{name} has the shape {tuple(first.shape)} and {other} {tuple(second.shape)}, which do "
        "not fit together: see the shapes that the documentation of this loss asks for"
    )
