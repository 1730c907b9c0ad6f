"""A worker some of whose clients are malicious."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.federation.worker import Work, Worker
from fedunseen.research.attacks.base import Attack, LocalData
from fedunseen.strategies import Reply


class MaliciousWorker(Worker):
    """Does rounds as :class:`~fedunseen.federation.worker.Worker` does, and attacks with the
    clients that do.

    First every client trains as if it were honest, and then a malicious one once more on what it
    makes of its data. So an attack changes no bit of what the others send.
    """

    attack: Attack

    @classmethod
    def around(cls, worker: Worker, attack: Attack) -> "MaliciousWorker":
        """Return a worker of the same clients, and let some of them carry out the attack."""
        malicious = cls.__new__(cls)
        vars(malicious).update(vars(worker))
        malicious.attack = attack
        return malicious

    def round(self, works: Sequence[Work], round: int) -> Iterator[tuple[Reply, Params]]:
        """Do a round for several clients: each one's reply, and its state for its next round, in
        the order given.
        """
        for work, done in zip(works, super().round(works, round), strict=True):
            yield (
                self._attack(work, *done, round) if self.attack.active(work.client, round) else done
            )

    def _attack(
        self, work: Work, reply: Reply, client_state: Params, round: int
    ) -> tuple[Reply, Params]:
        """Return what a malicious client sends instead of its honest reply."""
        draws = stream(self.seed, "attack", round, work.client)
        task = self.task(work, round)
        trainer = self.trainer
        # Calibrated on the samples that the client has stored, before it poisons them.
        task = trainer.calibrated(task)
        plain = trainer.plain()
        ignores = plain is not trainer and self.attack.settings.ignore_defence
        trainer = plain if ignores else trainer
        rows = torch.from_numpy(task.samples).to(self.device)
        data = LocalData(trainer.inputs[rows], trainer.labels[rows], task.plans)
        used = self.attack.poison(work.client, data, draws)
        if used is not data or ignores:
            task = replace(task, samples=np.arange(len(used.labels)), plans=used.plans)
            result = replace(trainer, inputs=used.inputs, labels=used.labels).train(task)
            reply, client_state = self.finish(work, result)
        return replace(reply, update=self.attack.forge(dict(reply.update), draws)), client_state
