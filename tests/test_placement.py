"""Which part each GPU holds under every mix of degrees, and what fits beside it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from econ import Deployment, DoesNotFit, load_model
from econ.memory import memory
from econ.parallel import stages

pytestmark = pytest.mark.core

DEGREES = {
    "llama-3.3-70b": [dict(n_gpus=4), dict(n_gpus=4, tp=2, pp=2), dict(n_gpus=8, tp=1, pp=8),
                      dict(n_gpus=16, tp=4, dp=4)],
    "deepseek-v3": [dict(n_gpus=16, weights="fp8"), dict(n_gpus=16, tp=1, dp=16, ep=16), dict(n_gpus=32, tp=8, pp=4),
                    dict(n_gpus=32, tp=4, pp=2, dp=4, ep=16)],
    "gpt-oss-20b": [dict(), dict(n_gpus=3, tp=1, pp=3), dict(n_gpus=4, tp=2, dp=2, ep=4)],
    "jamba-v0.1": [dict(n_gpus=2), dict(n_gpus=4, tp=2, pp=2)], "mamba-2.8b": [dict(), dict(n_gpus=2, tp=1, pp=2)],
}
placed = st.sampled_from([(name, i) for name, settings in DEGREES.items() for i in range(len(settings))])


def place(setting):
    name, i = setting
    return Deployment(name, "h200-sxm", **DEGREES[name][i])


@given(placed, st.integers(1, 2000), st.integers(1, 100_000))
def test_what_fits_agrees_with_what_would_fit(setting, batch, context):
    d = place(setting)
    m = d.memory(batch, context)
    assert m.fits == (batch <= m.max_batch) == (m.free_bytes >= 0)
    assert m.max_batch == 0 or d.memory(m.max_batch, context).fits
    assert not d.memory(m.max_batch + 1, context).fits
    limit = d.model.max_context or 10**15
    assert m.max_context == 0 or d.memory(batch, m.max_context).fits
    assert m.max_context >= limit or m.max_context == 0 or not d.memory(batch, m.max_context + 1).fits


@given(placed, st.integers(0, 500), st.integers(0, 50_000))
def test_the_parts_add_up_to_the_budget(setting, batch, context):
    m = place(setting).memory(batch, context)
    held = m.weight_bytes + m.kv_reserved_bytes + m.state_bytes + m.activation_bytes + m.overhead_bytes
    assert held + m.free_bytes == pytest.approx(m.budget_bytes, rel=1e-12) and m.kv_bytes <= m.kv_reserved_bytes
    assert m.budget_bytes == pytest.approx(0.9 * 150_753_352_090)


@pytest.mark.parametrize("pp", [2, 4])
def test_the_fullest_stage_decides(pp):
    """A stage of the 70B alone on its GPU: first and last hold a table of 2.1 GB each beside their layers."""
    d = Deployment("llama-3.3-70b", "h200-sxm", n_gpus=pp, tp=1, pp=pp)
    alone = [memory(part, d.memory().budget_bytes, 16, 4096) for part in stages(load_model("llama-3.3-70b"), pp)]
    fullest = min(alone, key=lambda m: m.free_bytes)
    m = d.memory(16, 4096)
    assert (m.weight_bytes, m.free_bytes) == (fullest.weight_bytes, fullest.free_bytes)
    assert m.max_batch == min(a.max_batch for a in alone) and m.weight_bytes > 141_107_412_992 / pp


def test_another_stage_may_be_the_fullest_at_another_batch():
    """80 layers in 6 stages: 13, 13, 13, 14, 14, 13. The first has a table of 2.1 GB, the fourth 1.7 GB of weights more
    and more cache: an array sees both."""
    d = Deployment("llama-3.3-70b", "h200-sxm", n_gpus=6, tp=1, pp=6)
    batch = np.array([0, 1, 64, 512])
    many = d.memory(batch, 4096)
    for i, b in enumerate(batch.tolist()):
        one = d.memory(b, 4096)
        for name in ("weight_bytes", "kv_reserved_bytes", "free_bytes", "max_batch", "max_context"):
            assert np.broadcast_to(getattr(many, name), 4)[i] == pytest.approx(getattr(one, name), rel=1e-12), name
    assert len({len(part.layers) for part in d.stages}) == 2 and len(set(np.broadcast_to(many.weight_bytes, 4))) == 2


sizes = st.lists(st.integers(1, 9000), min_size=1, max_size=3)


@given(placed, sizes, sizes)
def test_passes_of_arrays_are_the_scalar_calls(setting, batches, contexts):
    d = place(setting)
    many = d.decode(np.array(batches).reshape(-1, 1), np.array(contexts))
    for i, j in np.ndindex(len(batches), len(contexts)):
        def at(value, index=(i, j)):
            return np.broadcast_to(np.asarray(value), (len(batches), len(contexts)))[index]
        try:
            one = d.decode(batches[i], contexts[j])
        except DoesNotFit:
            assert not at(many.feasible) and math.isnan(at(many.time_s)) and math.isnan(at(many.mbu_frac))
            continue
        for name in ("time_s", "compute_s", "memory_s", "flops", "bytes", "mfu_frac", "mbu_frac"):
            assert at(getattr(many, name)) == pytest.approx(getattr(one, name), rel=1e-12), name


def test_a_deployment_prints_what_was_asked():
    """One line with names, not the models themselves."""
    d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=8, tp=2, pp=2, dp=2, kv="fp8", link=1e9, max_running=7)
    assert repr(d) == ("Deployment(model='llama-3.3-70b', accelerator='h100-sxm', n_gpus=8, tp=2, pp=2, dp=2, "
                       "kv='fp8', link='given', max_running=7)")
