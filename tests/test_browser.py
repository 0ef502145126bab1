"""Live figures in a real browser: the slider moves the figure, and a phone can read it."""

import html
import json
import re
import shutil
import subprocess

import pytest
from test_live import make

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium, chromium-browser or google-chrome")

READ = """
function read() {
  var one = function (query) { return document.querySelector(query); };
  return {value: one("label b").textContent, spoken: one("input").getAttribute("aria-valuetext"),
    answers: Array.from(document.querySelectorAll("dd"), function (dd) { return dd.textContent; }),
    places: Array.from(document.querySelectorAll(".el-plot [data-move]"), function (el) {
      return [el.dataset.move, el.getAttribute("transform") || el.getAttribute("d"), el.style.display]; }),
    slider: !one("input").hidden};
}
function move(to) {
  var input = document.querySelector("input");
  input.value = to;
  input.dispatchEvent(new Event("input"));
}
"""
LAYOUT = """
function layout() {
  var plot = Array.from(document.querySelectorAll(".el-plot")).find(function (svg) {
    return svg.getBoundingClientRect().width > 0; });
  var texts = Array.from(plot.querySelectorAll("text"), function (text) {
    var box = text.getBoundingClientRect();
    return {text: text.textContent, left: box.left, right: box.right, top: box.top,
      bottom: box.bottom}; });
  return {name: plot.getAttribute("class"), texts: texts,
    pixels: parseFloat(getComputedStyle(plot).fontSize) * plot.getBoundingClientRect().width
      / plot.viewBox.baseVal.width,
    surface: getComputedStyle(document.querySelector(".el-card")).backgroundColor};
}
"""


def browse(tmp_path, body: str, script: str, attributes: str = "", width: int = 1000):
    """Open `body` in a column of `width` pixels and return what the expression `script` gives there."""
    (tmp_path / "page.html").write_text(
        f"<!doctype html><html {attributes}><meta charset='utf-8'><body style='margin:0'>"
        f"<div style='width:{width}px'>{body}</div><script>{READ}{LAYOUT}"
        "var out = document.createElement('pre'); out.id = 'out';"
        f"out.textContent = JSON.stringify({script});"
        "document.body.append(out);</script>", encoding="utf-8")
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--window-size=1200,900", "--dump-dom", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True)
    return json.loads(html.unescape(re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.S)[1]))


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[\d.]+", text)]


def test_the_slider_moves_the_point_and_the_readout(tmp_path):
    first, last = browse(tmp_path, make().html, "[read(), (move(3), read())]")
    assert first["slider"]
    assert (first["value"], last["value"]) == ("10", "1,000")
    assert (first["spoken"], last["spoken"]) == ("10", "1,000")
    assert first["answers"] == ["10 FLOP/B", "40 TFLOP/s"]
    assert last["answers"] == ["1000 FLOP/B", "1000 TFLOP/s"]
    assert [key for key, _, _ in first["places"]] == ["1", "1"]
    for before, after in zip(first["places"], last["places"], strict=True):
        (x0, y0), (x1, y1) = numbers(before[1]), numbers(after[1])
        assert x1 > x0 and y1 < y0


def test_the_browser_puts_the_point_where_python_drew_it(tmp_path):
    figure = make(start=100)
    drawn = re.findall(r'class="el-point"[^>]*(translate\([^)]*\))" data-move', figure.html)
    moved = browse(tmp_path, figure.html, "(move(0), move(2), read())")["places"]
    assert len(drawn) == 2
    for python, (_, browser, _) in zip(drawn, moved, strict=True):
        assert numbers(browser) == pytest.approx(numbers(python), abs=0.01)


def test_going_there_and_back_restores_the_first_drawing(tmp_path):
    figure = make(curves={"c": lambda value: None if value == 100 else ([1, 9], [value, 9 * value])},
                  regions={"area": lambda value: ([1, 9], [1, 1], [2 * value, value])})
    first, hidden, back = browse(tmp_path, figure.html, "[read(), (move(2), read()), (move(1), read())]")
    assert first == back
    assert {key for key, _, _ in first["places"]} == {"0", "1", "2", "2n"}
    assert [display for key, _, display in hidden["places"] if key == "0"] == ["none", "none"]


def test_two_figures_on_a_page_do_not_touch_each_other(tmp_path):
    second = make(title="Second", slider_label="Other")
    count = 'Array.from(document.querySelectorAll("label b"), function (b) { return b.textContent; })'
    assert browse(tmp_path, make().html + second.html, f"(move(3), {count})") == ["1,000", "10"]


@pytest.mark.parametrize(("width", "name"), [(328, "el-narrow"), (343, "el-narrow"), (624, "el-wide")])
@pytest.mark.parametrize("scale", ["log", "log2", "linear"])
def test_text_is_large_enough_and_does_not_overlap(tmp_path, width, name, scale):
    figure = make(values=[1, 100, 100_000], start=100, x_scale=scale, y_scale=scale,
                  curves={"c": ([1, 131_072], [1, 8192])}, points={"p": lambda value: (value, 1)},
                  x_label="Arithmetic intensity of a step (FLOP/B)")
    found = browse(tmp_path, figure.html, "layout()", width=width)
    assert name in found["name"]
    assert found["pixels"] >= 11
    for i, one in enumerate(found["texts"]):
        assert one["left"] >= 0 and one["right"] <= width, one
        for other in found["texts"][i + 1:]:
            apart = (one["right"] < other["left"] or other["right"] < one["left"]
                     or one["bottom"] <= other["top"] + 2 or other["bottom"] <= one["top"] + 2)
            assert apart, (one, other)


@pytest.mark.parametrize(("attributes", "surface"), [
    ('data-theme="dark"', "rgb(24, 27, 32)"), ('data-theme="light"', "rgb(255, 255, 255)"),
    ('data-jp-theme-light="false"', "rgb(24, 27, 32)"), ('theme="dark"', "rgb(24, 27, 32)")])
def test_the_figure_follows_the_theme_of_its_page(tmp_path, attributes, surface):
    assert browse(tmp_path, make().html, "layout()", attributes)["surface"] == surface
