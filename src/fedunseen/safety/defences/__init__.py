"""Defences: rules of the server for which replies are merged, and screening of samples at the
clients.
"""

DEFENCES = {
    "none": "fedunseen.safety.defences.base:Defence",
    "norm-clip": "fedunseen.safety.defences.rules:NormClip",
    "clip-noise": "fedunseen.safety.defences.rules:ClipNoise",
    "median": "fedunseen.safety.defences.rules:Median",
    "trimmed-mean": "fedunseen.safety.defences.rules:TrimmedMean",
    "robust-learning-rate": "fedunseen.safety.defences.rules:RobustLearningRate",
    "krum": "fedunseen.safety.defences.rules:Krum",
    "multi-krum": "fedunseen.safety.defences.rules:MultiKrum",
    "bulyan": "fedunseen.safety.defences.rules:Bulyan",
    "flame": "fedunseen.safety.defences.rules:Flame",
    "class-probes": "fedunseen.safety.defences.class_probes:ClassProbes",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group
``fedunseen.defences``.
"""

SCREENINGS = {
    "none": "fedunseen.core.settings:Nothing",
    "magnitude": "fedunseen.safety.defences.screening:Magnitude",
}
"""What a client does about bad samples: name -> class. Entry-point group
``fedunseen.screenings``.
"""

SHARED = ("base", "screening")
"""Modules that are no defence. A further file of this folder is the defence of its name."""
