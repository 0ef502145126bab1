"""The README's figure is what `econ` computes now, and says what a hand count says."""

import re
import xml.etree.ElementTree as ET

import figure

SVG = figure.PATH.read_text(encoding="utf-8")
TEXTS = [element.text for element in ET.fromstring(SVG).iter("{http://www.w3.org/2000/svg}text")]


def test_the_figure_is_current():
    assert figure.main(["--check"]) == 0


def test_a_stale_figure_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(figure, "PATH", tmp_path / "roofline.svg")
    assert figure.main(["--check"]) == 1
    figure.PATH.write_text(SVG.replace("989", "1,979"), encoding="utf-8")
    assert figure.main(["--check"]) == 1


def test_the_figure_says_what_a_hand_count_gives():
    assert {"peak: 989 TFLOP/s", "ridge: 295 FLOP/B", "prompt of 2,048: 100 %"} <= set(TEXTS)   # 989 / 3.35
    shown = (re.match(r"(\d+) answers? at once: (.+) %", text) for text in TEXTS)
    shares = {int(found[1]): float(found[2]) for found in shown if found}
    assert list(shares) == [1, 8, 64, 512]
    for batch, share in shares.items():   # 2 FLOP and 2 B a weight, 139.0 GB of them; 5.37 GFLOP and 0.671 GB of cache
        intensity = batch * (139.0 + 5.37) / (139.0 + 0.671 * batch)
        assert abs(share / (100 * intensity / 295.2) - 1) < 0.02


def test_the_readme_shows_the_figure_and_says_in_words_what_it_shows():
    readme = (figure.ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"!\[[^\]]{80,}\]\(_static/roofline\.svg\)", readme)


def test_the_figure_brings_its_own_paper_for_light_and_dark():
    assert 'class="paper"' in SVG and "prefers-color-scheme: dark" in SVG
    assert figure.LIGHT in SVG and figure.DARK in SVG
