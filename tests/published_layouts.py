"""Small copies of the published layouts: a few classes, tiny JPEGs, every file where the authors
put it.
"""

import gzip
import io
import struct
import zipfile

import numpy as np
import scipy.io
from PIL import Image

from fedunseen.data.benchmarks import cifar100

CUB_PREFIXES = {
    "bill_shape": 9, "wing_color": 15, "upperparts_color": 15, "underparts_color": 15, "breast_pattern": 4,
    "back_color": 15, "tail_shape": 6, "upper_tail_color": 15, "head_pattern": 11, "breast_color": 15,
    "throat_color": 15, "eye_color": 14, "bill_length": 3, "forehead_color": 15, "under_tail_color": 15,
    "nape_color": 15, "belly_color": 15, "wing_shape": 5, "size": 5, "shape": 14, "back_pattern": 4, "tail_pattern": 4,
    "belly_pattern": 4, "primary_color": 15, "leg_color": 15, "bill_color": 15, "crown_color": 15, "wing_pattern": 4,
}  # fmt: skip
BIRDS = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross", "004.Groove_billed_Ani",
         "005.Crested_Auklet", "006.Least_Auklet")  # fmt: skip
ANIMALS = ("antelope", "grizzly+bear", "killer+whale", "beaver", "dalmatian", "persian+cat")
SCENES = ("a/abbey", "a/airport/airport", "a/airport/entrance", "a/alley", "z/zoo", "z/ziggurat")
THINGS = ("aeroplane", "bicycle", "bird", "donkey", "monkey", "wolf")
CLOTHES = (
    "Anorak",
    "Blazer",
    "Blouse",
    "Bomber",
    "Button-Down",
    "Cardigan",
    "Cape",
)  # no one wears a cape
PER_CLASS = 5


def write_image(path, seed, size=(20, 16)):
    """Write a picture whose pixels depend on ``seed`` alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, quality=95)


def write_text(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def cells(texts):
    """Return texts as MATLAB keeps them, a cell each."""
    made = np.empty((len(texts), 1), dtype=object)
    made[:, 0] = texts
    return made


def write_cub(root, images=True):
    """Write CUB-200-2011. Returns files, labels and the matrix of attributes."""
    files = [f"{name}/{name[4:]}_{i:04d}_{7 * i}.jpg" for name in BIRDS for i in range(PER_CLASS)]
    labels = np.repeat(np.arange(len(BIRDS)), PER_CLASS)
    attributes = [f"has_{group}::{i}" for group, n in CUB_PREFIXES.items() for i in range(n)]
    for path, texts in (("images.txt", files), ("image_class_labels.txt", labels + 1), ("classes.txt", BIRDS),
                        ("../attributes.txt", attributes)):  # fmt: skip
        write_text(root / path, [f"{i} {text}" for i, text in enumerate(texts, 1)])
    matrix = np.random.default_rng(1).uniform(0, 100, (len(BIRDS), len(attributes))).round(2)
    lines = [" ".join(map(str, row)) for row in matrix.tolist()]
    write_text(root / "attributes" / "class_attribute_labels_continuous.txt", lines)
    (root / "images").mkdir()
    for i, file in enumerate(files if images else ()):
        write_image(root / "images" / file, i)
    return files, labels, matrix


def write_awa2(root, unseen=("beaver", "dalmatian")):
    """Write Animals with Attributes 2. Returns files and labels in the order of the classes' names,
    and the matrix.
    """
    write_text(root / "classes.txt", [f"{i:8d}\t{name}" for i, name in enumerate(ANIMALS, 1)])
    write_text(root / "predicates.txt", [f"{i:6d}\tpredicate {i}" for i in range(1, 86)])
    matrix = np.random.default_rng(1).uniform(0, 100, (len(ANIMALS), 85)).round(2)
    matrix[0, 0] = -1.0  # not asked
    write_text(
        root / "predicate-matrix-continuous.txt",
        ["  ".join(map(str, row)) for row in matrix.tolist()],
    )
    write_text(root / "trainclasses.txt", [name for name in ANIMALS if name not in unseen])
    write_text(root / "testclasses.txt", unseen)
    files = [f"{name}/{name}_{10001 + i}.jpg" for name in sorted(ANIMALS) for i in range(PER_CLASS)]
    for i, file in enumerate(files):
        write_image(root / "JPEGImages" / file, i)
    return files, np.array([ANIMALS.index(file.partition("/")[0]) for file in files]), matrix


def write_sun(root):
    """Write the SUN Attribute Database. Returns files, labels and votes."""
    files = [f"{scene}/sun_{c}x{i}.jpg" for c, scene in enumerate(SCENES) for i in range(PER_CLASS)]
    votes = (np.random.default_rng(2).integers(0, 4, (len(files), 102)) / 3).astype(np.float64)
    root.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(root / "images.mat", {"images": cells(files)})
    scipy.io.savemat(
        root / "attributes.mat", {"attributes": cells([f"word {i}" for i in range(102)])}
    )
    scipy.io.savemat(root / "attributeLabels_continuous.mat", {"labels_cv": votes})
    for i, file in enumerate(files):
        write_image(root / "images" / file, i)
    return files, np.repeat(np.arange(len(SCENES)), PER_CLASS), votes


def write_apy(root):
    """Write aPascal and aYahoo: two objects a picture, the last three classes are Yahoo's."""
    data, voc = root / "attribute_data", root / "VOCdevkit" / "VOC2008" / "JPEGImages"
    write_text(data / "class_names.txt", THINGS)
    write_text(data / "attribute_names.txt", [f"Is {i}D" for i in range(64)])
    random = np.random.default_rng(3)
    parts = ("apascal_train", "apascal_test", "ayahoo_test")
    objects = []
    for c, name in enumerate(THINGS):
        for i in range(PER_CLASS):
            part = parts[2] if c >= 3 else parts[0 if i < 3 else 1]
            picture = (
                f"{name}_{i}.jpg" if c >= 3 else f"2008_{i:06d}.jpg"
            )  # several classes in one of VOC's pictures
            box = (1, 1, 24, 18) if c % 2 else (5, 3, 20, 16)
            objects.append((part, picture, c, box, random.integers(0, 2, 64).tolist()))
            write_image(
                (root / "ayahoo_test_images" if c >= 3 else voc) / picture, c * 10 + i, (24, 18)
            )
    for part in parts:
        lines = [
            [picture, THINGS[c], *box, *bits]
            for own, picture, c, box, bits in objects
            if own == part
        ]
        write_text(data / f"{part}.txt", [" ".join(map(str, line)) for line in lines])
    return sorted(objects, key=lambda thing: parts.index(thing[0]))


