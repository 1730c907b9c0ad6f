"""Strategies, one file each: what is shared, how a client is corrected, how updates merge.

Every strategy of the table below can be imported from here, takes its settings by keyword, and
works on plain dictionaries of tensors, with any training loop.

Example:
    Two clients, whose samples say 1 and 3, find the number in between. Each takes ten gradient
    steps a round; FedProx pulls them towards the model that they were sent.

    >>> import torch
    >>> from fedunseen.core.phases import Step
    >>> from fedunseen.core.trainer import LocalResult
    >>> from fedunseen.strategies import FedProx, Reply
    >>> strategy = FedProx(mu=0.1, weights="samples")
    >>> model = {"w": torch.zeros(())}
    >>> state, remembered = strategy.init(model, clients=2), {0: {}, 1: {}}
    >>> for round in range(20):
    ...     replies = []
    ...     for client, sample in enumerate([1.0, 3.0]):
    ...         instruction = strategy.recall(strategy.instruct(state, model, round), remembered[client], round)
    ...         gradient = strategy.correct(lambda params, step: ({"w": params["w"] - sample}, {}))
    ...         local = dict(instruction.params)
    ...         for _ in range(10):
    ...             gradients, _ = gradient(local, Step({}, {}, instruction.extras | instruction.kept, {}))
    ...             local = {name: value - 0.1 * gradients[name] for name, value in local.items()}
    ...         update, remembered[client] = strategy.finish(instruction, LocalResult(local), remembered[client])
    ...         replies.append(Reply(client, update, classes=1, samples=50))
    ...     state, model = strategy.merge(state, model, replies, round)
    >>> f"{model['w']:.3f}"
    '2.000'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.registry import lazily

if TYPE_CHECKING:
    from fedunseen.strategies.base import Instruction, Reply, Strategy, StrategySettings
    from fedunseen.strategies.pipeline import Filter, FilterResult, Pipeline, RoundView

__all__ = [
    "STRATEGIES",
    "Filter",
    "FilterResult",
    "Instruction",
    "Pipeline",
    "Reply",
    "RoundView",
    "Strategy",
    "StrategySettings",
]

STRATEGIES = {
    "fedavg": "fedunseen.strategies.fedavg:FedAvg",
    "fedavg-decay": "fedunseen.strategies.fedavg:FedAvgDecay",
    "fedprox": "fedunseen.strategies.fedprox:FedProx",
    "fednova": "fedunseen.strategies.fednova:FedNova",
    "scaffold": "fedunseen.strategies.scaffold:Scaffold",
    "moon": "fedunseen.strategies.moon:Moon",
    "fedgloss": "fedunseen.strategies.fedgloss:FedGloSS",
    "fedavgm": "fedunseen.strategies.fedopt:FedAvgM",
    "fedadagrad": "fedunseen.strategies.fedopt:FedAdagrad",
    "fedyogi": "fedunseen.strategies.fedopt:FedYogi",
    "fedadam": "fedunseen.strategies.fedopt:FedAdam",
    "local": "fedunseen.strategies.alone:Local",
    "centralised": "fedunseen.strategies.alone:Centralised",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group
``fedunseen.strategies``.
"""

SHARED = ("base", "compression", "peers", "pipeline", "selective", "summed")
"""Modules that are no strategy. A further file of this folder is the strategy of its name."""

__getattr__, __dir__ = lazily(
    __name__, STRATEGIES,
    base=["Instruction", "Reply", "Strategy", "StrategySettings"],
    pipeline=["Filter", "FilterResult", "Pipeline", "RoundView"],
)  # fmt: skip
