"""Attacks: backdoors and forged updates of malicious clients, and samples recovered from
gradients.
"""

ATTACKS = {
    "none": "fedunseen.core.settings:Nothing",
    "backdoor": "fedunseen.research.attacks.backdoor:Backdoor",
    "label-flip": "fedunseen.research.attacks.base:LabelFlip",
    "sign-flip": "fedunseen.research.attacks.base:SignFlip",
    "gaussian": "fedunseen.research.attacks.base:Gaussian",
    "nan": "fedunseen.research.attacks.base:NaN",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group
``fedunseen.attacks``.
"""

SHARED = ("inversion", "leakage", "lenet", "malicious")
"""Modules that are no attack. A further file of this folder is the attack of its name."""
