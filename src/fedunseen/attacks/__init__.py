"""Attacks: backdoors and forged updates of malicious clients, and samples recovered from gradients."""

ATTACKS = {
    "none": "fedunseen.core.settings:Nothing",
    "backdoor": "fedunseen.attacks.backdoor:Backdoor",
    "label-flip": "fedunseen.attacks.base:LabelFlip",
    "sign-flip": "fedunseen.attacks.base:SignFlip",
    "gaussian": "fedunseen.attacks.base:Gaussian",
    "nan": "fedunseen.attacks.base:NaN",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group ``fedunseen.attacks``."""
