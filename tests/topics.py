"""Six topics and a sentence of each, which MiniLM tells apart."""

import csv
import json

from fedunseen import Experiment, run
from small_runs import QUIET

TOPICS = {
    "cooking": "a soup of onions, with bread from the oven",
    "sailing": "the boat turned into the wind at sea",
    "banking": "a loan of money, and its interest",
    "gardening": "soil for plants and flowers in spring",
    "chess": "the queen takes the bishop, and it is mate",
    "football": "a goal in the second half of the match",
}


def save_sentence_encoder(folder, pooling="mean", unit=True, **about):
    """Save a small random encoder that has these words, as sentence-transformers did for years."""
    import torch
    import transformers

    texts = [*TOPICS, *TOPICS.values()]
    words = sorted({word for text in texts for word in text.replace(",", "").split()})
    folder.mkdir(exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", ":", "number", *words]
    (folder / "vocab.txt").write_text("\n".join([*vocabulary, *"0123456789"]) + "\n", "utf-8")
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary) + 10, hidden_size=32, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, initializer_range=0.5,
    )  # fmt: skip
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if unit else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "",
         "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    ways = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    chosen = {f"pooling_mode_{way}": way.removesuffix("_tokens") == pooling for way in ways}
    chosen["pooling_mode_cls_token"] = pooling == "cls"
    stated = {"word_embedding_dimension": 32, **chosen}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated), "utf-8")
    (folder / "sentence_bert_config.json").write_text(json.dumps(about), "utf-8")
    return folder


def texts_run(place):
    """Return the run of a folder of texts."""
    for name, words in TOPICS.items():
        (place / "texts" / name).mkdir(parents=True)
        for i in range(4):
            (place / "texts" / name / f"{i}.txt").write_text(f"Number {i}: {words}.\n", "utf-8")
    return _run_of(place, place / "texts", {"name": "texts"})


def notes_run(place):
    """Return the run of a table with a column of texts."""
    notes = [(f"Number {i} is about {words}", n) for i in range(4) for n, words in TOPICS.items()]
    (place / "notes").mkdir(parents=True)
    with (place / "notes" / "notes.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("note", "topic"), *notes])
    columns = [{"name": "note", "kind": "text"}]
    return _run_of(place, place / "notes", {"name": "table", "label": "topic", "columns": columns})


def _run_of(place, root, data):
    splits = [f"{name},{'unseen' if name == 'chess' else 'seen'}" for name in TOPICS]
    (root / "classes.csv").write_text("\n".join(["name,split", *splits]), "utf-8")
    encoder = str(save_sentence_encoder(place / "encoder"))
    settings = {
        "data": {**data, "root": str(root), "text_encoder": encoder},
        "method": {"name": "gaussian"}, "partition": {"clients": 2},
    }  # fmt: skip
    return run(Experiment.from_dict(settings).with_overrides(QUIET), place / "run").path
