"""Names in the model card: a page that shows it finds no tag in them."""

from fedunseen.report.card import _inert, _listed


def test_names_are_inert():
    name = "<script>alert(1)</script>\n<img src=x onerror=y> [a](javascript:b) `c`"
    for text in (_inert(name), _listed([name])):
        assert not {"<", ">", "\n"} & set(text)
        assert "\\[a\\](javascript:b) \\`c\\`" in text
    assert _listed(["polar_bear", "zèbre"]) == "polar_bear, zèbre"
