"""Live figures: well-formed, equal each time, safe, readable by all, and clear about bad input."""

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from econ import axis
from econ.live import DARK, LIGHT, MAX_BYTES, LiveCurve

VOID = {"input", "br", "img", "hr", "meta", "link"}


class Page(HTMLParser):
    """Reads a figure, checks that every tag is closed, and keeps tags, ids and text."""

    def __init__(self, html: str):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(attrs) == len(dict(attrs)), f"<{tag}> repeats an attribute"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def make(**changes) -> LiveCurve:
    """A small roofline with one moving point; `changes` replace its arguments."""
    given = dict(
        title="Batch moves decode", description="A point climbs a slope and meets a ceiling.",
        x_label="Intensity (FLOP/B)", y_label="Rate (TFLOP/s)", slider_label="Batch (sequences)",
        values=[1, 10, 100, 1000], start=10, x_scale="log", y_scale="log",
        curves={"roof": ([1, 250, 1000], [4, 1000, 1000])},
        points={"decode": lambda batch: (batch, min(4 * batch, 1000))},
        readout=lambda batch: {"Intensity": f"{batch} FLOP/B", "Rate": f"{min(4 * batch, 1000)} TFLOP/s"})
    return LiveCurve(**(given | changes))


def frames(html: str) -> list[dict]:
    return json.loads(re.search(r"var frames = (\[.*\]);", html)[1])


def test_html_is_well_formed_and_has_one_slider_over_all_values():
    page = Page(make().html)
    (slider,) = page.all("input")
    assert (slider["type"], slider["min"], slider["max"], slider["step"]) == ("range", "0", "3", "1")
    assert slider["value"] == "1"
    assert len(frames(make().html)) == 4


def test_svg_is_well_formed_xml():
    drawings = re.findall(r"<svg class=\"el-plot.*?</svg>", make().html, re.S)
    assert len(drawings) == 2
    for drawing in drawings:
        ElementTree.fromstring(drawing)


def test_the_same_data_give_the_same_text_and_other_data_another_id():
    assert make().html == make().html
    ids = {Page(figure.html).all("figure")[0]["id"]
           for figure in (make(), make(title="Other"), make(start=100), make(x_label="Intensity"))}
    assert len(ids) == 4


def test_a_difference_in_the_last_bit_changes_nothing():
    nudged = {"roof": ([1, 250 * (1 + 2e-16), 1000], [4, 1000 * (1 - 2e-16), 1000])}
    assert make(curves=nudged).html == make().html


def test_no_address_no_script_file_no_formula():
    html = make().html
    assert not re.search(r"https?:|//[a-z]|\bsrc=|\bimport\b|url\((?!#)|fetch|XMLHttp", html)
    script = re.search(r"<script>(.*)</script>", html, re.S)[1]
    assert not re.search(r"Math\.|[^=]\s[-/]\s|\*\*", script.replace(json.dumps(frames(html)), ""))


def test_every_text_is_escaped():
    evil = "</script><img src=x onerror=alert(1)>&\"'"
    figure = make(title=evil, description=evil, x_label=evil[:40], y_label=evil[:40], slider_label=evil,
                  curves={evil: ([1, 2], [1, 2])}, points={evil: lambda value: (1, 1)},
                  regions={evil: ([1, 2], [1, 1], [2, 2])}, readout=lambda value: {evil: evil},
                  value_text=lambda value: evil)
    page = Page(figure.html)
    assert page.all("img") == []
    assert len(page.all("script")) == 1
    assert frames(figure.html)[0]["readout"] == [evil]
    assert page.text.count(evil) >= 8


def test_screen_reader_gets_names_values_and_readout():
    page = Page(make().html)
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    (slider,), (label,), (readout,) = page.all("input"), page.all("label"), page.all("dl")
    assert label["for"] == slider["id"]
    assert slider["aria-describedby"] == readout["id"]
    assert slider["aria-valuetext"] == "10"
    assert readout["aria-live"] == "polite" and readout["aria-atomic"] == "true"
    for drawing in (svg for svg in page.all("svg") if "role" in svg):
        assert drawing["role"] == "img"
        assert set(drawing["aria-labelledby"].split()) <= ids
    assert "A point climbs a slope" in page.text and len(page.all("title")) == len(page.all("desc")) == 2
    assert len([name for name, _ in page.tags if name == "title"]) == 2


