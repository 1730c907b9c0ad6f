r"""Server optimizers (Reddi et al. 2021, "Adaptive federated optimization", Algorithm 2): a rate
for every parameter.

The weighted mean of a round's updates, :math:`\Delta_t`, stands for a gradient. Server momentum is
FedAvgM (Hsu et al. 2019). ``server_lr`` is :math:`\eta`; the adaptive three move every parameter by
about :math:`\eta` a round.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params, add_scaled, under, within, zeros
from fedunseen.strategies.base import Reply, Strategy, StrategySettings


def mean_update(params: Params, replies: Sequence[Reply], weights: Sequence[float]) -> Params:
    """Return the weighted mean of the updates of all parameters that are learned."""
    zero = zeros(params)
    return add_scaled(
        zero, [{name: reply.update[name] for name in zero} for reply in replies], weights
    )


class FedAvgMSettings(StrategySettings):
    """Settings of server momentum."""

    momentum: float = Field(0.9, ge=0, lt=1)
    """Part of the last step that the server keeps; 0 is FedAvg. In the long run a step is 1 / (1 -
    momentum) times as long as FedAvg's, so a smaller `server_lr` may be needed."""


class FedAvgM(Strategy, name="fedavgm"):
    r""":math:`m_t = \beta\, m_{t-1} + \Delta_t`, :math:`w_{t+1} = w_t + \eta\, m_t`."""

    Settings = FedAvgMSettings
    settings: FedAvgMSettings
    merges_by_mean = True

    def init(self, params: Params, clients: int) -> Params:
        """Return m = 0."""
        return under("m/", zeros(params))

    def merge(
        self, state: Params, params: Params, replies: Sequence[Reply], round: int
    ) -> tuple[Params, Params]:
        """Step along the momentum."""
        if not replies:
            return state, params
        change = mean_update(params, replies, self.reply_weights(replies))
        m = within("m/", state)
        m = {name: self.settings.momentum * m[name] + value for name, value in change.items()}
        moved = {name: params[name] + self.server_step(round) * value for name, value in m.items()}
        return under("m/", m), params | moved | self.merged_statistics(params, replies)


class AdaptiveSettings(StrategySettings):
    """Settings that the adaptive server optimizers share."""

    server_lr: float = Field(0.01, gt=0)
    """Step of the server along the merged update, eta in Eq. 2."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Part of the last rounds' mean update that the server keeps; the paper's FedAdagrad keeps
    none."""
    tau: float = Field(1e-3, gt=0)
    """How little a parameter has to move before its step stops growing: the degree of
    adaptivity.
    """


class Adaptive(Strategy):
    r"""The base of the three: :math:`w_{t+1} = w_t + \eta\, m_t / (\sqrt{v_t} + \tau)`.

    :math:`m_t = \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t`, from :math:`m_{-1} = 0` and
    :math:`v_{-1} = \tau^2`; their bias is not corrected. A subclass says how :math:`v_t` follows
    :math:`\Delta_t^2`.
    """

    Settings: ClassVar[type[StrategySettings]] = AdaptiveSettings
    settings: AdaptiveSettings
    merges_by_mean = True

    def init(self, params: Params, clients: int) -> Params:
        """Return m = 0 and v = tau^2."""
        v = {
            name: torch.full_like(value, self.settings.tau**2)
            for name, value in zeros(params).items()
        }
        return under("m/", zeros(params)) | under("v/", v)

    def merge(
        self, state: Params, params: Params, replies: Sequence[Reply], round: int
    ) -> tuple[Params, Params]:
        """Step along m, each parameter at its own rate."""
        if not replies:
            return state, params
        beta = self.settings.beta1
        eta = self.server_step(round)
        tau = self.settings.tau
        change = mean_update(params, replies, self.reply_weights(replies))
        m = within("m/", state)
        v = within("v/", state)
        m = {name: beta * m[name] + (1 - beta) * value for name, value in change.items()}
        v = {name: self.second(v[name], value.square()) for name, value in change.items()}
        moved = {name: params[name] + eta * m[name] / (v[name].sqrt() + tau) for name in change}
        return under("m/", m) | under("v/", v), params | moved | self.merged_statistics(
            params, replies
        )

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return v_t from v_(t-1) and the square of the mean update, of one parameter."""
        raise TypeError(f"{type(self).__name__} must say how v follows the squares of the updates")


class FedAdagrad(Adaptive, name="fedadagrad"):
    r""":math:`v_t = v_{t-1} + \Delta_t^2`: steps grow shorter and shorter."""

    class Settings(AdaptiveSettings):
        """Settings of FedAdagrad."""

        beta1: float = Field(0.0, ge=0, lt=1)
        """Part of the last rounds' mean update that the server keeps; the paper's FedAdagrad keeps
        none."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Add the square."""
        return v + square


class ForgettingSettings(AdaptiveSettings):
    """Settings of FedYogi and FedAdam."""

    beta2: float = Field(0.99, ge=0, lt=1)
    """How slowly squares are forgotten."""


class FedYogi(Adaptive, name="fedyogi"):
    r""":math:`v_t = v_{t-1} - (1 - \beta_2)\, \Delta_t^2\, \mathrm{sgn}(v_{t-1} - \Delta_t^2)`."""

    Settings = ForgettingSettings
    settings: ForgettingSettings

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Move towards the square, by a part of the square."""
        return v - (1 - self.settings.beta2) * square * torch.sign(v - square)


class FedAdam(Adaptive, name="fedadam"):
    r""":math:`v_t = \beta_2 v_{t-1} + (1 - \beta_2)\, \Delta_t^2`."""

    Settings = ForgettingSettings
    settings: ForgettingSettings

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Average squares, those of old rounds less and less."""
        return self.settings.beta2 * v + (1 - self.settings.beta2) * square
