"""FedAvg (McMahan et al. 2017) and FedAvg-decay.

FedZSL's Table 1 cites Li et al. 2020 ("On the convergence of FedAvg on non-iid data") for the
second, whose theorem decays the clients' rate; FedZSL describes it as decaying "the learning rate
of global aggregation", which is done here.
"""

from pydantic import Field

from fedunseen.strategies.base import Strategy, StrategySettings


class FedAvg(Strategy, name="fedavg"):
    """The weighted mean of the clients' updates."""


class FedAvgDecay(Strategy, name="fedavg-decay"):
    """FedAvg whose server takes smaller steps as rounds go by: eta * decay^t."""

    class Settings(StrategySettings):
        """Settings of FedAvg-decay."""

        decay: float = Field(0.98, gt=0, le=1)
        """Factor on the server's step from one round to the next; the paper does not give its
        value.
        """

    settings: Settings

    def server_step(self, round: int) -> float:
        """Return eta * decay^round."""
        return self.settings.server_lr * self.settings.decay**round
