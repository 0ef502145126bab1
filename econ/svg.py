"""Curves, points and regions as SVG: the drawing half of `econ.live`.

Places are integers on a square grid. The drawing scales the square to its plot area, so one set of places
serves the wide and the narrow drawing of a figure.
"""

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from econ.axis import Axis, tick_text

GRID = 10_000  # under a tenth of a pixel on any screen
LAYOUTS = (("wide", 640, 360), ("narrow", 320, 290))  # class, width, height; live.html shows one of them
DASHES = ("none", "9 5", "2 5", "12 4 2 4", "5 3", "2 2")
SHAPES = ("M-7 0a7 7 0 1 0 14 0a7 7 0 1 0-14 0z", "M-6.5-6.5h13v13h-13z", "M0-9l9 9-9 9-9-9z",
          "M0-9l9 15h-18z", "M-8-3h5v-5h6v5h5v6h-5v5h-6v-5h-5z", "M0 9l9-15h-18z")
CHARACTER = 7.4  # width of a character at 13 px


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """One named curve, point or region; `outlines` holds its (x, y) corners at every slider position."""
    kind: str
    name: str
    slot: int  # which colour
    rank: int  # which dash, or which shape
    moves: bool
    outlines: list[list[tuple[float, float]] | None]

    def place(self, position: int, x: Axis, y: Axis) -> Any:
        """A path on the grid, the place of a point on it, or None where it is hidden."""
        if self.outlines[position] is None:
            return None
        spots = [(round(GRID * u), round(GRID * v)) for u, v in self._shares(position, x, y)]
        if self.kind == "point":
            return list(spots[0])
        distinct = [spot for i, spot in enumerate(spots) if i == 0 or spot != spots[i - 1]]
        return "M" + "L".join(f"{u} {v}" for u, v in distinct) + ("Z" if self.kind == "region" else "")

    def name_place(self, position: int, x: Axis, y: Axis) -> list[int] | None:
        """The centroid of a region, moved sideways until its name fits on a phone."""
        if self.outlines[position] is None:
            return None
        corners = [(min(max(u, 0), 1), min(max(v, 0), 1)) for u, v in self._shares(position, x, y)]
        parts = [(a * d - c * b, a + c, b + d) for (a, b), (c, d) in pairwise([*corners, corners[0]])]
        area = sum(part[0] for part in parts)
        if abs(area) < 1e-6:
            return None
        half = min(CHARACTER / 2 * len(self.name) / 260, 0.5)
        u, v = (sum(part[0] * part[i] for part in parts) / (3 * area) for i in (1, 2))
        return [round(GRID * min(max(u, half), 1 - half)), round(GRID * v)]

    def _shares(self, position: int, x: Axis, y: Axis) -> list[tuple[float, float]]:
        return [(x.share(a), 1 - y.share(b)) for a, b in self.outlines[position] or []]

    def swatch(self) -> str:
        """Its entry in the legend."""
        if self.kind == "point":
            mark = f'<path class="el-point" d="{SHAPES[self.rank]}" transform="translate(15 7) scale(.75)"/>'
        else:
            mark = f'<path class="el-curve" stroke-dasharray="{DASHES[self.rank]}" d="M0 7h30"/>'
        return (f'<span><svg viewBox="0 0 30 14" aria-hidden="true" style="--c:var(--c{self.slot})">'
                f"{mark}</svg>{escape(self.name)}</span>")

    def draw(self, position: int, x: Axis, y: Axis, frame: "Frame") -> str:
        """Its path or its point, as it stands at one slider position."""
        at = self.place(position, x, y)
        style = f"--c:var(--c{self.slot})" + ("" if at else ";display:none")
        if self.kind == "point":
            spot = frame.spot(at, self.slot, self.moves)
            return f'<path class="el-point" d="{SHAPES[self.rank]}"{spot} style="{style}"/>'
        dash = "" if self.kind == "region" else f' stroke-dasharray="{DASHES[self.rank]}"'
        move = f' data-move="{self.slot}"' if self.moves else ""
        return f'<path class="el-{self.kind}"{dash}{move} style="{style}" d="{at or "M0 0"}"/>'

    def draw_name(self, position: int, x: Axis, y: Axis, frame: "Frame") -> str:
        """The name of a region, standing in it."""
        at = self.name_place(position, x, y)
        hidden = "" if at else ' style="display:none"'
        spot = frame.spot(at, f"{self.slot}n", self.moves)
        return f'<text class="el-name" text-anchor="middle"{spot}{hidden}>{escape(self.name)}</text>'


