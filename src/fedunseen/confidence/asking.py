"""The message in which parties count how sure models without some classes are of their samples."""

from collections.abc import Sequence

from fedunseen.confidence.counted import infeasible, no_counts
from fedunseen.core.parameters import Params
from fedunseen.strategies import Instruction, Reply, Strategy
from fedunseen.strategies.summed import Summed, added


class CountedAnswers(Summed):
    """Sends the sums of all, and adds up the counts of the clients' answers: one round.

    Attributes:
        question: what clients are sent; set before the round.
    """

    def __init__(self, inner: Strategy, classes: int) -> None:
        super().__init__(inner, no_counts(classes))
        self.classes = classes
        self.question: Params = {}

    @property
    def rounds(self) -> int:
        """One."""
        return 1

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Send the question."""
        return Instruction(self.question)

    def check(self, reply: Reply) -> str:
        """Return why no answers can have these counts, or ""."""
        classes = reply.classes if reply.client >= 0 else self.classes
        why = infeasible(dict(reply.update), classes)
        return (
            f"its counts cannot be those of any answers ({why}): leave it out, or let it send them "
            "again"
            if why
            else ""
        )

    def merge(
        self, state: Params, params: Params, replies: Sequence[Reply], round: int
    ) -> tuple[Params, Params]:
        """Return the counts of all clients."""
        return {}, added([dict(reply.update) for reply in replies])
