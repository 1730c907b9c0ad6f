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
    """Give each client that holds a sample its own model, one after another, in client order."""
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
