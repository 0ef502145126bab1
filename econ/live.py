"""Live figures: a chart with a slider, for readers of a page that has no kernel.

`LiveCurve` works out every slider position in Python, when the notebook runs. What it writes is one piece of
HTML: an SVG, a native range input, and a few lines of JavaScript that only look up and move what is already
there. It needs no network and no library, and without JavaScript the first position is still a whole figure.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from econ.axis import SCALES, Axis
from econ.svg import DASHES, LAYOUTS, Series, drawing

MAX_BYTES, MAX_LABEL = 60_000, 42  # a longer axis label is cut off on a phone
KEY = "\0"  # stands for the figure's id until its hash is known
LIGHT = ("--surface:#ffffff; --tile:#f3f5f8; --ink:#1c2126; --soft:#5a636d; --line:#d5dae0; --grid:#e6e9ed; "
         "--c0:#1f63b5; --c1:#c23a10; --c2:#0e9a72; --c3:#7a2f6b; --c4:#bd7f0e; --c5:#1c2126; "
         "color-scheme:light;")
DARK = ("--surface:#181b20; --tile:#22272d; --ink:#e8eaed; --soft:#a4acb5; --line:#3a4149; --grid:#2a2f36; "
        "--c0:#4f9bf0; --c1:#ef7a35; --c2:#58dcb4; --c3:#c97fc4; --c4:#ecd55c; --c5:#f4f6f8; "
        "color-scheme:dark;")


def _value_text(value) -> str:
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LiveCurve:
    """A chart with a slider that works in the book, in Colab and in JupyterLab, without a kernel.

    `values` are the slider's positions. `curves` maps names to (x, y), two sequences of one length; `points`
    maps names to one (x, y); `regions` maps names to (x, low, high), an area. Each may instead be a function
    of the slider's value that returns these, or None where there is nothing to show. `readout(value)` returns
    {"what": "number and unit"}, with the same names at every position. A scale is "linear", "log" or "log2".
    `description` says in words what the chart shows, for those who cannot see it.

    Every function is called when the figure is made. Places are rounded to 1/10,000 of an axis.
    Raises ValueError for empty, unequal or non-finite columns, values at or below 0 on a logarithmic axis,
    points outside a given range, more series than colours, and figures above 60 kB.

    >>> batches = [1, 2, 4]
    >>> LiveCurve(title="One read serves the batch", description="Intensity grows with the batch.",
    ...           x_label="Batch (sequences)", y_label="Intensity (FLOP/B)", slider_label="Batch",
    ...           values=batches, curves={"decode": (batches, batches)}, points={"now": lambda b: (b, b)},
    ...           readout=lambda b: {"Intensity": f"{b} FLOP/B"})
    LiveCurve "One read serves the batch"; Batch: 1 to 4 in 3 steps; at 1: Intensity 1 FLOP/B
    """
    title: str
    description: str
    x_label: str
    y_label: str
    slider_label: str
    values: Sequence
    readout: Callable[[Any], Mapping[str, str]]
    curves: Mapping[str, Any] = field(default_factory=dict)
    points: Mapping[str, Any] = field(default_factory=dict)
    regions: Mapping[str, Any] = field(default_factory=dict)
    x_scale: str = "linear"
    y_scale: str = "linear"
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    start: Any = None  # the value shown first; None: the first one
    value_text: Callable[[Any], str] = _value_text
    html: str = field(init=False, default="")

    def __post_init__(self) -> None:
        values = tuple(value.item() if hasattr(value, "item") else value for value in self.values)
        if len(values) < 2:
            raise ValueError(f"values has {len(values)} entries; a slider needs at least two")
        if self.start is not None and self.start not in values:
            raise ValueError(f"start is {self.start!r}; use one of the slider's values, {values!r:.60}")
        if not self.description.strip():
            raise ValueError("description is empty; say in words what the chart shows")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "html", self._html())

    def __repr__(self) -> str:
        low, high, now = map(self.value_text, (self.values[0], self.values[-1], self._first))
        answers = ", ".join(f"{name} {text}" for name, text in self.readout(self._first).items())
        return (f'LiveCurve "{self.title}"; {self.slider_label}: {low} to {high} in {len(self.values)} '
                f"steps; at {now}: {answers}")

    def _repr_html_(self) -> str:
        return self.html

    @property
    def _first(self) -> Any:
        return self.values[0] if self.start is None else self.start

    def _html(self) -> str:
        series = _all_series(self.curves, self.points, self.regions, self.values)
        x = _axis("x", self.x_label, self.x_scale, self.x_range, series)
        y = _axis("y", self.y_label, self.y_scale, self.y_range, series)
        readouts = _readouts(self.readout, self.values)
        labels = [self.value_text(value) for value in self.values]
        start = self.values.index(self._first)
        frames = [{"value": label, "readout": list(readout.values()), "moves": _moves(series, i, x, y)}
                  for i, (label, readout) in enumerate(zip(labels, readouts, strict=True))]
        plots = [drawing(KEY, layout, series, start, x, y, self.title, self.description)
                 for layout in LAYOUTS]
        return _page(
            title=escape(self.title), legend="".join(one.swatch() for one in series if one.kind != "region"),
            plots="".join(plots), slider=escape(self.slider_label), value=escape(labels[start]), start=start,
            last=len(labels) - 1, lowest=escape(labels[0]), highest=escape(labels[-1]),
            readout=_answers(readouts[start]), table=_table(self.slider_label, labels, readouts),
            frames=json.dumps(frames, separators=(",", ":")).replace("<", "\\u003c"))


def _page(**parts) -> str:
    """The template filled in; its key is a hash of all of it, so that equal figures are equal text."""
    template = Template(files("econ").joinpath("data/live.html").read_text(encoding="utf-8"))
    page = template.substitute(id=KEY, light=LIGHT, dark=DARK, **parts)
    page = page.replace(KEY, "live-" + hashlib.sha256(page.encode()).hexdigest()[:10])
    if len(page.encode()) > MAX_BYTES:
        raise ValueError(f"the figure takes {len(page.encode()):,} bytes and {MAX_BYTES:,} are allowed; "
                         "use fewer slider values, or fewer points on the curves that move")
    return page


def _numbers(values, what: str) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        raise ValueError(f"{what} must hold numbers, got {values!r:.60}") from None
    if not numbers:
        raise ValueError(f"{what} is empty; give at least one number")
    bad = [number for number in numbers if not math.isfinite(number)]
    if bad:
        raise ValueError(f"{what} holds {bad[0]}; give finite numbers, or None to hide it at this position")
    return numbers


def _outline(kind: str, what: str, given) -> list[tuple[float, float]] | None:
    """The corners of a curve, a point or a region; None where it is hidden."""
    if given is None:
        return None
    form = "(x, low, high)" if kind == "region" else "(x, y)"
    if not isinstance(given, Sequence) or len(given) != form.count(",") + 1:
        raise ValueError(f"{what} must be {form}, got {given!r:.60}")
    columns = [_numbers([column] if kind == "point" else column, what) for column in given]
    if len({len(column) for column in columns}) > 1:
        lengths = " and ".join(str(len(column)) for column in columns)
        raise ValueError(f"{what} has columns of {lengths} numbers; give columns of one length")
    back = list(zip(columns[0], columns[1], strict=True))[::-1] if kind == "region" else []
    return list(zip(columns[0], columns[-1], strict=True)) + back


def _all_series(curves, points, regions, values) -> list[Series]:
    named = [(kind, rank, name, given)
             for kind, group in (("curve", curves), ("point", points), ("region", regions))
             for rank, (name, given) in enumerate(group.items())]
    if not named:
        raise ValueError("the figure is empty; give at least one curve, point or region")
    if len(named) > len(DASHES):
        raise ValueError(f"{len(named)} curves, points and regions; at most {len(DASHES)} can be told apart")
    series = []
    for slot, (kind, rank, name, given) in enumerate(named):
        states = [given(value) if callable(given) else given for value in values]
        outlines = [_outline(kind, f"{kind} {name!r} at {value!r}", state)
                    for value, state in zip(values, states, strict=True)]
        series.append(Series(kind=kind, name=name, slot=slot, rank=rank, moves=callable(given),
                             outlines=outlines))
    if not any(outline for one in series for outline in one.outlines):
        raise ValueError("every curve, point and region is hidden at every position; show at least one")
    return series


def _axis(letter: str, label: str, scale: str, limits, series: list[Series]) -> Axis:
    if len(label) > MAX_LABEL:
        raise ValueError(f"{letter}_label has {len(label)} characters; a phone shows {MAX_LABEL}")
    if scale not in SCALES:
        raise ValueError(f"{letter}_scale is {scale!r}; use one of {', '.join(SCALES)}")
    numbers = {one: [corner["xy".index(letter)] for outline in one.outlines for corner in outline or []]
               for one in series}
    ends = [] if limits is None else _numbers(limits, f"{letter}_range")
    if limits is not None and (len(ends) != 2 or ends[0] >= ends[1]):
        raise ValueError(f"{letter}_range is {limits!r}; give (low, high) with low below high")
    for one, values in numbers.items():
        if scale != "linear" and min([*ends, *values], default=1) <= 0:
            raise ValueError(f"{one.kind} {one.name!r} or {letter}_range holds {min([*ends, *values]):g} on "
                             f"a logarithmic axis; use positive numbers or {letter}_scale='linear'")
        if ends and one.kind == "point" and not all(ends[0] <= value <= ends[1] for value in values):
            raise ValueError(f"point {one.name!r} leaves {letter}_range {limits!r}; widen the range")
    if ends:
        return Axis(label, scale, *ends)
    return Axis.around(label, scale, sum(numbers.values(), []), margin=letter == "y")


def _readouts(readout, values) -> list[dict[str, str]]:
    texts = [dict(readout(value)) for value in values]
    for value, text in zip(values, texts, strict=True):
        if not text or list(text) != list(texts[0]):
            raise ValueError(f"readout names {list(text)} at {value!r}; give the same names everywhere")
        for name, answer in text.items():
            if not isinstance(answer, str):
                raise ValueError(f"readout {name!r} is {answer!r} at {value!r}; make it text, with its unit")
    return texts


def _answers(readout: Mapping[str, str]) -> str:
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
                   for name, text in readout.items())


def _moves(series: list[Series], position: int, x: Axis, y: Axis) -> dict[str, Any]:
    """What the page has to move when the slider comes to a position."""
    moves = {str(one.slot): one.place(position, x, y) for one in series if one.moves}
    return moves | {f"{one.slot}n": one.name_place(position, x, y) for one in series
                    if one.moves and one.kind == "region"}


def _table(head: str, labels: list[str], readouts: list[dict[str, str]]) -> str:
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in [head, *readouts[0]])
    rows = "".join(f'<tr><th scope="row">{escape(label)}</th>'
                   + "".join(f"<td>{escape(text)}</td>" for text in readout.values()) + "</tr>"
                   for label, readout in zip(labels, readouts, strict=True))
    return f"<thead><tr>{top}</tr></thead><tbody>{rows}</tbody>"
