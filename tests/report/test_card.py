"""Names in the model card: a page that shows it finds no tag, no link and no code in them."""

from fedunseen.report import model_card
from pages import copied


def test_names_are_inert(made, tmp_path):
    run, name = made(), "<script>alert(1)</script>\n<img src=x onerror=y> [a](javascript:b) `c`"
    names = [*run.space.names]
    names[int(run.space.unseen[0])] = name.replace("\n", " ")
    experiment = {**run.manifest["experiment"], "name": name}
    card = model_card(copied(run, tmp_path / "copy", manifest={"experiment": experiment}, names=names))
    title = next(line for line in card.splitlines() if line.startswith("# "))
    unseen = next(line for line in card.splitlines() if line.startswith("- Unseen: "))
    for text in (title, unseen):
        assert not {"<", ">"} & set(text)
        assert "\\[a\\](javascript:b) \\`c\\`" in text
    assert title.endswith("\\`c\\`")  # on one line
