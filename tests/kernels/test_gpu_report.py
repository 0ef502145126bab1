"""The report of a machine: its fields are those the README documents, its numbers agree with each other.

It runs for real on this CPU, small. What it does on a GPU runs on one of shapes, as in test_gpu_branches.
"""

import dataclasses
import json
import math
import re
import subprocess
import types

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

import gpu_report  # noqa: E402
import gpu_rows  # noqa: E402
from test_gpu_branches import Event, Generator, Indexing, counted  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import econ  # noqa: E402
from econ.kernels import _setup, messages  # noqa: E402
from econ.kernels.llama import Llama  # noqa: E402
from econ.names import DATA  # noqa: E402

ROW = {"measured", "spread_frac", "predicted", "ratio"}
TIMED = {"datasheet", "ceilings", "gemv"}


def documented():
    """Fields by table, from the README."""
    text = (DATA / "measured" / "README.md").read_text(encoding="utf-8").split("## Reports of tools/gpu_report.py")[1]
    tables = re.findall(r"^\| ([\w ]+) \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.M)
    return {name: {field for line in body.splitlines() for field in re.findall(r"`(\w+)`", line.split("|")[1])}
            for name, body in tables}


FIELDS = documented()


def tables(report):
    """Every row of a report by the README's table that describes it, and the predictors it must have."""
    yield "conditions", [report["conditions"]], None
    yield "ceilings", report["ceilings"], {"datasheet"}
    yield "linear", report["linear"], TIMED
    yield "llama", [report["llama"]], None
    yield "llama steps", report["llama"]["steps"], TIMED
    yield "attention", report["attention"], TIMED
    yield "all_reduce", report["all_reduce"], None
    yield "all_reduce times", [row for fit in report["all_reduce"] for row in fit["times"]], {"datasheet", "fit"}


def check(report):
    """A report has exactly the documented fields, finite numbers, and ratios that are what they say."""
    assert set(report) == FIELDS["top level"]
    for name, rows, predictors in tables(report):
        for row in rows:
            assert set(row) == FIELDS[name] | (ROW if predictors else set()), name
            if predictors:
                check_row(row, predictors)
    assert all(set(row) == {"what", "why"} and all(row.values()) for row in report["skipped"])
    conditions = report["conditions"]
    assert conditions["device"] in ("cpu", "cuda") and conditions["sizes"] in ("small", "large")
    assert conditions["accelerator"] is None or conditions["accelerator"] in econ.accelerators()
    assert re.fullmatch(r"20\d\d-[01]\d-[0-3]\d", conditions["date"])


def check_row(row, predictors):
    assert set(row["predicted"]) == set(row["ratio"]) == predictors
    assert math.isfinite(row["measured"]) and row["measured"] > 0 and row["spread_frac"] >= 0
    for name, value in row["predicted"].items():
        if value is None:
            assert row["ratio"][name] is None
        else:
            assert row["ratio"][name] == pytest.approx(row["measured"] / value, rel=2e-4)   # both are rounded


def test_every_field_of_a_row_is_documented():
    assert FIELDS["measured row"] == ROW
    assert set(FIELDS) == {"measured row", "top level"} | {name for name, _, _ in tables(
        {"conditions": {}, "ceilings": [], "linear": [], "llama": {"steps": []}, "attention": [], "all_reduce": []})}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.json"
    assert gpu_report.main(["--out", str(path), "--small", "--processes", "2"]) == 0
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)   # no NaN, no Infinity


on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="here the report measures the GPU")


@on_cpu
def test_the_report_of_a_cpu_is_complete_and_says_what_it_is(small):
    check(small)
    conditions = small["conditions"]
    assert (conditions["device"], conditions["sizes"], conditions["n_gpus"]) == ("cpu", "small", 0)
    assert (conditions["accelerator"], conditions["driver"], conditions["cpu_threads"]) == (None, None, 1)
    assert small["skipped"] == []


@on_cpu
def test_every_part_is_in_the_report(small):
    assert [row["name"] for row in small["ceilings"]] == [
        "matmul fp64", "matmul fp32", "matmul bf16", "stream", "gemv fp64", "gemv fp32", "gemv bf16"]
    assert [row["batch"] for row in small["linear"]] == [1, 4, 16, 64, 256]
    assert [(row["phase"], row["batch"], row["tokens"]) for row in small["llama"]["steps"]] == [
        ("prefill", 1, 64), ("prefill", 1, 192), ("decode", 1, 256), ("decode", 4, 256)]
    assert {row["kernel"] for row in small["attention"]} == {"naive", "flash", "torch"}
    (fit,) = small["all_reduce"]
    assert (fit["n"], fit["backend"]) == (2, "gloo")
    assert [row["size_bytes"] for row in fit["times"]] == list(messages.SIZES_BYTES["gloo"])


