"""Strategies, one file each: what is shared, how a client is corrected, how updates merge."""

from fedunseen.strategies.base import Instruction, Reply, Strategy, StrategySettings

__all__ = ["STRATEGIES", "Instruction", "Reply", "Strategy", "StrategySettings"]

STRATEGIES = {
    "fedavg": "fedunseen.strategies.fedavg:FedAvg",
    "fedavg-decay": "fedunseen.strategies.fedavg:FedAvgDecay",
    "fedprox": "fedunseen.strategies.fedprox:FedProx",
    "fednova": "fedunseen.strategies.fednova:FedNova",
    "scaffold": "fedunseen.strategies.scaffold:Scaffold",
    "moon": "fedunseen.strategies.moon:Moon",
    "fedgloss": "fedunseen.strategies.fedgloss:FedGloSS",
    "local": "fedunseen.strategies.alone:Local",
    "centralised": "fedunseen.strategies.alone:Centralised",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group ``fedunseen.strategies``."""
