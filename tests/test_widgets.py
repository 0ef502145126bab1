"""The explorer shows what the formulas say, at every slider position, and survives what does not fit."""

import pytest

import econ
from econ.widgets import TrafficExplorer, traffic

pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")


def test_moving_a_slider_recomputes_everything():
    explorer = TrafficExplorer()
    explorer.gpus.value, explorer.batch.value, explorer.context.value = 4, 32, 8192
    # 32 * 8,192 tokens * 327,680 B = 85.9 GB of cache; 139.0 GB of streamed weights
    assert explorer.text["cache"] == "85.9 GB"
    assert explorer.text["weights"] == "139 GB"
    assert explorer.text["cache / weights"] == "0.62x"
    before = explorer.output.value
    explorer.batch.value = 64
    assert explorer.text["cache"] == "172 GB"
    assert explorer.output.value != before


def test_a_step_takes_bytes_over_bandwidth():
    text = traffic(econ.Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4), 32, 8192)
    milliseconds = (139.006e9 + 85.899e9) / (4 * 3.35e12) * 1e3
    assert abs(float(text["one step"].split()[0]) - milliseconds) < 0.05


def test_what_does_not_fit_is_said_and_not_raised():
    explorer = TrafficExplorer()
    explorer.gpus.value = 1
    assert explorer.text["one step"] == "does not fit"
    assert "short by" in explorer.text["why"]
    explorer.gpus.value = 8
    assert "ms" in explorer.text["one step"]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-120b", "gpt2"])
def test_every_position_of_every_slider_gives_text(model):
    explorer = TrafficExplorer(model)
    for control in (explorer.batch, explorer.context, explorer.gpus):
        for option in control.options:
            control.value = option
            assert explorer.text["cache"] and explorer.text["one step"]


def test_an_unknown_model_is_named():
    with pytest.raises(econ.UnknownName, match="lama-9"):
        TrafficExplorer("lama-9")
