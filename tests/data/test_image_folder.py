import re
import shutil

import numpy as np
import pytest
from described import per_class, roles, splits

from fedunseen.data.benchmarks.image_folder import ImageFolder
from fedunseen.data.io.images import ImageBytes, read_image
from published_layouts import write_image
from refusals import message_of

CLASSES = """name,split,size,fur: long,fur: short
polar bear,seen,0.9,1,0
cat,seen,0.2,0,1
dog,validation,0.4,0.5,0.5
Wolf,unseen,0.5,0.8,0.2
unicorn,unseen,0.8,0.1,0.9
mammoth,,1,1,0
"""
NAMES = ("polar bear", "cat", "dog", "Wolf", "unicorn", "mammoth")


@pytest.fixture
def root(tmp_path):
    """Ten images of each class with a folder; the unicorn is only described, the mammoth neither
    seen nor unseen.
    """
    (tmp_path / "classes.csv").write_text(CLASSES)
    for c, name in enumerate(("Polar_Bear", "cat", "dog", "wolf", "mammoth")):
        for i in range(10):
            write_image(
                tmp_path / name / f"{i}.{'png' if i % 2 else 'JPEG'}", 100 * c + i, (12 + i, 10)
            )
    return tmp_path


def load(root, seed=0, **settings):
    return ImageFolder.load(ImageFolder.Settings(root=root, size=8, **settings), seed)


def refusal(root, **settings):
    return message_of(load, root, **settings)


def test_a_folder_a_class(root):
    made = load(root)
    assert (made.name, made.space.names) == (f"images/{root.name}", NAMES)
    assert (roles(made.space), made.space.attribute_groups) == (
        ([0, 1, 2], [2], [3, 4]),
        {"fur": (1, 2)},
    )
    assert made.features.shape == (40, 3, 8, 8)  # no one looks at a mammoth
    assert per_class(made) == [[8, 8, 8], [2, 2, 2], [0, 0, 0, 10]]
    assert np.array_equal(made.features[:1], read_image(root / "Polar_Bear" / "0.JPEG", 8, 9))
    wolf = ImageBytes((root / "wolf" / "3.png").read_bytes(), "3.png")
    assert np.array_equal(
        made.features[33:34], ImageFolder.read(wolf, ImageFolder.Settings(root=root, size=8))
    )


