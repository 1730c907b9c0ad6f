"""A table like the passenger list of a ship: numbers, categories, booleans, dates, missing cells.

The class of a row is its deck. Two decks have no row to train on.
"""

import csv
import json

import numpy as np

HEADER = ["row id", "ticket", "age", "fare", "port", "child", "boarded", "crew", "deck"]
DECKS = {"A": 1, "B": 2, "C": 3, "D": 4, "E": 5, "F": 6}
UNSEEN = ("C", "F")


def passengers(count=240, seed=0):
    """Return rows of texts, as a CSV file has them."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        deck = list(DECKS)[i % len(DECKS)]
        level = DECKS[deck]
        port = ("Cherbourg", "Queenstown", "Southampton")[rng.choice(3, p=[0.3, 0.3, 0.4])]
        rows.append(
            [
                str(i),
                f"PC {rng.integers(10_000, 99_999)}",
                "" if i % 9 == 0 else f"{30 + 5 * level + rng.normal():.1f}",
                f"{100 - 12 * level + 4 * rng.normal():.2f}",
                "Belfast" if i in (3, 50) else "" if i == 7 else port,
                ("no", "yes")[int(rng.random() < level / 8)],
                f"1912-04-{3 + level:02}" if i % 31 else "",
                ("false", "true")[level > 3],
                deck,
            ]
        )
    return rows


def write_csv(path, rows, header=HEADER):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def describe(folder, unseen=UNSEEN):
    """Write the class table: a deck's level, from two sides."""
    folder.mkdir(exist_ok=True)
    lines = [
        f"{name},{'unseen' if name in unseen else 'seen'},{level / 6},{1 - level / 6},{int(level > 3)}"
        for name, level in DECKS.items()
    ]
    text = "\n".join(["name,split,up,down,crew", *lines]) + "\n"
    (folder / "classes.csv").write_text(text, "utf-8")
    return folder


def arrow_table(rows, header=HEADER):
    """Return the rows as a typed table of pyarrow."""
    import pyarrow as pa
    from pyarrow import csv as reader

    text = "\n".join(",".join(row) for row in (header, *rows)).encode()
    dates = {"boarded": pa.date32()} if "boarded" in header else {}
    options = reader.ConvertOptions(column_types=dates, strings_can_be_null=True)
    return reader.read_csv(pa.py_buffer(text), convert_options=options)


def save_as_datasets_does(folder, table, shards=2):
    """Write a folder as ``datasets.Dataset.save_to_disk`` does."""
    import pyarrow as pa

    folder.mkdir(parents=True)
    step = -(-table.num_rows // shards)
    names = [f"data-{i:05}-of-{shards:05}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        with pa.ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(table.slice(i * step, step), 50)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder
