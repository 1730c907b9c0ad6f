"""What the commands refuse: the stable code, what the sentence names, exit code 2, and no file
written or changed.
"""

import json
import shlex

import numpy as np
import pytest
import torch
from PIL import Image

from fedunseen.core.toml import toml_text
from fedunseen.deploy.secagg.enrolment import enrol
from known_names import DIGITS_MAML
from processes import sets
from published_layouts import BIRDS, write_splits

TINY = shlex.join(
    ["digit-pairs", *sets({"data.train_per_class": 2, "data.test_per_class": 1, "method.kl": 0})]
)
IMAGE = "shown/white/a.png"
LEAKAGE = f"attack leakage {TINY} --out new"
PLAN = "offline plan digit-pairs-gaussian --credentials kits/coordinator --out p"
BENCH = "bench --out new"
DEAL = "data deal digit-pairs --set partition.clients=3 --out new"


@pytest.fixture(scope="session")
def place(digits, make_folder, tmp_path_factory):
    """A folder in which the commands are called: a run, data, files that no command can use."""
    place = tmp_path_factory.mktemp("refusals")
    (place / "run").symlink_to(digits)
    for name in (
        "full/file",
        "file",
        "empty/",
        "two/A/res101.mat",
        "two/B/res101.mat",
        "shown/white/",
        "deployed/",
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).mkdir(parents=True) if name.endswith("/") else (place / name).touch()
    Image.new("L", (16, 8)).save(place / IMAGE)
    for name in ("A", "B"):
        write_splits(place / "two" / name, BIRDS, ["x.jpg"] * 6, np.arange(6), [1, 4])
    for name in ("mine", "sized"):
        make_folder(place / name)
    (place / "sized" / "features.npz").unlink()
    np.savez(place / "pool.npz", features=np.ones((20, 128), np.float32))
    tables = {
        "names": "name\nzebra\n",
        "known": "name\n47\n",
        "sized": "label,size\nred,1\nred,2\nblue,many\n",
    }
    for name, text in {**tables, "unlabelled": "colour,size\nred,1\n"}.items():
        (place / f"{name}.csv").write_text(text, "utf-8")
    sections = {
        "data": {"name": "folder", "root": "mine"},
        "partition": {"clients": 3},
        "method": {"name": "fedzsl"},
    }
    (place / "small.toml").write_text(
        toml_text({**sections, "strategy": {"name": "fedavg", "rounds": 2}}), "utf-8"
    )
    axes = '[axes]\nlr = { key = "method.lr", values = [0.05, 0.1] }\n'
    (place / "two.toml").write_text(f'title = "Two"\nbase = "small.toml"\n{axes}', "utf-8")
    texts = {
        "token": "a-token-of-the-tests\n",
        "short": "short\n",
        "a.pem": "nothing",
        "deployed/status.json": "[",
    }
    for name, text in texts.items():
        (place / name).write_text(text)
    enrol(place / "kits", ("a", "b", "c"))
    return place