def test_ids_are_unique():
    ids = [attributes["id"] for _, attributes in Page(make().html).tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_without_javascript_the_first_position_is_complete():
    static = re.sub(r"<script>.*</script>", "", make().html, flags=re.S)
    page = Page(static)
    assert "10 FLOP/B" in page.text and "40 TFLOP/s" in page.text
    assert "hidden" in page.all("input")[0]
    for batch in ("1 FLOP/B", "10 FLOP/B", "100 FLOP/B", "1000 FLOP/B"):
        assert batch in page.text
    assert len([1 for path in page.all("path") if path.get("class") == "el-point" and "d" in path]) == 3


def test_places_of_curve_and_point():
    figure = make(x_range=(1, 1000), y_range=(1, 1000), curves={"line": ([1, 1000], [1, 1000])},
                  points={"p": lambda value: (value, value)}, x_scale="log", y_scale="log")
    assert 'd="M0 10000L10000 0"' in figure.html
    assert [frame["moves"]["1"] for frame in frames(figure.html)] == [[0, 10000], [3333, 6667], [6667, 3333],
                                                                      [10000, 0]]


def test_hidden_positions_and_moving_curves_and_regions():
    figure = make(curves={"c": lambda value: None if value == 10 else ([1, 2], [value, value])},
                  points={"p": (1, 1)}, x_scale="linear", y_scale="linear",
                  regions={"area": lambda value: ([1, 2], [0, 0], [value, value])})
    moves = [frame["moves"] for frame in frames(figure.html)]
    assert moves[1]["0"] is None and moves[0]["0"].startswith("M0 ")
    assert moves[3]["2"].endswith("Z") and moves[3]["2n"][0] == 5000
    assert "1" not in moves[0]
    assert "display:none" in figure.html


def test_repr_is_one_line_with_the_first_position():
    assert repr(make()) == ('LiveCurve "Batch moves decode"; Batch (sequences): 1 to 1,000 in 4 steps; '
                            "at 10: Intensity 10 FLOP/B, Rate 40 TFLOP/s")
    assert make()._repr_html_() == make().html


def test_size_of_a_figure_with_three_moving_curves():
    xs = list(range(1, 41))
    moving = {f"curve {k}": (lambda value, k=k: (xs, [k * value * x**1.5 for x in xs])) for k in (1, 2, 3)}
    figure = make(curves=moving, points={}, values=list(range(1, 21)), start=1)
    assert len(figure.html.encode()) < MAX_BYTES


def test_numpy_values_and_arrays():
    numpy = pytest.importorskip("numpy")
    xs = numpy.array([1, 250, 1000])
    assert make(values=numpy.array([1, 10, 100, 1000]),
                curves={"roof": (xs, numpy.minimum(4 * xs, 1000))}).html == make().html


@pytest.mark.parametrize(("changes", "message"), [
    ({"curves": {}, "points": {}}, "empty; give at least one curve"),
    ({"curves": {"c": ([], [])}}, "curve 'c' at 1 is empty"),
    ({"curves": {"c": ([1, 2], [1, 2, 3])}}, "columns of 2 and 3 numbers"),
    ({"curves": {"c": ([1, 2], [1, float("nan")])}}, "holds nan; give finite numbers"),
    ({"points": {"p": lambda value: (1, float("inf"))}}, "point 'p' at 1 holds inf"),
    ({"curves": {"c": ([0, 1], [1, 2])}}, "holds 0 on a logarithmic axis"),
    ({"curves": {"c": ([1, 2], [-3, 2])}}, "holds -3 on a logarithmic axis"),
    ({"x_range": (0, 10)}, "x_range holds 0 on a logarithmic axis"),
    ({"x_range": (10, 10)}, "give (low, high) with low below high"),
    ({"x_range": ()}, "x_range is empty"),
    ({"x_range": (1, 100)}, "point 'decode' leaves x_range (1, 100)"),
    ({"curves": {"c": 3}}, "curve 'c' at 1 must be (x, y), got 3"),
    ({"curves": {"c": (["a"], [1])}}, "must hold numbers"),
    ({"regions": {"r": ([1], [2])}}, "must be (x, low, high)"),
    ({"points": {"p": (1, 2, 3)}}, "must be (x, y)"),
    ({"curves": {"c": lambda value: None}, "points": {}}, "hidden at every position"),
    ({"curves": {str(k): ([1], [1]) for k in range(6)}}, "7 curves, points and regions; at most 6"),
    ({"values": [1], "start": 1}, "values has 1 entries; a slider needs at least two"),
    ({"start": 3}, "start is 3; use one of the slider's values"),
    ({"x_scale": "ln"}, "x_scale is 'ln'; use one of linear, log, log2"),
    ({"y_label": "r" * 60}, "y_label has 60 characters; a phone shows 42"),
    ({"description": " "}, "description is empty"),
    ({"readout": lambda value: {"Rate": value}}, "readout 'Rate' is 1 at 1; make it text"),
    ({"readout": lambda value: {}}, "give the same names everywhere"),
    ({"readout": lambda value: {str(value): "1 s"}}, "give the same names everywhere"),
    ({"values": range(1, 200), "start": 1,
      "curves": {"c": lambda value: (range(1, 50), [value * x for x in range(1, 50)])}}, "60,000 are"),
])
def test_bad_input_is_one_line_that_says_what_would_work(changes, message):
    with pytest.raises(ValueError) as caught:
        make(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("scale", "low", "high", "pixels", "expected"), [
    ("linear", 0, 10, 300, [0, 2, 4, 6, 8, 10]),
    ("linear", 0, 0.3, 130, [0, 0.1, 0.2, 0.3]),
    ("linear", -1, 1, 90, [-1, 0, 1]),
    ("log", 1, 1000, 600, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
    ("log", 1, 1000, 150, [1, 10, 100, 1000]),
    ("log", 0.5, 2000, 150, [1, 10, 100, 1000]),
    ("log2", 1, 512, 600, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
    ("log", 300, 400, 200, [300, 350, 400]),
])
def test_ticks_are_round_numbers_that_keep_apart(scale, low, high, pixels, expected):
    ticks = axis.Axis("", scale, low, high).ticks(pixels, lambda a, b: 40)
    assert ticks == pytest.approx(expected)


def test_axis_around_one_number_is_not_empty():
    for scale in axis.SCALES:
        for margin in (True, False):
            one = axis.Axis.around("", scale, [5.0, 5.0], margin)
            assert one.low < 5 < one.high or (scale == "linear" and one.low == 0 and one.high > 5)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_colours_stand_out_in_their_theme(theme):
    from test_plots import contrast

    colour = dict(re.findall(r"--(\w+):(#\w{6})", theme))
    for name in (f"c{k}" for k in range(6)):
        assert contrast(colour[name], colour["surface"]) >= 3
    for paper in ("surface", "tile"):
        assert contrast(colour["ink"], colour[paper]) >= 7
        assert contrast(colour["soft"], colour[paper]) >= 4.5
