r"""Server optimizers: momentum, and a rate for every parameter (Reddi et al. 2021, "Adaptive federated optimization").

The weighted mean of a round's updates, :math:`\Delta_t`, stands for a gradient. Server momentum is FedAvgM (Hsu et al.
2019). ``server_lr`` is :math:`\eta`; FedAdam moves every parameter by about :math:`\eta` a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field

from fedunseen.core.parameters import Params, add_scaled, under, within, zeros
from fedunseen.strategies.base import Reply, Strategy, StrategySettings


def mean_update(params: Params, replies: Sequence[Reply], weights: Sequence[float]) -> Params:
    """Return the weighted mean of the updates of all parameters that are learned."""
    zero = zeros(params)
    return add_scaled(zero, [{name: reply.update[name] for name in zero} for reply in replies], weights)


class FedAvgMSettings(StrategySettings):
    """Settings of server momentum."""

    name: Literal["fedavgm"] = "fedavgm"
    momentum: float = Field(0.9, ge=0, lt=1)
    """Part of the last step that the server keeps; 0 is FedAvg. In the long run a step is 1 / (1 - momentum) times as
    long as FedAvg's, so a smaller `server_lr` may be needed."""


class FedAvgM(Strategy):
    r""":math:`m_t = \beta\, m_{t-1} + \Delta_t`, :math:`w_{t+1} = w_t + \eta\, m_t`."""

    Settings = FedAvgMSettings
    settings: FedAvgMSettings
    merges_by_mean = True

    def init(self, params: Params, clients: int) -> Params:
        """Return m = 0."""
        return under("m/", zeros(params))

    def merge(self, state: Params, params: Params, replies: Sequence[Reply], round: int) -> tuple[Params, Params]:
        """Step along the momentum."""
        if not replies:
            return state, params
        change, m = mean_update(params, replies, self.reply_weights(replies)), within("m/", state)
        m = {name: self.settings.momentum * m[name] + value for name, value in change.items()}
        moved = {name: params[name] + self.server_step(round) * value for name, value in m.items()}
        return under("m/", m), params | moved | self.merged_statistics(params, replies)


class FedAdamSettings(StrategySettings):
    """Settings of FedAdam."""

    name: Literal["fedadam"] = "fedadam"
    server_lr: float = Field(0.01, gt=0)
    """Step of the server, eta."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Part of the last rounds' mean update that the server keeps."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """How slowly squares are forgotten."""
    tau: float = Field(1e-3, gt=0)
    """How little a parameter has to move before its step stops growing: the degree of adaptivity."""


class FedAdam(Strategy):
    r""":math:`w_{t+1} = w_t + \eta\, m_t / (\sqrt{v_t} + \tau)`.

    :math:`m_t = \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t` and :math:`v_t = \beta_2 v_{t-1} + (1 - \beta_2) \Delta_t^2`,
    from :math:`m_{-1} = 0` and :math:`v_{-1} = \tau^2`; their bias is not corrected.
    """

    Settings = FedAdamSettings
    settings: FedAdamSettings
    merges_by_mean = True

    def init(self, params: Params, clients: int) -> Params:
        """Return m = 0 and v = tau^2."""
        v = {name: torch.full_like(value, self.settings.tau**2) for name, value in zeros(params).items()}
        return under("m/", zeros(params)) | under("v/", v)

    def merge(self, state: Params, params: Params, replies: Sequence[Reply], round: int) -> tuple[Params, Params]:
        """Step along m, each parameter at its own rate."""
        if not replies:
            return state, params
        s, eta = self.settings, self.server_step(round)
        change = mean_update(params, replies, self.reply_weights(replies))
        m, v = within("m/", state), within("v/", state)
        m = {name: s.beta1 * m[name] + (1 - s.beta1) * value for name, value in change.items()}
        v = {name: s.beta2 * v[name] + (1 - s.beta2) * value.square() for name, value in change.items()}
        moved = {name: params[name] + eta * m[name] / (v[name].sqrt() + s.tau) for name in change}
        return under("m/", m) | under("v/", v), params | moved | self.merged_statistics(params, replies)
