"""Static figures: colours that all can tell apart on both papers, helpers that draw what they say."""

import re
from itertools import combinations

import pytest

from econ import plots
from econ.live import DARK, LIGHT

WHITE, BLACK = "#ffffff", "#121212"
# Machado, Oliveira and Fernandes 2009, table of severity 1.0, on linear RGB.
SIGHT = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
                   (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                     (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                   (0.004733, 0.691367, 0.303900)),
}


def linear(colour: str) -> list[float]:
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours. Source: WCAG 2.2, relative luminance."""
    low, high = sorted(sum(w * part for w, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))
                       for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def times(matrix, vector) -> list[float]:
    return [max(sum(a * b for a, b in zip(row, vector, strict=True)), 0.0) for row in matrix]


def oklab(rgb) -> list[float]:
    """Source: Ottosson 2020, a space in which equal distances look equal."""
    cones = times(((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
                   (0.0883024619, 0.2817188376, 0.6299787005)), rgb)
    roots = [cone ** (1 / 3) for cone in cones]
    return [sum(a * b for a, b in zip(row, roots, strict=True)) for row in
            ((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
             (0.0259040371, 0.7827717662, -0.8086757660))]


def distance(one: str, other: str, sight: str) -> float:
    a, b = (oklab(times(SIGHT[sight], linear(colour))) for colour in (one, other))
    return sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) ** 0.5


def test_contrast_against_known_ratios():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("colour", [*plots.PALETTE, plots.INK])
@pytest.mark.parametrize("paper", [WHITE, BLACK])
def test_colours_stand_out_on_both_papers(colour, paper):
    assert contrast(colour, paper) >= (4.2 if colour == plots.INK else 3)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("palette", [plots.PALETTE, re.findall(r"--c\d:(#\w{6})", LIGHT),
                                     re.findall(r"--c\d:(#\w{6})", DARK)], ids=["plots", "light", "dark"])
def test_colours_can_be_told_apart(palette, sight):
    assert len(palette) >= 5
    assert min(distance(one, other, sight) for one, other in combinations(palette, 2)) > 0.06


def test_the_measure_rejects_a_red_and_a_green_of_one_lightness():
    assert distance("#b05a3c", "#7a7a28", "deuteranopia") < 0.06 < distance("#b05a3c", "#7a7a28", "full")


@pytest.fixture
def ax():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with matplotlib.rc_context():
        plots.style()
        figure, axes = plt.subplots()
        yield axes
        figure.canvas.draw()
        plt.close(figure)


def test_style_is_transparent_and_readable_on_a_phone(ax):
    import matplotlib as mpl

    assert ax.figure.get_facecolor()[3] == ax.get_facecolor()[3] == 0
    pixels_per_point = 343 / (mpl.rcParams["figure.figsize"][0] * 72)  # text column of a 375 px wide phone
    assert mpl.rcParams["font.size"] * pixels_per_point >= 11
    assert mpl.rcParams["xtick.labelsize"] * pixels_per_point >= 10
    assert mpl.rcParams["figure.figsize"][0] * mpl.rcParams["figure.dpi"] >= 1000
    assert len({str(one["linestyle"]) for one in mpl.rcParams["axes.prop_cycle"]}) == len(plots.PALETTE)


def test_roofline_bends_at_the_ridge_point(ax):
    plots.roofline(ax, {"H100": (989e12, 3.35e12)}, {"decode": (1, 3.35e12)}, (1, 1000))
    xs, ys = ax.lines[0].get_data()
    assert list(xs) == pytest.approx([1, 295.2239, 1000])
    assert list(ys) == pytest.approx([3.35, 989, 989])
    assert [text.get_text() for text in ax.texts] == ["295 FLOP/B"]
    assert ax.lines[1].get_xydata().tolist() == [[1, 3.35]]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["H100", "decode"]


def test_roofline_whose_ridge_lies_outside_has_no_mark(ax):
    plots.roofline(ax, {"low": (10e12, 3e12)}, flop_per_byte=(10, 1000))
    assert list(ax.lines[0].get_ydata()) == pytest.approx([10, 10, 10])
    assert len(ax.texts) == 0


def test_roofline_refuses_more_than_the_palette_holds(ax):
    with pytest.raises(ValueError, match="4 ceilings, 2 points; 5 can be told apart"):
        plots.roofline(ax, {str(k): (1e12, 1e12) for k in range(4)}, {"a": (1, 1), "b": (1, 1)})


def test_label_axes_says_units_and_prints_plain_numbers(ax):
    ax.plot([1, 10_000], [0, 2])
    plots.label_axes(ax, "Batch (sequences)", "Time (s)", log="x")
    ax.figure.canvas.draw()
    assert (ax.get_xlabel(), ax.get_title(loc="left")) == ("Batch (sequences)", "Time (s)")
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert "1,000" in [text.get_text() for text in ax.get_xticklabels()]
    assert "0.5" in [text.get_text() for text in ax.get_yticklabels()]


def test_label_axes_refuses_an_unknown_axis(ax):
    with pytest.raises(ValueError, match="log is 'z'; use '', 'x', 'y' or 'xy'"):
        plots.label_axes(ax, "x", "y", log="z")


def test_bars_stand_in_order_with_their_values(ax):
    plots.bars(ax, {"MLP": 82, "attention": 18}, "Share of FLOPs (%)", lambda value: f"{value} %")
    ax.figure.canvas.draw()
    assert [bar.get_width() for bar in ax.patches] == [82, 18]
    assert [text.get_text() for text in ax.texts] == ["82 %", "18 %"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["MLP", "attention"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
