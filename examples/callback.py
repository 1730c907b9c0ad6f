"""Stop training early with a callback, in a loop of your own and in a run.

python examples/callback.py
"""

from fedunseen import Benchmark, Callback, Experiment, Federation, Partition, fit, partitions, run
from fedunseen.data.benchmarks.digit_pairs import DigitPairs
from fedunseen.federation.callbacks import Evaluate
from fedunseen.methods import FedZSL
from fedunseen.strategies import FedProx
from fedunseen.tasks.zero_shot import ZeroShotEvaluator


class EarlyStop(Callback):
    """Stop after some rounds without gain."""

    def __init__(self, patience):
        self.patience = patience

    def after_round(self, loop):
        if loop.rounds_since_best >= self.patience:
            loop.stop(f"no gain in {self.patience} rounds")


if __name__ == "__main__":
    benchmark: Benchmark = DigitPairs.load(DigitPairs.Settings(), 0)
    labels = benchmark.labels[benchmark.train]
    dealt = partitions.pccd(labels, clients=5)  # positions among the training samples
    clients = Partition.of([benchmark.train[ids] for ids in dealt])
    federation = Federation(
        benchmark, clients, FedZSL.on(benchmark, lr=0.3, kl=0.0), FedProx(mu=0.01)
    )
    loop = fit(
        federation,
        rounds=50,
        callbacks=[Evaluate(ZeroShotEvaluator(federation, benchmark)), EarlyStop(2)],
    )
    print(f"own loop: {len(loop.history)} rounds, ZSL {loop.metrics['zsl']:.1f} %")

    done = run(
        Experiment.load("digit-pairs", {"strategy.rounds": 15}),
        "runs/callback",
        callbacks=[EarlyStop(2)],
    )
    print(f"run: {done.result['rounds']} rounds, ZSL {done.result['zsl']:.1f} %")
