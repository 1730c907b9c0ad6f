"""How sure an answer is: probabilities that hold, prediction sets, and samples unlike all known
ones.

A model's scores say which class is best, not how often that is right. Here seen classes play unseen
ones in turn (:mod:`~.folds`), and what a model without them says of samples that were held out
shows how often its answers are right (:mod:`~.fit`). No test sample and no label of an unseen class
takes part.
"""

from fedunseen.confidence.confidence import Confidence, UncalibratedWarning
from fedunseen.confidence.fit import fit
from fedunseen.confidence.folds import closed_form_folds
from fedunseen.confidence.held_out import HeldOut
from fedunseen.confidence.priors import Prior, offset_for, share_of_unseen

__all__ = [
    "Confidence",
    "HeldOut",
    "Prior",
    "UncalibratedWarning",
    "closed_form_folds",
    "fit",
    "offset_for",
    "share_of_unseen",
]
