"""Encoders: images and text to vectors, maps or tokens; frozen (features are computed once) or
trained in the model.
"""

ENCODERS = {
    "none": "fedunseen.encoders.backbone:NoEncoder",
    "conv": "fedunseen.encoders.conv:Conv",
    "conv4": "fedunseen.encoders.conv:Conv4",
    "resnet12": "fedunseen.encoders.conv:ResNet12",
    "gru": "fedunseen.encoders.gru:GRU",
    "resnet": "fedunseen.encoders.transformers:ResNet",
    "vit": "fedunseen.encoders.transformers:ViT",
    "efficientnet-lite": "fedunseen.encoders.efficientnet:EfficientNetLite",
    "vision": "fedunseen.encoders.vision:Vision",
    "tflite": "fedunseen.encoders.tflite:TFLite",
    "run": "fedunseen.experiment.run_encoder:RunEncoder",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group
``fedunseen.encoders``.
"""

SHARED = (
    "backbone",
    "efficientnet_network",
    "hub",
    "images",
    "sentences",
    "text",
    "word_vectors",
)
"""Modules that are no encoder. A further file of this folder is the encoder of its name."""
