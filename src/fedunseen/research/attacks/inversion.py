"""From a gradient back to the sample that it was computed from.

- :class:`DLG`: *Deep leakage from gradients* (Zhu et al. 2019): dummy data whose gradient is
  nearest.
- :class:`Cosine`: *Inverting gradients* (Geiping et al. 2020): nearest by direction, with a prior
  on images.
- :func:`inferred_label`: the class of a single sample, by the sign rule of iDLG (Zhao et al. 2020).
- :func:`layer_inputs`: what went into a linear layer, in closed form (Phong et al. 2017, Geiping et
  al., section 3).
- :func:`critic_inputs`: the real sample behind the gradient of a Wasserstein critic with one hidden
  layer, likewise.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedunseen.core.parameters import Params

GradientOf = Callable[[Params], Params]
"""From dummy data (name -> tensor) to the gradient that they would give, differentiable by the
dummy data.
"""

# a squared distance of gradients, relative to the true one's square: single precision ends there
_MATCHED = 1e-9
# such a distance below which a search counts as successful, so that no other start is tried
_EXPLAINED = 1e-4
_PATIENCE = (
    30  # calls of L-BFGS in a row that do not lower the distance by a hundredth end a search
)


@dataclass(frozen=True)
class DLG:
    """Deep leakage from gradients: L-BFGS on the squared distance, summed over all layers."""

    steps: int = 300
    lr: float = 1.0
    inner: int = 20
    memory: int = 100
    restarts: int = 3


@dataclass(frozen=True)
class Cosine:
    """The attack of Geiping et al.: Adam on the signs of the gradients of
    ``1 - cos + total_variation * TV``.

    The step is divided by ten after 3/8, 5/8 and 7/8 of the way. Unlike theirs, the dummy image is
    not normalized.
    """

    steps: int = 4800
    lr: float = 0.1
    total_variation: float = 1e-4
    restarts: int = 1


Inversion = DLG | Cosine


@dataclass(frozen=True, eq=False)
class Recovery:
    """What an attack ends with."""

    values: Params
    objective: float
    distance: float
    iterations: int
    shown: dict[int, Params]


def shown_iterations(steps: int) -> tuple[int, ...]:
    """Return the iterations at which a picture of the dummy data is kept (FZSL, Fig. 4)."""
    return tuple(sorted({0, *(round(steps ** (k / 5)) for k in range(6))}))


def invert(
    attack: Inversion,
    gradient_of: GradientOf,
    target: Params,
    start: Callable[[int], Params],
    images: Collection[str] = (),
) -> Recovery:
    """Search dummy data whose gradient is that of the victim; ``images`` are smooth, and in [0,
    1].
    """
    size = sum(float(value.square().sum()) for value in target.values())
    result: list[Recovery] = []
    for restart in range(attack.restarts):
        values = {
            name: value.detach().clone().requires_grad_() for name, value in start(restart).items()
        }
        search = _Search(
            gradient_of, target, values, max(size, 1e-30), shown_iterations(attack.steps)
        )
        if isinstance(attack, DLG):
            _by_distance(attack, search)
        else:
            _by_direction(attack, search, images)
        result.append(search.result())
        if result[-1].distance < _EXPLAINED:
            break
    return min(result, key=lambda attempt: attempt.objective)


class _Search:
    """Dummy data under optimization: the best so far, and what is shown of the way."""

    def __init__(
        self,
        gradient_of: GradientOf,
        target: Params,
        values: Params,
        size: float,
        shown: Sequence[int],
    ) -> None:
        self.gradient_of = gradient_of
        self.target = target
        self.values = values
        self.size = size
        self.wanted = shown
        self.objective = math.inf
        self.best = self.copy()
        self.shown: dict[int, Params] = {0: self.best}
        self.iterations = 0

    def copy(self) -> Params:
        return {name: value.detach().clone() for name, value in self.values.items()}

    def distance(self, values: Params) -> Tensor:
        gradient = self.gradient_of(values)
        terms = [(gradient[name] - wanted).square().sum() for name, wanted in self.target.items()]
        return torch.stack(terms).sum()

    def note(self, values: Params, objective: float) -> None:
        """Keep dummy data if they are the best so far."""
        if math.isfinite(objective) and objective < self.objective:
            self.best = values
            self.objective = objective

    def done(self, iteration: int) -> None:
        """Take note that an iteration is over."""
        self.iterations = iteration
        if iteration in self.wanted:
            self.shown[iteration] = self.copy()

    def result(self) -> Recovery:
        for iteration in self.wanted:  # it came to rest before them
            if iteration not in self.shown:
                self.shown[iteration] = self.best
        distance = float(self.distance(self.best).detach()) / self.size
        return Recovery(self.best, self.objective, distance, self.iterations, self.shown)


def _by_distance(attack: DLG, search: _Search) -> None:
    leaves = list(search.values.values())
    optimiser = torch.optim.LBFGS(
        leaves, lr=attack.lr, max_iter=attack.inner, history_size=attack.memory
    )

    def closure() -> Tensor:
        distance = search.distance(search.values)
        grads = torch.autograd.grad(distance, leaves, allow_unused=True, materialize_grads=True)
        for leaf, grad in zip(leaves, grads, strict=True):
            leaf.grad = grad
        return distance.detach()

    rest = 0
    level = math.inf
    for iteration in range(1, attack.steps + 1):
        before = search.copy()
        distance = float(optimiser.step(closure))  # type: ignore[no-untyped-call]  # of before the step
        search.note(before, distance)
        rest, level = (0, distance) if distance < 0.99 * level else (rest + 1, level)
        search.done(iteration)
        if (
            not math.isfinite(distance)
            or search.objective < _MATCHED * search.size
            or rest >= _PATIENCE
        ):
            break
    search.note(search.copy(), float(closure()))


def _by_direction(attack: Cosine, search: _Search, images: Collection[str]) -> None:
    leaves = list(search.values.values())
    optimiser = torch.optim.Adam(leaves, lr=attack.lr)
    drops = [round(attack.steps * part) for part in (3 / 8, 5 / 8, 7 / 8)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, drops, gamma=0.1)
    length = math.sqrt(search.size)
    for iteration in range(attack.steps + 1):
        gradient = search.gradient_of(search.values)
        product = torch.stack(
            [(gradient[name] * wanted).sum() for name, wanted in search.target.items()]
        ).sum()
        norm = (
            torch.stack([value.square().sum() for value in gradient.values()])
            .sum()
            .clamp_min(1e-30)
            .sqrt()
        )
        objective = 1 - product / (norm * length)
        for name in images:
            objective = objective + attack.total_variation * total_variation(search.values[name])
        value = float(objective.detach())
        search.note(search.copy(), value)
        if iteration == attack.steps or not math.isfinite(value):
            break
        grads = torch.autograd.grad(objective, leaves, allow_unused=True, materialize_grads=True)
        for leaf, grad in zip(leaves, grads, strict=True):
            leaf.grad = grad.sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            for name in images:
                search.values[name].clamp_(0, 1)
        search.done(iteration + 1)


def total_variation(images: Tensor) -> Tensor:
    r"""Mean :math:`|x_{i,j+1} - x_{i,j}|` plus mean :math:`|x_{i+1,j} - x_{i,j}|` of images (...,
    height, width).
    """
    across = images.diff(dim=-1)
    down = images.diff(dim=-2)
    return sum((part.abs().mean() for part in (across, down) if part.numel()), torch.zeros(()))


def inferred_label(weight: Tensor) -> int:
    """Return the class of the one sample behind the gradient (C, d) of a softmax's weights, by
    iDLG's sign rule.

    Row c is (p_c - [c is the class]) h: where the features h are not negative, one row alone sums
    to less than zero.
    """
    return int(weight.reshape(len(weight), -1).sum(1).argmin())


def layer_inputs(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor] | None:
    r"""Return what went into a linear layer, from its gradients alone: :math:`x = G_W^\top G_b /
    \|G_b\|^2`.

    Of one sample, row i of the weights' gradient is :math:`\delta_i x` and the bias has
    :math:`\delta_i`. Where a layer is used more than once (a critic), that holds for those columns
    of x that were the same each time: each column says for itself how well it fits.
    """
    power = bias.square().sum()
    if not float(power) > 0:
        return None
    inputs = (weight.T @ bias) / power
    residual = (weight - bias.outer(inputs)).norm(dim=0)
    whole = weight.norm(dim=0)
    return inputs, torch.where(whole > 0, residual / whole.clamp_min(1e-30), 0.0)


def critic_inputs(
    grads: tuple[Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    top: Tensor,
    wide: int,
    slope: float = 0.2,
) -> Tensor | None:
    r"""Return the real sample x behind the gradient of a Wasserstein critic D([x; a]), of one real
    and one fake sample.

    With one hidden layer of leaky ReLUs, row j of the first layer's gradient, divided by the known
    :math:`v_j` on top, is :math:`m_j \tilde x - r_j x + s_j p`: slopes m of the fake, r of the real
    and s of the mixed sample, each 1 or ``slope``, and p of the gradient penalty. So there are few
    different rows. The bias says :math:`m_j - r_j`: where it is zero, the longer rows are :math:`e
    = \tilde x - x + p`, and where the fake sample alone is active, the rows with s = 1 are
    :math:`e + (1 - slope) x`. Which of two kinds these are, the signs of the hidden layer tell,
    once the description a is read off (:func:`layer_inputs`).
    """
    usable = top.abs() >= top.abs().median()  # dividing by the others would lose digits
    top = top[usable]
    of_bias = grads[1][usable]
    rows = grads[0][usable][:, :wide] / top[:, None]
    lead = of_bias / top
    scale = lead.abs().max() / (1 - slope)  # of the whole loss
    read = layer_inputs(*grads)
    if read is None or not float(scale) > 0:
        return None
    fake_alone, real_alone = (sign * lead > 0.5 * (1 - slope) * scale for sign in (1, -1))
    both = rows[~(fake_alone | real_alone)]
    if not len(both) or not fake_alone.any():
        return None
    long = both.norm(dim=1)
    common = both[long > 0.5 * (1 + slope) * long.max()].mean(0)
    first = rows[fake_alone]
    apart = (first - first[0]).norm(dim=1)
    far = apart > 0.5 * apart.max()
    weight, offset = weight[usable], bias[usable] + weight[usable][:, wide:] @ read[0][wide:]
    best = 0.0
    result = None
    for kind in (first[~far], first[far]):
        if not len(kind):
            continue
        sample = (kind.mean(0) - common) / ((1 - slope) * scale)
        active = weight[:, :wide] @ sample + offset > 0
        share = float(torch.cat([active[real_alone], ~active[fake_alone]]).float().mean())
        if share > max(best, 0.99):
            best = share
            result = sample
    return result
