"""The two ends between which a federation lies: every client alone, and all data in one place."""

from collections.abc import Sequence

from fedunseen.core.parameters import Params
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import Instruction, Reply, Strategy


class Local(Strategy, name="local"):
    """Every client trains alone and keeps its model: FedZSL's "Baseline (phi)". Accuracies are
    means over clients.
    """

    merges = False
    one_model = False

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """Continue from the client's own model; in its first round, from the common
        initialization.
        """
        return Instruction({}, client_params=client_state or instruction.params)

    def finish(
        self, instruction: Instruction, result: LocalResult, client_state: Params
    ) -> tuple[Params, Params]:
        """Send nothing; keep the model."""
        return {}, {
            name: value.clone() for name, value in result.params.items()
        }  # they may be views of a whole round

    def merge(
        self, state: Params, params: Params, replies: Sequence[Reply], round: int
    ) -> tuple[Params, Params]:
        """There is nothing to merge."""
        return state, params


class Centralised(Strategy, name="centralised"):
    """All data at one client: FedZSL's "Centralized", the yardstick that a federation cannot have.

    A round is ``local_epochs`` passes over all data.
    """

    pools = True
