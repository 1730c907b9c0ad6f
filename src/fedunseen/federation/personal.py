"""A model for each client: the merged one, trained further on the client's own samples once all rounds are over.

Wang et al. 2019, "Federated evaluation of on-device personalization". Parameters that never travel
(``strategy.shared``; FedPer, Arivazhagan et al. 2019) are each client's own from the start. Nothing of it leaves a
client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.parameters import Params, finite
from fedunseen.engines import InProcess, Worker
from fedunseen.engines.local.worker import Work
from fedunseen.federation.federation import Federation, State
from fedunseen.strategies import Instruction
from fedunseen.strategies.fedavg import FedAvg


def personal_models(
    federation: Federation, merged: Params, state: State, epochs: int, clients: Collection[int] | None = None
) -> Iterator[tuple[int, Params]]:
    """Give each client that holds a sample its own model, one after another, in client order.

    Args:
        federation: on the in-process engine, which has the clients' samples.
        merged: the model that is reported.
        state: after the round whose model ``merged`` is; it holds the parameters that never travel.
        epochs: passes over a client's samples; 0: none, so that a client's model is the merged one with what never
            travels, as FedPer and FedRep leave it.
        clients: only these; by default all.

    Yields:
        The client, and all parameters of its model.

    Raises:
        FedUnseenError: training a client's model diverged.

    Example:
        >>> from fedunseen.data import Benchmark
        >>> from fedunseen.federation.partition import Partition
        >>> from fedunseen.methods import FedZSL
        >>> animals = {"horse": [1, 0, 0], "tiger": [1, 1, 0], "cow": [1, 0.1, 0.3], "zebra": [1, 0.9, 0.2]}
        >>> seen = ["horse", "tiger", "cow"]
        >>> benchmark = Benchmark.from_arrays([animals[name] for name in seen], seen, animals)
        >>> method = FedZSL.on(benchmark, lr=0.1, kl=0.0, consistency=0.0)
        >>> federation = Federation(benchmark, Partition.of([[0], [1, 2]]), method, FedAvg())
        >>> state, _ = federation.round(federation.start())
        >>> [client for client, model in personal_models(federation, state.params, state, 1)]
        [0, 1]
    """
    engine = federation.engine
    assert isinstance(engine, InProcess)
    worker = engine.worker
    longer = FedAvg(local_epochs=max(1, epochs))
    plain = Worker(
        worker.method, longer, worker.trainer.inputs, worker.trainer.labels, worker.samples,
        worker.seed, mode="one-at-a-time", bf16=worker.trainer.bf16,
    )  # fmt: skip
    for client, rows in enumerate(worker.samples):
        if not len(rows) or (clients is not None and client not in clients):
            continue
        start = {**merged, **federation.own(state, client)}
        if not epochs:
            yield client, start
            continue
        # A round that never comes: its batches are drawn for this purpose alone.
        ((reply, _),) = plain.round([Work(client, Instruction(start), {})], state.round)
        model = plain.strategy.local_model(start, reply.update)
        if not finite(model):
            raise FedUnseenError(
                f"training the own model of client {client} diverged: lower method.lr or strategy.personal_epochs"
            )
        yield client, model