def write_deepfashion(root, attributes=10):
    """Write DeepFashion's Category and Attribute Prediction; the last class has no image."""
    worn = [(c, i) for c in range(len(CLOTHES) - 1) for i in range(PER_CLASS)]
    files = [f"img/{CLOTHES[c]}_Item/img_{i:08d}.jpg" for c, i in worn]
    marks = np.random.default_rng(4).choice([-1, 0, 1], (len(files), attributes))
    marks[::PER_CLASS, 0] = 1  # every class has something
    for name, head, rows in (
        ("list_category_cloth.txt", "category_name  category_type", [f"{name:<20} 1" for name in CLOTHES]),
        ("list_category_img.txt", "image_name  category_label",
         [f"{file:<60} {c + 1}" for file, (c, _) in zip(files, worn, strict=True)]),
        ("list_attr_cloth.txt", "attribute_name  attribute_type",
         [f"very long word {i}   {i % 5 + 1}" for i in range(attributes)]),
        ("list_attr_img.txt", "image_name  attribute_labels",
         [f"{file:<60} {' '.join(f'{mark:2d}' for mark in row)}" for file, row in zip(files, marks, strict=True)]),
    ):  # fmt: skip
        write_text(root / "Anno" / name, [str(len(rows)), head, *rows])
    for i, file in enumerate(files):
        write_image(root / "Img" / file, i)
    return files, np.array([c for c, _ in worn]), marks


