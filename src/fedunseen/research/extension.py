"""What research adds to experiments: the section ``attack``, and a paper's data set."""

from fedunseen.core.extensions import Command, Section

SECTIONS = (
    Section(
        "attack",
        table="fedunseen.research.attacks:ATTACKS",
        entry_points="fedunseen.attacks",
        base="fedunseen.research.attacks.base:Attack",
        folder="fedunseen.research.attacks",
        optional=True,
        kept=True,
    ),
)
NAMES = {"data": {"deepfashion": "fedunseen.research.papers.distzsl.deepfashion:DeepFashion"}}
HOOKS = ("fedunseen.research.hooks:Attacks",)
RULES = ("fedunseen.research.rules",)
COMMANDS = (
    Command("sweep", "fedunseen.research.cli.sweep:sweep", "Research"),
    Command("sweeps", "fedunseen.research.cli.sweep:sweeps", "Research"),
    Command("bench", "fedunseen.research.cli.sweep:bench", "Research"),
    Command("attack", "fedunseen.research.cli.attack:attack_app", "Research", group=True),
)
