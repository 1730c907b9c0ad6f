"""FedGloSS (Caldarola et al. 2025): sharpness-aware minimization of the global loss, "Beyond local
sharpness".

Clients train from w~ = w + rho g / ||g||, g being the last pseudo-gradient, and the server steps
from w. Dual variables s_k and sigma keep the clients together. Where the authors' code and the
method of multipliers differ, the latter is done: sigma changes by the sum of the clients' changes
over beta N, weighted as the model, and s_k once a round.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedunseen.core.parameters import Params, add_scaled, is_statistic, under, within, zeros
from fedunseen.core.phases import GradientFunction, Step, Terms
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import Instruction, Reply, Strategy, StrategySettings, mean_of


class FedGloSSSettings(StrategySettings):
    """Settings of FedGloSS; the paper's are for CIFAR, DistZSL gives none."""

    rho: float = Field(0.05, ge=0)
    """Radius of the server's SAM step; 0: none. The paper: 0.15 (CIFAR-10) and 0.01 (CIFAR-100)."""
    rho_local: float = Field(0.05, ge=0)
    """Radius of the clients' SAM steps; 0: plain SGD. The paper: 0.15 and 0.2."""
    beta: float = Field(100.0, gt=0)
    """Penalty of the method of multipliers: the larger, the weaker the pull. The paper: 10 and
    100.
    """
    dual: bool = True
    """Keep dual variables; false leaves sharpness-aware FedAvg."""
    warmup_rounds: int = Field(10, ge=0)
    """Rounds over which both radii rise from 0.001, as in the paper (a fifth or more of its
    rounds).
    """

    @model_validator(mode="after")
    def _check_beta(self) -> "FedGloSSSettings":
        usual = FedGloSSSettings.model_fields["beta"].default
        if not self.dual and self.beta != usual:
            raise ValueError(
                f"beta = {self.beta:g} has no effect with dual = false: leave beta at {usual:g}, "
                "or set dual = true"
            )
        return self


class FedGloSS(Strategy, name="fedgloss"):
    """Global sharpness-aware minimization with dual variables; rho = rho_local = 0 and no dual
    variables is FedAvg.
    """

    Settings = FedGloSSSettings
    settings: FedGloSSSettings
    needs_exact_update = True

    def init(self, params: Params, clients: int) -> Params:
        """Return sigma = 0 and the number of clients; there is no pseudo-gradient yet."""
        return under("sigma/", zeros(params)) | {"clients": torch.tensor(float(clients))}

    def count_clients(self, state: Params, present: int, new: int) -> Params:
        """Let sigma stay the mean of the present clients' s_k: those of new ones are zero."""
        sigma = mean_of(present, new, under("sigma/", within("sigma/", state)))
        return {**state, **sigma}

    def radius(self, full: float, round: int) -> float:
        """Return a radius in ``round``: it rises in a straight line from 0.001 (or from less, if it
        is less).
        """
        start = min(0.001, full)
        rise = self.settings.warmup_rounds
        return full if round >= rise else start + (full - start) * round / rise

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Send w~, also as the point of the pull, and the radius of the client's own SAM."""
        gradient = within("gradient/", state)
        start = params
        if gradient and self.settings.rho:
            step = self.radius(self.settings.rho, round) / (_norm(gradient) + 1e-12)
            start = params | {name: params[name] + step * g for name, g in gradient.items()}
        extras: Params = {}
        if self.settings.rho_local:
            device = next(iter(params.values())).device
            extras["rho"] = torch.tensor(self.radius(self.settings.rho_local, round), device=device)
        if self.settings.dual:
            extras |= under("start/", {name: start[name] for name in within("sigma/", state)})
        return Instruction(start, extras)

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """Add the client's dual variable s_k, zero in its first round."""
        if not self.settings.dual:
            return instruction
        return replace(
            instruction,
            kept=under("dual/", client_state or zeros(within("start/", instruction.extras))),
        )

    def correct(self, gradient: GradientFunction) -> GradientFunction:
        """Take the gradient where SAM says, less s_k, with a pull of strength 1 / beta towards
        w~.
        """

        def sharpness_aware(params: Params, step: Step) -> tuple[Params, Terms]:
            grads, terms = gradient(params, step)
            extras = step.extras
            if self.settings.rho_local:
                size = extras["rho"] / (_norm(grads) + 1e-12)
                # The second pass is not a batch of its own: what it does to running statistics is
                # thrown away.
                fixed = {
                    name: v.clone() if is_statistic(name) else v for name, v in step.fixed.items()
                }
                above = {name: params[name] + size * g for name, g in grads.items()}
                grads, _ = gradient(above, step._replace(fixed=fixed))
            if self.settings.dual:
                pull = {
                    name: (params[name] - extras[f"start/{name}"]) / self.settings.beta
                    for name in grads
                }
                grads = {name: g - extras[f"dual/{name}"] + pull[name] for name, g in grads.items()}
            return grads, terms

        return sharpness_aware

    def finish(
        self, instruction: Instruction, result: LocalResult, client_state: Params
    ) -> tuple[Params, Params]:
        """Send the update, keep s_k - (w_k - w~) / beta."""
        update, _ = super().finish(instruction, result, client_state)
        if not self.settings.dual:
            return update, client_state
        dual = within("dual/", instruction.kept)
        moved = {name: result.params[name] - instruction.params[name] for name in dual}
        return update, {
            name: value - moved[name] / self.settings.beta for name, value in dual.items()
        }

    def merge(
        self, state: Params, params: Params, replies: Sequence[Reply], round: int
    ) -> tuple[Params, Params]:
        """Step from w along the pseudo-gradient, then by -beta sigma."""
        if not replies:
            return state, params
        sigma = within("sigma/", state)
        updates = [{name: reply.update[name] for name in sigma} for reply in replies]
        mean = add_scaled(zeros(sigma), updates, self.reply_weights(replies))
        merged = params | {
            name: params[name] + self.server_step(round) * change for name, change in mean.items()
        }
        if self.settings.dual:
            share = -len(replies) / (self.settings.beta * float(state["clients"]))
            sigma = add_scaled(
                sigma, updates, [share * weight for weight in self.reply_weights(replies)]
            )
            merged |= {
                name: merged[name] - self.settings.beta * value for name, value in sigma.items()
            }
        gradient = {name: -change for name, change in mean.items()}
        new = under("sigma/", sigma) | under("gradient/", gradient) | {"clients": state["clients"]}
        return new, merged | self.merged_statistics(params, replies)


def _norm(params: Params) -> Tensor:
    """Return the length of all parameters taken as one vector; added in order of names, which a
    file does not keep.
    """
    return torch.stack([params[name].square().sum() for name in sorted(params)]).sum().sqrt()
