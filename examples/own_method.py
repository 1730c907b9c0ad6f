"""Add a term to FedZSL's loss and train with it, in one file.

    python examples/own_method.py

The command takes the same file:

    fedunseen run digit-pairs --plugin examples/own_method.py --set method.name=small-fedzsl
"""

import fedunseen
from fedunseen import Experiment, run
from fedunseen.methods import FedZSL
from fedunseen.pages.report import write_report


@fedunseen.register("method", "small-fedzsl")
class Small(FedZSL):
    """FedZSL with a penalty on large weights."""

    def loss(self, params, batch, context):
        loss, terms = super().loss(params, batch, context)
        small = params["g.weight"].square().mean()
        return loss + small, {**terms, "loss": loss + small, "small": small}


if __name__ == "__main__":
    settings = {"method.name": "small-fedzsl", "strategy.rounds": 5, "evaluation.selection": "last"}
    done = run(Experiment.load("digit-pairs", settings), "runs/own-method")
    print(f"ZSL {done.result['zsl']:.1f} %, report: {write_report(done)}")
