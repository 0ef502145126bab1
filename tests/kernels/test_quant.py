"""Weight-only formats: bytes as `econ` counts them, errors of half a step, torch's kernels where they exist."""

import dataclasses
import math
import platform

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

import torch.nn.functional as F  # noqa: E402

from econ.kernels import _setup, quant  # noqa: E402
from econ.precision import FORMATS  # noqa: E402

OPERATORS = ("_weight_int8pack_mm", "_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu")
needs_fused = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or not all(hasattr(torch, name) for name in OPERATORS),
    reason="torch has no packed kernels for this processor")


@pytest.fixture(autouse=True)
def _one_thread():
    with _setup.one_thread():
        yield


def weight(rows=256, cols=1024, seed=0):
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)) / 32


def vectors(batch=8, cols=1024):
    return torch.randn(batch, cols, generator=torch.Generator().manual_seed(1))


def steps_of(quantized, shape):
    """The scale that belongs to each weight."""
    return quantized.scales.float().repeat_interleave(shape[1] // quantized.scales.shape[1], dim=1)


# --- bytes and errors ---------------------------------------------------------------------------

@pytest.mark.parametrize("shape", [(1, 128), (48, 128), (256, 1024), (7, 384)])
def test_bytes_are_those_of_the_format(shape):
    for name, quantize in quant.QUANTIZERS.items():
        quantized = quantize(weight(*shape))
        assert quantized.bytes == FORMATS[name].bytes(shape)
        assert quantized.dequantized().shape == shape


def test_bytes_by_hand():
    assert quant.quantize_int8(weight(4, 256)).bytes == 4 * 256 + 4 * 2
    assert quant.quantize_int4(weight(4, 256)).bytes == 4 * 128 + 4 * 2 * 2 + 4  # codes, scales, half a byte each


@pytest.mark.parametrize(("quantize", "most"), [
    (quant.quantize_int8, 0.5), (quant.quantize_int4, 0.57), (lambda w: quant.quantize_int4(w, 32), 0.57),
], ids=["int8", "int4", "int4 of 32"])
def test_each_weight_is_off_by_half_a_step_at_most(quantize, most):
    """int4 adds the rounding of its scale to 8 bits, times up to 15 steps: 15 / 512 / 2 and as much for the zero."""
    w = weight()
    quantized = quantize(w)
    off = (w - quantized.dequantized()).abs() / steps_of(quantized, w.shape)
    assert 0.4 < off.max() <= most + 1e-4


@pytest.mark.parametrize(("quantize", "measured"), [
    (quant.quantize_int8, 0.008), (quant.quantize_int4, 0.10), (lambda w: quant.quantize_int4(w, 32), 0.08),
], ids=["int8", "int4", "int4 of 32"])
def test_the_error_of_a_product_is_a_step_over_the_root_of_twelve(quantize, measured):
    """Rounding errors spread evenly over a step, so that their root mean square is step / sqrt(12)."""
    w, x = weight(), vectors()
    quantized = quantize(w)
    expected = float(steps_of(quantized, w.shape).square().mean().sqrt() / math.sqrt(12) / w.square().mean().sqrt())
    error = quant.relative_error(quant.linear(x, quantized), F.linear(x, w))
    assert error == pytest.approx(expected, rel=0.06) and error == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("name", "wrong"), [
    ("unpack_nibbles", lambda packed: torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)),  # swapped
    ("unpack_nibbles", lambda packed: torch.cat((packed >> 4, packed & 15), dim=-1)),  # halves instead of pairs
])
def test_codes_in_the_wrong_place_would_be_noticed(monkeypatch, name, wrong):
    w, x = weight(), vectors()
    quantized = quant.quantize_int4(w)
    monkeypatch.setattr(quant, name, wrong)
    assert quant.relative_error(quant.linear(x, quantized), F.linear(x, w)) > 0.5


def test_a_forgotten_zero_or_one_scale_for_all_would_be_noticed():
    w, x = weight() * torch.logspace(-2, 0, 256)[:, None], vectors()
    eight, four = quant.quantize_int8(w), quant.quantize_int4(w)
    for wrong in (dataclasses.replace(eight, scales=eight.scales.mean().expand_as(eight.scales)),
                  dataclasses.replace(four, zeros=torch.zeros_like(four.zeros))):
        assert quant.relative_error(quant.linear(x, wrong), F.linear(x, w)) > 0.3


def test_one_sided_and_empty_groups_are_kept():
    w = torch.cat((torch.zeros(3, 32), torch.full((3, 32), 2.0), -torch.ones(3, 32)), dim=1)
    found = quant.quantize_int4(w, 32).dequantized()
    assert torch.allclose(found, w, rtol=0.005) and not found[:, :32].any()
    for quantized in (quant.quantize_int8(torch.zeros(2, 8)), quant.quantize_int4(torch.zeros(2, 8), 8)):
        assert torch.equal(quantized.dequantized(), torch.zeros(2, 8)) and quantized.scales.min() > 0


