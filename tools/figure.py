"""The README's figure: where prefill and decode of Llama-3.3-70B stand under the roofline of an H100.

python tools/figure.py            write _static/roofline.svg
python tools/figure.py --check    exit 1 if it is not what `econ` computes now

It brings its own paper in light and dark, so that it can be read whatever surrounds it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import econ  # noqa: E402
from econ.axis import Axis  # noqa: E402
from econ.live import DARK, LIGHT  # noqa: E402
from econ.svg import Frame  # noqa: E402
from econ.units import fmt  # noqa: E402

PATH = ROOT / "_static" / "roofline.svg"
WIDTH, HEIGHT, PLOT = 600, 400, Frame(60, 84, 522, 250)
TOKENS, BATCHES = 2048, (1, 8, 64, 512)
STYLE = f"""
svg {{ {LIGHT} font: 14.5px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--soft) }}
@media (prefers-color-scheme: dark) {{ svg {{ {DARK} }} }}
.paper {{ fill: var(--surface) }}
.title {{ font-size: 17px; font-weight: 600; fill: var(--ink) }}
.el-grid {{ stroke: var(--grid); fill: none }}
.el-base {{ stroke: var(--line) }}
.roof {{ stroke: var(--c0); fill: none; stroke-width: 2.5 }}
.roof-text {{ fill: var(--c0) }}
.drop {{ stroke: var(--c0); stroke-dasharray: 2 5 }}
text {{ paint-order: stroke; stroke: var(--surface); stroke-width: 4px }}
.decode {{ fill: var(--c1) }}
.prefill {{ fill: var(--c2) }}
"""


def steps() -> Iterator[tuple[str, str, econ.Work]]:
    """Kind, name and work of each point."""
    model = econ.load_model("llama-3.3-70b")
    for batch in BATCHES:
        name = f"{batch:,} answer{'s' * (batch > 1)} at once"
        yield "decode", name, econ.forward(model, batch=batch, context=TOKENS)
    yield "prefill", f"prompt of {TOKENS:,}", econ.forward(model, new_tokens=TOKENS)


def svg() -> str:
    """The figure as text; places are rounded to a tenth of a pixel."""
    gpu = econ.load_accelerator("h100-sxm")
    peak, bandwidth = gpu.flop_per_s("bf16"), gpu.hbm_bytes_per_s
    x = Axis("FLOP for each byte that is moved", "log", 0.5, 8_000)
    y = Axis("TFLOP/s that an H100 can reach, and share of its peak", "log", 1, 2_000)

    def spot(intensity: float) -> tuple[str, str]:
        rate = econ.attainable_flop_per_s(intensity, peak, bandwidth) / 1e12
        return (f"{PLOT.left + x.share(intensity) * PLOT.width:.1f}",
                f"{PLOT.top + (1 - y.share(rate)) * PLOT.height:.1f}")

    marks = "\n".join(point(kind, name, work, spot(work.intensity), peak, bandwidth) for kind, name, work in steps())
    roof = "L".join(" ".join(spot(intensity)) for intensity in (x.low, gpu.ridge("bf16"), x.high))
    ridge_x, ridge_y = spot(gpu.ridge("bf16"))
    grid = PLOT.grid(x, y, [1, 10, 100, 1000], [1, 10, 100, 1000]).replace('<text x="0" y="13"', '<text x="16" y="64"')
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">
<title>Llama-3.3-70B under the roofline of an H100</title>
<style>{STYLE}</style>
<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>
<text class="title" x="16" y="32">Llama-3.3-70B: reading computes, writing waits for memory</text>
{grid}
<path class="drop" d="M{ridge_x} {ridge_y}V{PLOT.top + PLOT.height}"/>
<path class="roof" d="M{roof}"/>
<text class="roof-text" x="{float(ridge_x) + 8:.1f}" y="{PLOT.top + PLOT.height - 12}">\
ridge: {fmt(gpu.ridge("bf16"), "FLOP/B")}</text>
<text class="roof-text" x="{PLOT.left + PLOT.width}" y="{float(ridge_y) - 10:.1f}" text-anchor="end">\
peak: {fmt(peak, "TFLOP/s")}</text>
{marks}
</svg>
"""


def point(kind: str, name: str, work: econ.Work, at: tuple[str, str], peak: float, bandwidth: float) -> str:
    """A dot, and below it its name and the share of the peak that is in use at best."""
    share = econ.attainable_flop_per_s(work.intensity, peak, bandwidth) / peak
    text = f"{name}: {fmt(share, '%', 2)}"
    left, right = f'x="{float(at[0]) + 12:.1f}"', f'x="{PLOT.left + PLOT.width}" text-anchor="end"'
    return (f'<circle class="{kind}" cx="{at[0]}" cy="{at[1]}" r="6"/>'
            f'<text class="{kind}" {left if kind == "decode" else right} y="{float(at[1]) + 20:.1f}">{text}</text>')


def main(argv: list[str]) -> int:
    """Write the figure, or with --check say whether it is current."""
    if "--check" in argv:
        current = PATH.exists() and PATH.read_text(encoding="utf-8") == svg()
        print("The figure is current." if current else f"{PATH.name} is out of date: run python tools/figure.py")
        return 0 if current else 1
    PATH.write_text(svg(), encoding="utf-8")
    print(f"wrote {PATH.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
