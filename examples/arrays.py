"""Train two parties' model on arrays, and recognize a class that neither has.

python examples/arrays.py
"""

import numpy as np

from fedunseen import ZeroShotClassifier

# stripes, legs, water
animals = {
    "horse": [0, 1, 0],
    "tiger": [1, 0.8, 0],
    "seal": [0, 0, 1],
    "eel": [1, 0, 1],
    "frog": [0.2, 0.5, 0.5],
}
animals |= {
    "snake": [0.8, 0, 0.1],
    "otter": [0, 0.6, 0.8],
    "cow": [0.3, 1, 0.1],
    "zebra": [1, 1, 0.3],
}
rng = np.random.default_rng(0)
encoder = rng.normal(size=(3, 16))  # stands for your images and a network


def photos(names):
    """Return (n, 16) feature vectors of animals."""
    return np.array([animals[name] for name in names]) @ encoder + 0.4 * rng.normal(
        size=(len(names), 16)
    )


labels = np.repeat([name for name in animals if name != "zebra"], 50)
parties = np.repeat(["north", "south"], 200)
model = ZeroShotClassifier().fit(photos(labels), labels, classes=animals, groups=parties)

print(f"other animals recognized from new photos:   {model.score(photos(labels), labels):.0%}")
zebras = photos(["zebra"] * 40)
print(f"zebras recognized from their description: {np.mean(model.predict(zebras) == 'zebra'):.0%}")

unlabelled = photos(rng.choice(list(animals), 200))
adapted = model.adapt(unlabelled)
print(
    f"after adapting to 200 unlabelled photos:  {np.mean(adapted.predict(zebras) == 'zebra'):.0%}"
)

shown = model.learn(examples={"okapi": photos(["zebra"] * 5) + 0.5})
print("classes after learning from five examples:", ", ".join(shown.classes_))
