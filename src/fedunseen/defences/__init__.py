"""Defences: rules of the server for which replies are merged, and screening of samples at the clients."""

DEFENCES = {
    "none": "fedunseen.defences.base:Defence",
    "norm-clip": "fedunseen.defences.rules:NormClip",
    "clip-noise": "fedunseen.defences.rules:ClipNoise",
    "median": "fedunseen.defences.rules:Median",
    "trimmed-mean": "fedunseen.defences.rules:TrimmedMean",
    "robust-learning-rate": "fedunseen.defences.rules:RobustLearningRate",
    "krum": "fedunseen.defences.rules:Krum",
    "multi-krum": "fedunseen.defences.rules:MultiKrum",
    "bulyan": "fedunseen.defences.rules:Bulyan",
    "flame": "fedunseen.defences.rules:Flame",
    "class-probes": "fedunseen.defences.class_probes:ClassProbes",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group ``fedunseen.defences``."""

SCREENINGS = {"none": "fedunseen.core.settings:Nothing", "magnitude": "fedunseen.defences.screening:Magnitude"}
"""What a client does about bad samples: name -> class. Entry-point group ``fedunseen.screenings``."""