@dataclass(frozen=True, slots=True)
class Frame:
    """The plot area of one drawing, in pixels at its natural size."""
    left: float
    top: float
    width: float
    height: float

    def spot(self, at: list[int] | None, key: int | str, moves: bool) -> str:
        """Attributes that put something at a place on the grid and, if it moves, let the page move it."""
        w, h = self.width / GRID, self.height / GRID
        put = f' transform="translate({at[0] * w:.6g} {at[1] * h:.6g})"' if at else ""
        return put + (f' data-move="{key}" data-w="{w:.6g}" data-h="{h:.6g}"' if moves else "")

    def grid(self, x: Axis, y: Axis, x_ticks: list[float], y_ticks: list[float]) -> str:
        """Grid lines, tick labels and axis labels."""
        right, bottom = self.left + self.width, self.top + self.height
        lines = [f'<text x="0" y="13" class="el-axis">{escape(y.label)}</text>',
                 f'<text x="{right:.6g}" y="{bottom + 40:.6g}" class="el-axis" text-anchor="end">'
                 f"{escape(x.label)}</text>"]
        for tick in y_ticks:
            v = f"{bottom - y.share(tick) * self.height:.6g}"
            lines.append(f'<path class="el-grid" d="M{self.left:.6g} {v}H{right:.6g}"/>'
                         f'<text x="{self.left - 8:.6g}" y="{v}" dy=".35em" text-anchor="end">'
                         f"{tick_text(tick)}</text>")
        for tick in x_ticks:
            u = f"{self.left + x.share(tick) * self.width:.6g}"
            lines.append(f'<path class="el-grid" d="M{u} {self.top}V{bottom:.6g}"/>'
                         f'<text x="{u}" y="{bottom + 19:.6g}" text-anchor="middle">{tick_text(tick)}</text>')
        lines.append(f'<path class="el-grid el-base" d="M{self.left:.6g} {bottom:.6g}H{right:.6g}"/>')
        return "".join(lines)


def drawing(key: str, layout: tuple[str, int, int], series: list[Series], position: int, x: Axis, y: Axis,
            title: str, description: str) -> str:
    """One SVG of a figure at one slider position, in the wide or the narrow layout."""
    name, width, height = layout
    y_ticks = y.ticks(height - 80, lambda a, b: 32)
    left = 12 + CHARACTER * max(len(tick_text(tick)) for tick in y_ticks)
    frame = Frame(left, 34, width - left - 18, height - 80)
    x_ticks = x.ticks(frame.width, lambda a, b: CHARACTER * (len(a) + len(b)) / 2 + 14)
    order = [one for kind in ("region", "curve", "point") for one in series if one.kind == kind]
    lines = "".join(one.draw(position, x, y, frame) for one in order if one.kind != "point")
    marks = "".join(one.draw_name(position, x, y, frame) for one in order if one.kind == "region")
    marks += "".join(one.draw(position, x, y, frame) for one in order if one.kind == "point")
    scale = f"scale({frame.width / GRID:.6g} {frame.height / GRID:.6g})"
    return (f'<svg class="el-plot el-{name}" viewBox="0 0 {width} {height}" role="img" '
            f'aria-labelledby="{key}-{name}-title {key}-{name}-desc">'
            f'<title id="{key}-{name}-title">{escape(title)}</title>'
            f'<desc id="{key}-{name}-desc">{escape(description)}</desc>'
            f'<clipPath id="{key}-{name}-clip"><path d="M-50-100H{GRID + 50}V{GRID + 100}H-50z"/></clipPath>'
            f"{frame.grid(x, y, x_ticks, y_ticks)}"
            f'<g transform="translate({frame.left:.6g} {frame.top})"><g transform="{scale}" '
            f'clip-path="url(#{key}-{name}-clip)">{lines}</g>{marks}</g></svg>')
