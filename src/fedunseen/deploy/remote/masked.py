"""The engine of a deployment under masks: the coordinator sees the sum of a round, and no reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedunseen.core.errors import QuorumError
from fedunseen.core.parameters import to_device
from fedunseen.deploy.remote.clients import RECEIPT, MaskedParties
from fedunseen.deploy.remote.coordinator import HIDDEN, Distributed, Instructed, UpdateRequest
from fedunseen.deploy.remote.link import Content
from fedunseen.deploy.remote.patience import Patience
from fedunseen.deploy.secagg.party import Message
from fedunseen.deploy.secagg.primitives import SecAggError
from fedunseen.deploy.secagg.server import grouped
from fedunseen.federation.server_step import Arrivals, MaskedSum, bytes_sent


class Masked(Distributed):
    """A round is one sum under masks of the parties that have signed the plan."""

    clients: MaskedParties

    def arrivals(self, instructed: Instructed) -> Arrivals:
        """Return the sum of a round whose replies the coordinator cannot read."""
        instructed = replace(instructed, clients=self.clients.session.enrolled(instructed.clients))
        self.clients.agree_on_plan(
            self.strategy, self.settings.quorum, instructed.sent, instructed.clients
        )
        masked, messages = self._sum(instructed)
        reply = replace(
            masked.reply, update=to_device(dict(masked.reply.update), instructed.device)
        )
        states = {client: {RECEIPT: torch.tensor(instructed.round)} for client in masked.clients}
        dropped = {
            client: masked.refused.get(client, self.silence(client))
            for client in instructed.clients
            if client not in masked.clients
        }
        down = messages * bytes_sent(self.strategy, instructed.sent)
        arrived = Arrivals([], lambda place: {}, states, down, 0, dropped)
        return arrived.hidden(replace(masked, reply=reply))

    def quorum(self, clients: Sequence[int]) -> Callable[[], int]:
        """Return what counts how many of the clients have to answer, while there can be a sum."""
        count = super().quorum(clients)

        def need() -> int:
            revoked = [party.name for party in self.parties if party.revoked]
            self.clients.session.check_list(revoked)
            return count()

        return need

    def blame(self, arrived: Arrivals) -> str:
        """Return the remedy: masks hide the rest."""
        return HIDDEN

    def read_answer(self, request: UpdateRequest, answer: Content) -> Message:
        """Return the keys of a party's answer."""
        return self.clients.session.read_keys(answer)

    def _sum(self, instructed: Instructed) -> tuple[MaskedSum, int]:
        """Return the sum of a masked round, and how many instructions were sent."""
        session = self.clients.session
        place = {party.name: client for client, party in enumerate(self.parties)}
        messages = 0

        def ask_keys(requests: Mapping[str, Message]) -> Iterable[tuple[str, Any]]:
            nonlocal messages
            who = sorted(place[name] for name in requests)
            request = next(iter(requests.values()))
            answers = self.ask(replace(instructed, clients=who), request)
            messages += answers.requested
            for client in who:
                why = answers.refused.get(client)
                refusal = None if why is None else {"error": why}
                yield self.parties[client].name, answers.read.get(client, refusal)

        try:
            total = session.sum(
                instructed.round,
                instructed.sent,
                self.quorum(instructed.clients),
                instructed.clients,
                ask_keys,
                Patience(self.settings.patience, self.clients.pause, self.clients.wait),
            )
        except QuorumError as error:
            raise QuorumError("".join([str(error), *grouped(session.left_out)])) from None
        except SecAggError as error:  # a resume decides; a stored total is opened then
            raise QuorumError(
                f"round {instructed.round + 1} has no sum under masks: {error}: fix that, or "
                "change engine.quorum, engine.timeout or engine.patience, and continue with "
                "--resume"
            ) from None
        return total, messages