@on_cpu
def test_counts_in_the_report_are_those_of_the_model(small):
    """Worked out by hand from the small config: 6 layers, hidden 1024, 16 heads and 4 KV heads of 64, MLP 2816."""
    layer = 2 * 1024 * 1024 + 2 * 1024 * 256 + 3 * 1024 * 2816
    streamed = 6 * (layer + 2 * 1024) + 1024 + 8192 * 1024
    assert small["llama"]["n_params"] == streamed + 8192 * 1024
    prefill, _, decode, four = small["llama"]["steps"]
    assert decode["bytes"] == 4 * (streamed + 6 * 2 * 256 * 257)   # fp32; 256 cached tokens read, one written
    assert four["bytes"] - decode["bytes"] == 3 * 4 * 6 * 2 * 256 * 257
    assert decode["flops"] == 2 * (6 * layer + 8192 * 1024) + 6 * 4 * 16 * 64 * 257
    assert prefill["flops"] == 2 * (64 * 6 * layer + 8192 * 1024) + 6 * 4 * 16 * 64 * (64 * 65 // 2)


@on_cpu
def test_only_plain_attention_keeps_the_scores(small):
    for row in small["attention"]:
        if row["kernel"] == "naive":
            assert row["peak_bytes"] == pytest.approx(row["predicted_peak_bytes"], rel=0.01)
        else:
            assert row["predicted_peak_bytes"] is None
    peaks = {row["kernel"]: row["peak_bytes"] for row in small["attention"] if row["tokens"] == 1024}
    assert peaks["naive"] > 3 * peaks["flash"] > 3 * peaks["torch"] / 2


@on_cpu
def test_a_report_is_small_enough_to_keep(small):
    assert len(json.dumps(small, indent=1)) < 20_000


@pytest.mark.parametrize("path", sorted((DATA / "measured").glob("gpu_report-*.json")), ids=lambda path: path.name)
def test_reports_that_are_kept_have_the_documented_fields(path):
    check(json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail))


# A GPU of shapes