def test_the_run_s_seed_draws_the_tests(root):
    first, again, other = (splits(load(root, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    assert per_class(load(root, test_share=0.5)) == [[5, 5, 5], [5, 5, 5], [0, 0, 0, 10]]


def test_train_and_test_folders_are_respected(root):
    (root / "train").mkdir()
    for name in ("Polar_Bear", "cat", "dog", "wolf"):
        (root / name).rename(root / "train" / name)
        for i in range(3):
            write_image(root / "test" / name / "more" / f"{i}.png", i, (9, 9))
    assert per_class(load(root)) == [
        [10, 10, 10],
        [3, 3, 3],
        [0, 0, 0, 13],
    ]  # all of an unseen class


def test_names_alone_are_described_by_a_text_encoder(root, monkeypatch):
    heard = []

    def embed(texts, encoder):
        heard.append((list(texts), encoder))
        return np.arange(1, 1 + 3 * len(texts), dtype=np.float32).reshape(-1, 3)

    monkeypatch.setattr(pytest.importorskip("fedunseen.encoders.text"), "embed_texts", embed)
    (root / "classes.csv").write_text(re.sub("^(.*?,.*?),.*", r"\1", CLASSES, flags=re.MULTILINE))
    space = load(root, text_encoder="some/model", prompt="a {} in the snow").space
    assert heard == [([f"a {name} in the snow" for name in NAMES], "some/model")]
    assert (space.semantics[1].tolist(), space.attribute_names) == (
        [4.0, 5.0, 6.0],
        ("text 0", "text 1", "text 2"),
    )
    assert space.unseen.tolist() == [3, 4]
    assert refusal(root).startswith(
        f"{root / 'classes.csv'} has no attributes: add a column for each, or describe"
    )


def table(old, new):
    return lambda root: (root / "classes.csv").write_text(CLASSES.replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "cat").rename(root / "cta"),
         "the folder {root}/cta is of no class in {root}/classes.csv: did you mean 'cat'?"),
        (lambda root: write_image(root / "xyz" / "1.png", 0), "the folder {root}/xyz is of no "
                                                              "class in"),
        (table("unicorn,unseen", "unicorn,seen"), "the seen class 'unicorn' of {root}/classes.csv "
                                                  "has no folder in"),
        (table("unicorn", "Polar_Bear"), "{root}/classes.csv: the classes 'polar bear' and "
                                         "'Polar_Bear' collide"),
        (lambda root: write_image(root / "CAT" / "1.png", 0), "{root}: the folders 'CAT' and 'cat' "
                                                              "collide (case,"),
        (lambda root: [path.unlink() for path in (root / "dog").iterdir()], "the folder {root}/dog "
                                                                            "has no image: add"),
        (lambda root: (root / "classes.csv").unlink(), "{root}/classes.csv is missing: write one "
                                                       "with the columns"),
        (lambda root: (root / "train").mkdir(), "{root} has the folder train, but not test: add "
                                                "it, or put the"),
        (lambda root: (root / "cat" / "notes.txt").write_text("whiskers"), "{root}/cat/notes.txt "
                                                                           "is not a readable"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(root, spoil, message):
    spoil(root)
    assert refusal(root).startswith(message.format(root=root))


def test_a_party_needs_no_folder_of_every_class_but_an_image_that_somebody_looks_at(root):
    for name in ("cat", "dog", "wolf"):
        shutil.rmtree(root / name)
    (root / "classes.csv").write_text(CLASSES.replace("validation", "seen"))
    assert refusal(root).startswith("the seen class 'cat' of ")
    made = load(root, part=True)
    assert (made.part, per_class(made), len(made.space.validation)) == (True, [[10], [], []], 0)
    shutil.rmtree(root / "Polar_Bear")  # the mammoth's are left
    assert refusal(root, part=True).startswith(f"{root} has no image of a seen or unseen class of ")


@pytest.mark.parametrize(
    ("half", "counts"), [("train", [[0, 10], [], []]), ("test", [[], [0, 10], []])]
)
def test_a_party_needs_but_one_of_train_and_test(root, half, counts):
    (root / half).mkdir()
    (root / "cat").rename(root / half / "cat")
    assert "folder" in refusal(root)
    assert per_class(load(root, part=True)) == counts


def test_the_spelling_of_a_folder_does_not_count_and_two_spellings_collide(root):
    whole = load(root)
    (root / "classes.csv").write_text(
        "\ufeff" + CLASSES.replace("cat,", "ze\u0300bre,"), "utf-8"
    )  # byte-order mark
    (root / "cat").rename(root / "Z\u00c8BRE")
    renamed = load(root)
    assert renamed.space.names[1] == "ze\u0300bre"
    assert per_class(renamed) == per_class(whole)
    assert renamed.fingerprint() != whole.fingerprint()  # a name belongs to it
    write_image(root / "ze\u0300bre" / "0.png", 1)
    assert refusal(root).startswith(
        f"{root}: the folders 'ZÈBRE' and 'zèbre' collide (case, '_' and space do not"
    )


def test_a_class_with_one_picture_trains_on_it(root):
    for path in sorted((root / "cat").iterdir())[1:]:
        path.unlink()
    assert per_class(load(root)) == [[8, 1, 8], [2, 0, 2], [0, 0, 0, 10]]
    for name in ("Polar_Bear", "dog"):
        for path in sorted((root / name).iterdir())[1:]:
            path.unlink()
    assert refusal(root).startswith(
        f"images/{root.name} has no test sample of a seen class: give some (a class with"
    )
