"""SCAFFOLD (Karimireddy et al. 2020): control variates take out of every local step what is
peculiar to the client.

Steps go along g - c_k + c; both begin at zero. Where the paper divides by (steps x learning rate),
the distance that the optimiser goes along a constant gradient is taken: with momentum, the paper's
number is too small.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedunseen.core.parameters import Params, under, within, zeros
from fedunseen.core.phases import GradientFunction, Step, Terms
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import Instruction, Reply, Strategy, mean_of


class Scaffold(Strategy, name="scaffold"):
    r"""Option II of the paper:
    :math:`c_k^+ = c_k - c + (w - w_k) / (\mathrm{steps} \cdot \mathrm{lr})`.

    The server reads the change of c_k off the client's update, weighted as updates are; with
    ``weights = "uniform"`` this is the paper's rule.
    """

    lengths = "memory"
    needs_exact_update = True

    def init(self, params: Params, clients: int) -> Params:
        """Return c = 0, and the number of clients."""
        return under("c/", zeros(params)) | {"clients": torch.tensor(float(clients))}

    def count_clients(self, state: Params, present: int, new: int) -> Params:
        """Let c stay the mean of the present clients' c_k: those of new ones are zero."""
        return mean_of(present, new, under("c/", within("c/", state)))

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Send the model and c."""
        return Instruction(params, under("c/", within("c/", state)))

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """Add the client's own c_k, zero in its first round."""
        return replace(
            instruction, kept=under("own/", client_state or zeros(within("c/", instruction.extras)))
        )

    def correct(self, gradient: GradientFunction) -> GradientFunction:
        """Step along g - c_k + c."""

        def controlled(params: Params, step: Step) -> tuple[Params, Terms]:
            grads, terms = gradient(params, step)
            extras = step.extras
            return {
                name: g - extras[f"own/{name}"] + extras[f"c/{name}"] for name, g in grads.items()
            }, terms

        return controlled

    def finish(
        self, instruction: Instruction, result: LocalResult, client_state: Params
    ) -> tuple[Params, Params]:
        """Send the update, keep c_k+."""
        update, _ = super().finish(instruction, result, client_state)
        control = within("own/", instruction.kept)
        global_c = within("c/", instruction.extras)
        for name, length in result.step_lengths.items():
            control[name] = (control[name] - global_c[name]).sub_(update[name] / length)
        return update, control

    def merge(
        self, state: Params, params: Params, replies: Sequence[Reply], round: int
    ) -> tuple[Params, Params]:
        """Merge as FedAvg does, and move c by the mean change of the clients' c_k."""
        if not replies:
            return state, params
        c = within("c/", state)
        share = len(replies) / float(state["clients"])
        step = self.server_step(round)
        merged = {name: value.clone() for name, value in params.items()}
        # The change of c_k is g_k - c, for any c_k: g_k, the client's mean gradient, is what is
        # left of its update, turned round, when it is divided by how far the client went. The
        # weights sum to one.
        change = {name: -c[name] for name in replies[0].step_lengths}
        for weight, reply in zip(self.reply_weights(replies), replies, strict=True):
            for name, value in reply.update.items():  # one pass for both: updates may be on disk
                merged[name].add_(value, alpha=step * weight)
                if name in change:
                    change[name].sub_(value / reply.step_lengths[name], alpha=weight)
        new = {name: c[name] + share * change[name] if name in change else c[name] for name in c}
        merged |= self.merged_statistics(params, replies)
        return under("c/", new) | {"clients": state["clients"]}, merged
