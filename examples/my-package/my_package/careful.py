"""A strategy that changes the clients' gradients."""

from fedunseen.strategies import Strategy, StrategySettings


class CarefulSettings(StrategySettings):
    """What the experiment file may say about it."""

    shrink: float = 0.5
    """The part of every step that is taken."""


class Careful(Strategy, name="careful"):
    """Takes only a part of every step."""

    Settings = CarefulSettings

    def correct(self, gradient):
        def shrunk(params, step):
            grads, terms = gradient(params, step)
            return {name: self.settings.shrink * grad for name, grad in grads.items()}, terms

        return shrunk