CASES = {  # code -> words of the command: what the sentence says
    "experiment": {
        f"attack leakage {DIGITS_MAML} --out new": "method.name = 'maml' learns from episodes",
        f"{LEAKAGE} --images 0": "--images 0: attack at least one sample",
        f"{LEAKAGE} --images 161": "--images 161: the clients hold only 160",
        f"{LEAKAGE} --sums 1,11": "--sums 11: only 10 clients hold training samples",
        f"{LEAKAGE} --sums '2;3'": "--sums 2;3: give numbers of parties with commas",
        f"{LEAKAGE} --sums 0": "--sums 0: give numbers of parties with commas",
        f"{LEAKAGE} --steps 0": "--steps 0: a search takes at least one step",
        f"{LEAKAGE} --method dgl": "--method: unknown attack 'dgl': did you mean 'dlg'? (known: "
        "both, cosine, dlg)",
        f"{LEAKAGE} --set strategy.name=local": "strategy.name = 'local' sends no gradients",
        f"{LEAKAGE} --set strategy.name=centralised": "strategy.name = 'centralised' sends no "
        "gradients",
        "attack leakage digit-pairs-gaussian --out new": "method.name = 'gaussian' is solved in "
        "closed form",
        f"attack backdoor {TINY} --out new --defences norm-klip": "unknown defence 'norm-klip': "
        "did you mean",
        f"attack backdoor {TINY} --out new --set attack.name=nan": "attack.name = 'nan' has no "
        "triggers",
        f"{BENCH} --only method": "error: --only method: write it as AXIS=VALUE, for example "
        "--only method=distzsl [",
        "certs --out new": "give --parties and --out (new certificates for all), --classes with",
        "certs --out new revoke a --authority full": "options of revoke stand behind its name",
        "join 127.0.0.1 --data full --insecure --name a --consent all": "--consent all: choose "
        "among again, dropouts,",
        "data check mine --set method.lr=3": "method.lr: only settings of the data can be given "
        "here",
        f"{DEAL} --parties a,b": "--parties gives 2 names, but there are 3 clients",
        f"{DEAL} --parties a,b,../c": "'../c' cannot be a party's name",
        f"{DEAL} --parties a,b,CA": "none of coordinator, ca, server",
        f"{DEAL} --parties a,b,A": "two of the parties a, b, A have the same name",
        "data encode digit-pairs --set encoder.name=conv --out new": "encoder.name = 'conv' is "
        "trained with the method",
        "estimate digit-pairs-gaussian": "method.name = 'gaussian' takes no rounds of batches to "
        "estimate",
        "estimate digit-pairs-few-shot": "takes no rounds of batches to estimate",
        "init mine --out x.txt": "--out x.txt: an experiment file ends in .toml",
        "init mine --out small.toml": "small.toml is there already: give --force",
        "learn run --out new": "there is nothing to learn",
        "learn run --out new --class a --classes names.csv": "--class and --classes both name "
        "classes to add",
        f"{PLAN} --parties a,b": "takes 3 at least",
        f"{PLAN} --parties a,b,oz": "'oz', which is not in federation.json",
        f"predict run {IMAGE} --top 0": "--top 0: ask for at least 1 class",
        f"predict run {IMAGE} --among sene": "--among sene: choose all, unseen or given",
        f"predict run {IMAGE} --among given": "--among given: there is no such class",
        f"predict run {IMAGE} --class zebra": "which a name does not tell: give --classes FILE",
        f"predict run {IMAGE} --classes names.csv": "which a name does not tell: give --classes "
        "FILE",
        f"predict run {IMAGE} --class zebra --classes names.csv": "--class and --classes both name "
        "classes to add",
        f"predict run {IMAGE} --set method.lr=1": "--set method.lr: a finished run takes settings "
        "of data and",
        f"predict run {IMAGE} --client 0": "run has one model for all clients: leave out the "
        "client",
        "run small.toml --out new --set partition.clients=9": "9 clients cannot each hold classes "
        "of their own",
        "run small.toml --out new --set run.device=cuda": (
            "error: run.device = 'cuda', but no CUDA device is there: set it to 'auto' or 'cpu' ["
        ),
        "run small.toml --out new --set strategy.rounds": "--set strategy.rounds: write it as "
        "section.key=value",
        "sweep two.toml --only lr": "--only lr: write it as AXIS=VALUE",
        "sweep two.toml --resume": "--resume needs --out: say which sweep's directory to continue "
        "with",
        "sweep distzsl-table9": "unknown sweep 'distzsl-table9': did you mean 'distzsl-table",
    },
    "run-directory": {
        f"attack backdoor {TINY} --out full": "full is not an empty folder: add --resume, or name "
        "another",
        "certs --out full --parties a,b": "full is not an empty folder: name another with --out",
        "certs --out new --parties a,b --authority full": "is not an empty folder: name another "
        "with --authority",
        "certs --out new --parties a,b --authority new/in": "--authority is inside --out",
        "data deal digit-pairs --out full": "full is not an empty folder: name another with --out",
        "data encode digit-pairs-gaussian --out full": "full is not an empty folder: name another "
        "with --out",
        "export run --csv file": "file is a file: name a folder for the tables",
        "new full": "full is not an empty folder: choose another name",
        "predict empty file": "empty is not a run directory",
        "report none": "none is not a run directory: name one that `fedunseen run` has made",
        "run small.toml --resume": "--resume needs --out",
        "run small.toml --out file/below": "file/below cannot be written (",
    },
    "mixed-types": {"init sized.csv": "sized.csv, line 4, column 'size': 'many' is no number"},
    "no-label-column": {"init unlabelled.csv": "unlabelled.csv has no column 'label'"},
    "data": {
        "data check none": "the folder none is missing: name one that is there",
        "data check empty": "empty has the layout of no benchmark",
        "data check two": "two holds the data sets A, B: check one of them",
        "health empty": "empty is neither a run directory nor a party's --state folder",
        "certs renew --new-keys a --authority none --out new": "is not an authority's folder",
        "health deployed": "status.json is damaged",
        "init none": "the folder none is missing",
        "init empty": "empty has neither features.npz nor folders with pictures",
        "ledger none": "the folder none is missing",
        "predict run none.png": "none.png is missing",
        "predict run file": "file is not a readable image: give another file",
        f"predict run {IMAGE} --csv no/table.csv": "--csv no/table.csv: name a file in a folder "
        "that is there",
        f"predict run {IMAGE} --support no": "no is not a folder: give one with a folder of "
        "examples",
        f"predict run {IMAGE} --encoder file": "--encoder file: this run needs no weights of an "
        "encoder",
        "run small.toml --out new --set run.seeds=2 --set data.root=nowhere": "nowhere is missing: "
        "correct data.root",
        "serve run --certificate token --key none": "none is missing",
        "serve run --port 0 --certificate a.pem --key a.pem": "are not a certificate and its key",
        "serve run --token-file short": "short holds no token",
        "sweep two.toml --out new --set data.root=empty --jobs 1": "two: 0.05: empty/classes.csv "
        "is missing",
    },
    "argument": {
        "export run": "there is nothing to export",
        "export run --csv new --client 0": "--client says whose model --out writes",
        "adapt run pool.npz --out new --among seen": "--among seen: name all or unseen",
        "new ../x": "'../x' is not a name of a project",
        "new fedunseen": "a package 'fedunseen' is there already",
        "new torch": "a package 'torch' is there already",
        "new email": "a package 'email' is there already",
        "new class": "a package 'class' cannot be imported, for it is a word of Python",
        "certs --parties a,b --out new --days 99999999": "--days 99999999: certificates have to "
        "end before the year",
        "offline plan --credentials kits/coordinator --parties a,b,c --out p": "give an "
        "EXPERIMENT, "
        "--adapt RUN, --confidence RUN, or",
        "serve run --host 0.0.0.0": "--host 0.0.0.0 lets other machines in: give --token-file",
        "serve run --host 0.0.0.0 --token-file token": "would send the token in plain text: give "
        "--certificate",
        "serve run --certificate token": "--certificate and --key go together",
        "serve run --token-file token --write-token-file token": "--write-token-file and "
        "--token-file hold one token",
        "serve run --adapt --token-file token": "--adapt lets everyone who has the token move the "
        "model: give --write",
    },
    "connection-lost": {
        "host digit-pairs --insecure --parties a,b --out new --address 192.0.2.1": "cannot listen "
        "at "
        "192.0.2.1:8850 "
        "("
    },
    "offline-several-answers": {
        f"{PLAN} --parties a,b,c --set evaluation.selection=validation": "asks the parties twice",
        f"{PLAN} --parties a,b,c --set method.name=fedzsl --set strategy.name=fedavg": "trains in "
        "rounds",
    },
    "bench-time": {
        f"{BENCH} --budget '2 days'": "error: --budget 2 days: write a number and s, min or h, for "
        "example 2h ["
    },
    "failed": {
        "certs --parties a,b --out new --address ä": "host 'ä' is neither an IP address nor a name "
        "in ASCII"
    },
    "unknown-command": {
        "rum": "error: unknown command 'rum': did you mean 'run'? (the nearest: run, ",
        "data chek": "error: unknown command 'chek': did you mean 'check'? (known: check, deal, "
        "encode, list) [",
    },
    "known-class": {
        f"predict run {IMAGE} --class 47": "--class 47: this run has the class already",
        f"predict run {IMAGE} --classes known.csv": "--class 47: this run has the class already",
    },
}


def files(place):
    return {path: path.stat().st_mtime_ns for path in place.rglob("*")}


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        pytest.param(words, code, sentence, id=" ".join(words.split()[:3]))
        for code, cases in CASES.items()
        for words, sentence in cases.items()
    ],
)
def test_a_command_refuses_in_one_sentence_and_writes_nothing(
    words, code, sentence, command, place, monkeypatch
):
    for command_name, library in (("serve", "fastapi"), ("host", "websockets")):
        if words.startswith(command_name):
            pytest.importorskip(library)
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("a CUDA device is there")
    monkeypatch.chdir(place)
    before = files(place)
    done = command(*shlex.split(words))
    assert (done.code, done.out, done.err[:7], done.err.count("\n")) == (2, "", "error: ", 1), done
    assert (sentence in done.err, done.err.endswith(f" [{code}]\n")) == (True, True), done
    assert files(place) == before


def test_json_has_code_and_sentence(command):
    done = command("run", "digit-piars", "--json")
    result = json.loads(done.out)["error"]
    assert (done.code, done.err) == (2, f"error: {result['message']} [{result['code']}]\n")