def write_splits(folder, names, files, labels, unseen, validation=()):
    """Write a proposed split in the layout of xlsa17, the first image of each seen class for
    tests.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shuffled = np.random.default_rng(5).permutation(len(files))
    mine = np.asarray(labels)[shuffled]
    is_unseen, held = np.isin(mine, unseen), np.isin(mine, validation)
    test = np.isin(np.arange(len(files)), np.unique(mine, return_index=True)[1]) & ~is_unseen
    loc = {"trainval_loc": ~is_unseen & ~test, "test_seen_loc": test, "test_unseen_loc": is_unseen}
    if len(validation):
        loc |= {"train_loc": ~is_unseen & ~held, "val_loc": held}
    content = {
        key: (np.flatnonzero(mask) + 1)[:, None].astype(np.uint16) for key, mask in loc.items()
    }
    # Classes backwards: no reader should rely on their order.
    classes = {"att": np.ones((3, len(names))), "allclasses_names": cells(names[::-1])}
    scipy.io.savemat(folder / "att_splits.mat", classes | content)
    image_files = cells([f"/home/them/data/{files[i]}" for i in shuffled])
    numbers, features = (len(names) - mine)[:, None], np.zeros((2, len(files)))
    scipy.io.savemat(
        folder / "res101.mat", {"features": features, "labels": numbers, "image_files": image_files}
    )
    return {"test_seen": set(shuffled[test]), "train": set(shuffled[loc["trainval_loc"]])}


def write_mnist(root, images=None, packed=True):
    """Write MNIST's four IDX files, 60 and 40 images, gzipped or not. Returns images and labels of
    both sets.
    """
    root.mkdir(parents=True, exist_ok=True)
    made = {}
    for seed, (name, count) in enumerate((("train", 60), ("t10k", 40))):
        drawn = np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        pixels = drawn if images is None or name == "t10k" else images
        labels = (np.arange(len(pixels)) % 10).astype(np.uint8)
        made[name] = (pixels, labels)
        for part, magic, content in (("images-idx3", 2051, pixels), ("labels-idx1", 2049, labels)):
            whole = struct.pack(f">{1 + content.ndim}I", magic, *content.shape) + content.tobytes()
            path = root / f"{name}-{part}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(whole) if packed else whole)
    return made


def write_cifar(root):
    """Write CIFAR-100's binary version with the images in mixed order. Returns labels and images of
    both files.
    """
    root.mkdir(parents=True, exist_ok=True)
    (root / "fine_label_names.txt").write_text("\n".join(cifar100.class_parts("zero_shot")) + "\n")
    made = []
    for file, count in (("train.bin", cifar100.TRAIN), ("test.bin", cifar100.TEST)):
        random = np.random.default_rng(count)
        fine = random.permutation(np.repeat(np.arange(100), count)).astype(np.uint8)
        pixels = random.integers(0, 256, (len(fine), 3, 32, 32), dtype=np.uint8)
        np.concatenate(
            [fine[:, None], fine[:, None], pixels.reshape(len(fine), -1)], axis=1
        ).tofile(root / file)
        made.append((fine, pixels))
    return made


def write_sentiment140(path, users=20, each=3, encoding="latin-1", rows=None):
    """Write Sentiment140's six columns, without a header as published. Returns (polarity, user,
    text) of each row.
    """
    rows = rows or [
        (4 * ((u + i) % 2), f"user{u}", f"{'Good' if (u + i) % 2 else 'bad'} day, number{i}! café")
        for i in range(each)
        for u in range(users)
    ]
    lines = [
        ",".join(
            '"' + str(cell).replace('"', '""') + '"'
            for cell in (polarity, i, "Mon", "NO_QUERY", user, text)
        )
        for i, (polarity, user, text) in enumerate(rows)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    return rows


def write_omniglot(root, alphabets, drawings=2, part="images_background"):
    """Write a set of Omniglot with so many characters of each alphabet. Returns the pictures by
    name, ink True.
    """
    root.mkdir(parents=True, exist_ok=True)
    made = {}
    characters = [
        (alphabet, c) for alphabet, count in alphabets.items() for c in range(1, count + 1)
    ]
    with zipfile.ZipFile(root / f"{part}.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for number, (alphabet, c) in enumerate(characters, 1):
            for i in range(1, drawings + 1):
                ink = np.zeros((105, 105), dtype=bool)
                places = np.random.default_rng([number, i]).integers(5, 50, 4)
                left, top, right, bottom = places + np.array([0, 0, 45, 45])
                ink[top:bottom, left : left + 4] = ink[bottom - 4 : bottom, left:right] = True
                content = io.BytesIO()
                Image.fromarray(~ink).save(content, "png")
                name = f"{alphabet}/character{c:02d}/{number:04d}_{i:02d}.png"
                made[name] = ink
                file.writestr(f"{part}/{name}", content.getvalue())
    return made


def write_miniimagenet(root, place="images/{file}"):
    """Write Ravi's three lists and small photos. Returns (file, label) of each image by list."""
    made = {}
    for part, labels in {"train": ("n03", "n01"), "val": ("n02",), "test": ("n05", "n04")}.items():
        made[part] = [(f"{label}0000000{i}.jpg", label) for label in labels for i in range(3)]
        write_text(
            root / f"{part}.csv",
            ["filename,label", *(f"{file},{label}" for file, label in made[part])],
        )
        for file, label in made[part]:
            write_image(root / place.format(file=file, label=label), int(file[1:-4]), (100, 80))
    return made