class Operators(Indexing):
    """`~x` by way of an operator too, for the same reason."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__invert__:
            return torch.ops.aten.bitwise_not(*args)
        return super().__torch_function__(func, types, args, kwargs)


@pytest.fixture
def gpu(monkeypatch):
    """An H100 by name, on which every call takes one millisecond."""
    cuda = {"is_available": lambda: True, "Event": Event, "device_count": lambda: 1, "empty_cache": lambda: None,
            "get_device_name": lambda device: "NVIDIA H100 80GB HBM3",
            "get_device_properties": lambda device: types.SimpleNamespace(total_memory=81_559 * 2**20),
            "reset_peak_memory_stats": lambda device: None, "memory_allocated": lambda device: 1000,
            "max_memory_allocated": lambda device: 5000}
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "Generator", Generator)
    real = _setup._cuda_elapsed_s
    monkeypatch.setattr(_setup, "_cuda_elapsed_s", lambda fn, calls: real(counted(fn), calls))
    monkeypatch.setattr(gpu_rows, "recorded", lambda fn: fn)
    monkeypatch.setattr(gpu_rows, "Llama", lambda layers, **sizes: Llama(layers=2, **sizes))   # the rest is alike
    monkeypatch.setattr(gpu_report, "LARGE", dataclasses.replace(
        gpu_rows.LARGE, seconds=0.5, batches=(1, 4096), prompts=(2048,), decodes=((1, 2048),), tokens=(512,)))
    told = "570.86.15, 1755, 1980, 2619, [N/A], 700.00\n"
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: types.SimpleNamespace(stdout=told))
    with Operators(), FakeTensorMode():
        yield


def test_a_gpu_is_compared_with_its_datasheet(gpu):
    report = gpu_report.rounded(gpu_report.measure())
    check(report)
    assert report["skipped"] == []
    conditions = report["conditions"]
    assert (conditions["device"], conditions["accelerator"], conditions["sizes"]) == ("cuda", "h100-sxm", "large")
    assert (conditions["driver"], conditions["sm_mhz"], conditions["memory_max_mhz"]) == ("570.86.15", 1755.0, None)
    peaks = {row["name"]: row["predicted"]["datasheet"] for row in report["ceilings"]}
    assert (peaks["matmul bf16"], peaks["stream"], peaks["matmul fp32"]) == (989e12, 3.35e12, None)
    assert report["llama"]["model"] == "llama-3.1-8b"
    prefill, eager, graph = report["llama"]["steps"]
    assert prefill["predicted"]["datasheet"] == pytest.approx(0.030019, rel=1e-4)   # the book's floors of the 8B
    assert graph["predicted"]["datasheet"] == pytest.approx(0.004561, rel=1e-3)
    assert (eager["launch"], graph["launch"]) == ("eager", "graph")
    assert graph["measured"] == pytest.approx(1e-3) and graph["ratio"]["datasheet"] == pytest.approx(0.2193, rel=1e-3)
    assert [row["peak_bytes"] for row in report["attention"]] == [4000] * 3
    assert report["all_reduce"] == []


@pytest.mark.parametrize(("gib", "model", "n_params"), [
    (80, "llama-3.1-8b", 8_030_261_248), (40, "llama-3.1-8b", 8_030_261_248), (24, "llama-3.2-1b", 1_235_814_400),
    (15, "llama-3.2-1b", 1_235_814_400), (2, "llama-3.2-1b", 1_235_814_400)])
def test_the_model_is_chosen_by_memory(gib, model, n_params):
    found = types.SimpleNamespace(memory_bytes=gib * 2**30)
    bench = types.SimpleNamespace(machine=found, sizes=gpu_rows.LARGE, model_dtype="bf16", device="meta")
    pair = gpu_rows.Pair(bench)
    assert pair.name == model and pair.tensors.n_params == pair.formulas.n_params == n_params


def test_a_step_is_recorded_after_it_has_run_and_replayed_without_the_host(monkeypatch):
    log = []

    class Context:
        def __init__(self, *args):
            self.name = "graph" if args and isinstance(args[0], Graph) else "side"

        def __enter__(self):
            log.append(self.name)

        def __exit__(self, *args):
            log.append("end")

    class Stream:
        def wait_stream(self, other):
            assert other is not self

    class Graph:
        def replay(self):
            log.append("replay")

    main = Stream()
    for name, value in {"Stream": Stream, "stream": Context, "current_stream": lambda: main, "CUDAGraph": Graph,
                        "graph": Context}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    replay = gpu_rows.recorded(lambda: log.append("run"))
    replay()
    assert log == ["side", "run", "end", "graph", "run", "end", "replay"]


def test_a_part_that_fails_is_named_and_the_rest_goes_on():
    def too_large():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 34 GiB\nand more lines")

    skipped = []
    rows = gpu_report.collect([("naive attention of 16384", too_large), ("torch", lambda: [{"x": 1}])], skipped)
    assert rows == [{"x": 1}]
    assert skipped == [{"what": "naive attention of 16384", "why": "CUDA out of memory. Tried to allocate 34 GiB"}]


def test_a_mistake_in_the_tool_is_not_a_part_that_fails():
    def mistake():
        raise TypeError("a bug")

    with pytest.raises(TypeError):
        gpu_report.collect([("mistake", mistake)], [])


def test_names_of_gpus_lead_to_the_registry():
    for name, expected in (("NVIDIA H200", "h200-sxm"), ("Tesla T4", "t4"), ("NVIDIA A100-SXM4-80GB", "a100-sxm-80"),
                           ("NVIDIA L4", "l4"), ("NVIDIA A10", "a10"), ("NVIDIA GeForce RTX 4090", "rtx-4090")):
        assert gpu_rows.registered(name).name == expected
    assert gpu_rows.registered("NVIDIA Tomorrow 1000") is None


def test_without_nvidia_smi_clocks_are_unknown(monkeypatch):
    def missing(*args, **kwargs):
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(subprocess, "run", missing)
    assert set(gpu_report.smi()) == set(gpu_report.SMI) and set(gpu_report.smi().values()) == {None}


def test_all_reduces_between_gpus_are_compared_with_the_link(monkeypatch):
    fit = messages.fit_all_reduce(8, "nccl", (1024, 2**20, 2**28), [[2e-5, 3e-5, 2e-3]] * 3)
    monkeypatch.setattr(messages, "measure_all_reduce", lambda n: fit)
    bench = types.SimpleNamespace(datasheet=econ.load_accelerator("h100-sxm"))
    ((_, job),) = gpu_rows.all_reduces(bench, 8)
    row = job()[0]["times"][-1]
    assert row["predicted"]["datasheet"] == pytest.approx(2 * 7 / 8 * 2**28 / 450e9)
    assert list(gpu_rows.all_reduces(bench, 1)) == []


def test_a_wrong_kernel_time_shows_as_a_ratio(small):
    """The check of ratios can fail."""
    row = json.loads(json.dumps(small["linear"][0]))
    row["measured"] *= 1.01
    with pytest.raises(AssertionError):
        check_row(row, TIMED)
    del row["ratio"]["gemv"]
    with pytest.raises(AssertionError):
        check_row(row, TIMED)


@pytest.mark.parametrize(("peaks", "fastest"), [
    ({"fp32": 5e13, "bf16": 6.4e14, "fp16": 6.6e14}, "bf16"),   # as fast but for noise
    ({"fp32": 4e12, "bf16": 2e12, "fp16": 4e13}, "fp16"),   # a T4 multiplies bf16 in software
    ({"fp64": 4e10, "fp32": 1e11, "bf16": 5e10}, "fp32")])
def test_the_format_is_bf16_unless_another_is_clearly_faster(monkeypatch, peaks, fastest):
    monkeypatch.setattr(gpu_rows.machine, "measure",
                        lambda seconds, device: types.SimpleNamespace(name="Example 9000", peak_flop_per_s=peaks))
    for device, model_dtype in (("cuda", fastest), ("cpu", "fp32")):
        bench = gpu_rows.Bench(torch.device(device), gpu_rows.SMALL)
        assert (bench.matmul_dtype, bench.model_dtype, bench.datasheet) == (fastest, model_dtype, None)
