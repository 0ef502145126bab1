"""Static figures in one style. matplotlib is imported when a function runs, never with `econ`.

Every colour stands out on white and on near-black paper: a figure's background is transparent, and the reader
chooses the theme.
"""

from collections.abc import Callable, Mapping

from econ.axis import tick_text

PALETTE = ("#3a6fd8", "#c8401f", "#03a485", "#86587a", "#c47e1d")  # the hues of Okabe and Ito, in mid tones
INK, GRID = "#7b7b7b", "#80808040"  # contrast of 4.3 to 1 on white and on #121212: the most one grey can have
DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (7, 2, 1.5, 2)), (0, (3, 2)))
MARKERS = ("o", "s", "D", "^", "v")


def style() -> None:
    """Set the figure style of the book: transparent paper, colour-blind safe colours, text a phone can show.

    Call it once, in the set-up cell of a notebook.
    """
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update({
        "figure.figsize": (5.4, 3.5), "figure.dpi": 200, "savefig.dpi": 200, "savefig.transparent": True,
        "figure.facecolor": "none", "axes.facecolor": "none", "figure.constrained_layout.use": True,
        "font.size": 12.5, "axes.titlesize": 12.5, "axes.labelsize": 12.5, "legend.fontsize": 11.5,
        "xtick.labelsize": 11.5, "ytick.labelsize": 11.5, "axes.titlelocation": "left", "axes.titlepad": 10,
        "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "axes.edgecolor": INK,
        "xtick.color": INK, "ytick.color": INK,
        "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
        "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.8,
        "xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0, "ytick.minor.size": 0,
        "lines.linewidth": 2.2, "lines.markersize": 8, "legend.frameon": False, "legend.handlelength": 2.6,
        "axes.prop_cycle": cycler(color=PALETTE, linestyle=DASHES)})


def label_axes(ax, x_label: str, y_label: str, log: str = "") -> None:
    """Label both axes with their units; `log` names the logarithmic ones: "", "x", "y" or "xy".

    The label of the vertical axis stands above it, where a phone shows it upright. Ticks are plain numbers.
    Raises ValueError for any other `log`.
    """
    from matplotlib.ticker import NullFormatter

    if log not in ("", "x", "y", "xy"):
        raise ValueError(f"log is {log!r}; use '', 'x', 'y' or 'xy'")
    ax.set_xlabel(x_label, loc="right")
    ax.set_title(y_label)
    for letter, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        if letter in log:
            ax.set(**{f"{letter}scale": "log"})
            axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(lambda value, _: tick_text(value))


def roofline(ax, ceilings: Mapping[str, tuple[float, float]],
             points: Mapping[str, tuple[float, float]] | None = None,
             flop_per_byte: tuple[float, float] = (1, 2000)) -> None:
    """Draw rooflines with their ridge points, and computed or measured points under them.

    rate = min(peak, intensity * bandwidth)                                          [FLOP/s]

    `ceilings` maps names to (peak FLOP/s, HBM B/s); `points` maps names to (intensity FLOP/B, rate FLOP/s);
    `flop_per_byte` holds the two ends of the horizontal axis. The vertical axis is in TFLOP/s.
    Raises ValueError for more ceilings and points than there are colours.
    """
    points = points or {}
    if len(ceilings) + len(points) > len(PALETTE):
        raise ValueError(f"{len(ceilings)} ceilings, {len(points)} points; {len(PALETTE)} can be told apart")
    low, high = flop_per_byte
    for i, (name, (peak, bandwidth)) in enumerate(ceilings.items()):
        ridge = peak / bandwidth
        xs = [low, min(max(ridge, low), high), high]
        ax.plot(xs, [min(peak, bandwidth * x) / 1e12 for x in xs], color=PALETTE[i], linestyle=DASHES[i],
                label=name)
        if low < ridge < high:
            ax.annotate(f"{ridge:,.0f} FLOP/B", (ridge, peak / 1e12), xytext=(6, -5), va="top",
                        textcoords="offset points", color=PALETTE[i], fontsize=11.5)
    for i, (name, (intensity, rate)) in enumerate(points.items()):
        ax.plot(intensity, rate / 1e12, MARKERS[i], color=PALETTE[len(ceilings) + i], label=name, zorder=3)
    label_axes(ax, "Arithmetic intensity (FLOP/B)", "Rate (TFLOP/s)", log="xy")
    ax.legend(loc="lower right")


def bars(ax, values: Mapping[str, float], x_label: str, text: Callable[[float], str] = tick_text) -> None:
    """Draw one horizontal bar a name, the first at the top, with `text(value)` at the end of each."""
    drawn = ax.barh(list(values), list(values.values()), color=PALETTE[0], height=0.62)
    ax.bar_label(drawn, [text(value) for value in values.values()], padding=5, color=INK, fontsize=11.5)
    ax.set_xlabel(x_label, loc="right")
    ax.xaxis.set_major_formatter(lambda value, _: tick_text(value))
    ax.invert_yaxis()
    ax.margins(x=0.18)
    ax.grid(axis="y", visible=False)
