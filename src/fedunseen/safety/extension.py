"""What safety adds to experiments: the sections ``screening``, ``defence`` and ``privacy``."""

from fedunseen.core.extensions import Section

SECTIONS = (
    Section(
        "screening",
        table="fedunseen.safety.defences:SCREENINGS",
        entry_points="fedunseen.screenings",
        base="fedunseen.safety.defences.screening:Magnitude",
        optional=True,
    ),
    Section(
        "defence",
        table="fedunseen.safety.defences:DEFENCES",
        entry_points="fedunseen.defences",
        base="fedunseen.safety.defences.base:Defence",
        folder="fedunseen.safety.defences",
        optional=True,
        kept=True,
    ),
    Section(
        "privacy", settings="fedunseen.safety.privacy.client_level:PrivacySettings", optional=True
    ),
)
HOOKS = (
    "fedunseen.safety.hooks:Privacy",
    "fedunseen.safety.hooks:Defence",
    "fedunseen.safety.hooks:Screening",
)
COST = ("fedunseen.safety.privacy.client_level:plan_cost",)
RULES = ("fedunseen.safety.rules",)
