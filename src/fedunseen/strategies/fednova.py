"""FedNova (Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous
federated optimization").

A client that takes more steps moves further and so counts for more than its weight. FedNova merges
the *mean gradients* of the clients and then takes one step of the average length.
"""

from collections.abc import Sequence

from fedunseen.core.parameters import Params
from fedunseen.strategies.base import Reply, Strategy


class FedNova(Strategy, name="fednova"):
    r""":math:`w \leftarrow w + \eta\,(\sum_k p_k a_k) \sum_k p_k \Delta_k / a_k` (their Eqs. 6-7).

    a_k is how far client k's optimiser would have gone along a constant gradient: ``tau_k`` steps,
    or more with momentum. With equal a_k this is FedAvg.
    """

    lengths = "model"

    def merge(
        self, state: Params, params: Params, replies: Sequence[Reply], round: int
    ) -> tuple[Params, Params]:
        """Merge normalized updates; what no phase updates stays as it is."""
        if not replies:
            return state, params
        weights = self.reply_weights(replies)
        step = self.server_step(round)
        merged = {name: value.clone() for name, value in params.items()}
        for name in replies[0].step_lengths:
            lengths = [reply.step_lengths[name] for reply in replies]
            mean = sum(weight * length for weight, length in zip(weights, lengths, strict=True))
            for weight, length, reply in zip(weights, lengths, replies, strict=True):
                merged[name].add_(reply.update[name], alpha=step * mean * weight / length)
        return state, merged | self.merged_statistics(params, replies)