def test_every_code_survives_packing():
    codes = torch.arange(256, dtype=torch.uint8)
    pairs = torch.stack((codes >> 4, codes & 15), dim=-1).flatten()
    assert torch.equal(quant.pack_nibbles(pairs), codes) and torch.equal(quant.unpack_nibbles(codes), pairs)


# --- torch's own kernels ------------------------------------------------------------------------

@needs_fused
def test_both_kernels_are_found():
    assert quant.fused_formats("cpu") == ("int8", "int4")


@needs_fused
@pytest.mark.parametrize("quantize", [quant.quantize_int8, quant.quantize_int4, lambda w: quant.quantize_int4(w, 32)],
                         ids=["int8", "int4", "int4 of 32"])
def test_torchs_kernel_gives_the_product_of_the_same_codes(quantize):
    w, x = weight(), vectors()
    quantized = quantize(w)
    exact = F.linear(x.bfloat16().float(), quantized.dequantized())
    assert quant.relative_error(quant.pack(quantized).linear(x.bfloat16()).float(), exact) < 0.006


@needs_fused
def test_a_kernel_that_disagrees_is_not_used(monkeypatch):
    monkeypatch.setattr(torch, "_weight_int4pack_mm_for_cpu", lambda x, w, group, scales: torch.zeros(len(x), 64))
    assert quant.fused_formats("cpu") == ("int8",)


def test_torch_without_these_kernels_is_no_error(monkeypatch):
    monkeypatch.delattr(torch, "_weight_int8pack_mm", raising=False)
    monkeypatch.delattr(torch, "_convert_weight_to_int4pack_for_cpu", raising=False)
    assert quant.fused_formats("cpu") == ()
    assert {row.name for row in quant.sweep(256, (1,), "cpu", repeats=3)} == {"bf16"}


@needs_fused
def test_packed_bytes_are_what_a_product_reads():
    w = weight()
    packed = {name: quant.pack(quantize(w)) for name, quantize in quant.QUANTIZERS.items()}
    assert packed["int8"].bytes == 256 * 1024 + 256 * 2
    assert packed["int4"].bytes == 256 * 512 + 256 * 8 * 4  # 32 bits for scale and zero of 128 weights


@pytest.fixture(scope="module")
def sweep():
    """Times by format and batch, in units of bf16 at the same batch."""
    rows = quant.sweep(device="cpu")
    times = {(row.name, row.batch): row.time_s for row in rows}
    return {key: times["bf16", key[1]] / time_s for key, time_s in times.items()}


@needs_fused
@pytest.mark.timing
def test_fewer_bytes_win_at_batch_one(sweep):
    assert sweep["int8", 1] >= 1.5 and sweep["int4", 1] >= 2.5


@needs_fused
@pytest.mark.timing
def test_the_gain_reverses_as_the_batch_grows(sweep):
    for name in ("int8", "int4"):
        assert sweep[name, 1] > sweep[name, 4] > sweep[name, 64]
        assert sweep[name, 64] < 1


@pytest.mark.timing
def test_expanding_first_is_slower_than_bf16():
    w, x = weight(2048, 2048).bfloat16(), vectors(1, 2048).bfloat16()
    quantized = quant.quantize_int8(w)
    wide, narrow = (quant.time_median(fn, 5, "cpu").median_s
                    for fn in (lambda: F.linear(x, w), lambda: quant.linear(x, quantized)))
    assert narrow > wide


# --- bad input ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("call", "message"), [
    (lambda: quant.quantize_int8(torch.zeros(4)), "use a floating-point matrix [N, K]"),
    (lambda: quant.quantize_int8(torch.zeros(4, 4, dtype=torch.int64)), "torch.int64 [4, 4]"),
    (lambda: quant.quantize_int4(weight(4, 100)), "rows of 100 weights do not divide into groups of 128"),
    (lambda: quant.quantize_int4(weight(4, 99), 33), "use an even divisor"),
    (lambda: quant.quantize_int4(weight(), 0), "group=0"),
    (lambda: quant.linear(vectors(2, 100), quant.quantize_int8(weight())), "takes [B, 1024]"),
    (lambda: quant.unquantized(weight()).linear(vectors()), "torch.float32"),
])
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(ValueError, match=".") as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)


@needs_fused
def test_vectors_of_another_length_are_refused_by_the_kernels():
    for quantize in quant.QUANTIZERS.values():
        with pytest.raises(ValueError, match=r"takes \[B, 1024\]"):
            quant.pack(quantize(weight())).linear(vectors(2, 100).bfloat16())
