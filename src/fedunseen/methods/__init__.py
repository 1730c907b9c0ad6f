"""Methods, one file each: what a client learns and how a class is scored.

Every class of the table below can be imported from here; :meth:`Method.on` makes one for a
benchmark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.registry import lazily

if TYPE_CHECKING:
    from fedunseen.methods.base import LEFT_TO_DATA, Candidates, Method, MethodSettings

__all__ = ["LEFT_TO_DATA", "METHODS", "Candidates", "Method", "MethodSettings"]

METHODS = {
    "fedzsl": "fedunseen.methods.fedzsl:FedZSL",
    "distzsl": "fedunseen.methods.distzsl:DistZSL",
    "apn": "fedunseen.methods.apn:APN",
    "gem": "fedunseen.methods.gem:GEM",
    "msdn": "fedunseen.methods.msdn:MSDN",
    "svip": "fedunseen.methods.svip:SVIP",
    "clswgan": "fedunseen.methods.clswgan:CLSWGAN",
    "vaegan": "fedunseen.methods.vaegan:VAEGAN",
    "free": "fedunseen.methods.free:FREE",
    "maml": "fedunseen.methods.maml:MAML",
    "maml-mi": "fedunseen.methods.maml_mi:MAMLMI",
    "maml-mi-adv": "fedunseen.methods.maml_mi_adv:MAMLMIAdv",
    "protonet": "fedunseen.methods.protonet:ProtoNet",
    "classifier": "fedunseen.methods.classifier:Classifier",
    "eszsl": "fedunseen.methods.closed_form.eszsl:ESZSL",
    "ridge": "fedunseen.methods.closed_form.ridge:Ridge",
    "sae": "fedunseen.methods.closed_form.sae:SAE",
    "auto": "fedunseen.methods.auto:Auto",
    "gaussian": "fedunseen.methods.closed_form.gaussian:Gaussian",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group
``fedunseen.methods``.
"""

SHARED = ("base", "episodic", "generative", "maps", "networks")
"""Modules that are no method. A further file of this folder is the method of its name."""

__getattr__, __dir__ = lazily(
    __name__, METHODS, base=["LEFT_TO_DATA", "Candidates", "Method", "MethodSettings"]
)
