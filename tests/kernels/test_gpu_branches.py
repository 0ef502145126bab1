"""What the kernels do differently on a GPU, run without one: CUDA tensors that have shapes and no contents.

Torch's FakeTensorMode makes them, and made-up events say how long each call took. Nothing here shows that a
real GPU computes the right numbers or reaches a rate: that needs one.
"""

import types

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils import flop_counter  # noqa: E402

from econ.kernels import _setup, llama, machine, meter, timing  # noqa: E402

SHAPE = {"layers": 2, "hidden": 64, "heads": 8, "kv_heads": 2, "head_dim": 8, "ffn": 96, "vocab": 50}
FORMATS = {"fp32", "bf16", "fp16"}


class Event:
    """A CUDA event of a clock on which every call takes one millisecond."""

    calls = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = Event.calls

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return float(end.at - self.at)  # milliseconds, as CUDA says


class Generator(torch.Generator):
    """Random numbers for any device; a CPU build of torch makes none for a GPU."""

    def __new__(cls, device):
        return super().__new__(cls, "cpu")


class Indexing(TorchFunctionMode):
    """Square brackets by way of operators; a CPU build of torch does not index a GPU's tensors itself."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            return self.part(*args)
        if func is torch.Tensor.__setitem__:
            return torch.ops.aten.copy(self.part(*args[:2]), args[2])   # which checks the shapes
        return func(*args, **(kwargs or {}))

    @staticmethod
    def part(tensor, key):
        dim = 0
        for item in key if isinstance(key, tuple) else (key,):
            if isinstance(item, int):
                tensor = tensor.select(dim, item)
                continue
            tensor = (tensor.unsqueeze(dim) if item is None else
                      torch.ops.aten.slice(tensor, dim, item.start, item.stop, item.step or 1))
            dim += 1
        return tensor


def counted(fn):
    """`fn`, whose every call moves the clock of the events on."""
    def call(*args, **kwargs):
        Event.calls += 1
        return fn(*args, **kwargs)
    return call


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of shapes: torch sees it, makes tensors on it and times it, and computes nothing."""
    cuda = {"is_available": lambda: True, "Event": Event, "get_device_name": lambda device: "Example 9000",
            "get_device_properties": lambda device: types.SimpleNamespace(total_memory=24 * 2**30)}
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "Generator", Generator)
    real = _setup._cuda_elapsed_s
    monkeypatch.setattr(_setup, "_cuda_elapsed_s", lambda fn, calls: real(counted(fn), calls))
    with Indexing(), FakeTensorMode():
        yield torch.device("cuda")


def on_gpu(tensor):
    return tensor.device.type == "cuda"


def test_the_gpu_is_chosen_where_there_is_one(gpu):
    assert _setup.pick_device() == gpu and _setup.pick_device("cuda:0").index == 0
    assert set(_setup.matmul_dtypes()) == FORMATS   # fp64 is slow on most GPUs, fp16 is not


@pytest.mark.parametrize("fastest", ["bf16", "fp16"])   # a T4 runs bf16 in software
def test_the_format_of_a_gpu_is_found_by_trying(gpu, monkeypatch, fastest):
    tried = []

    def elapsed_s(fn, device="cpu", calls=1):
        product = fn()
        assert on_gpu(product) and product.shape == (2048, 2048)
        tried.append(_setup.dtype_name(product.dtype))
        return 1.0 if tried[-1] == fastest else 2.0

    monkeypatch.setattr(_setup, "elapsed_s", elapsed_s)
    assert _setup.matmul_dtype() == _setup.model_dtype() == fastest
    assert set(tried) == FORMATS


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_small_llama_runs_on_the_gpu(gpu, dtype):
    model = llama.Llama(**SHAPE, dtype=dtype)
    prompt = torch.zeros(3, 5, dtype=torch.int64, device=gpu)
    cache = model.new_cache(batch=3, max_tokens=9)
    assert all(map(on_gpu, model.weights())) and on_gpu(cache.kv)
    assert cache.bytes == 2 * 2 * 3 * 2 * 9 * 8 * _setup.DTYPES[dtype].itemsize
    assert model.forward(prompt, logits="all").shape == (3, 5, 50)
    assert model.prefill(prompt[:, :2], cache).shape == model.prefill(prompt[:, 2:], cache).shape == (3, 1, 50)
    logits = model.decode(prompt[:, 0], cache)
    assert on_gpu(logits) and logits.shape == (3, 50) and logits.dtype == _setup.DTYPES[dtype]
    assert cache.n_tokens == 6


@pytest.mark.parametrize("use_cache", [True, False])
def test_text_is_generated_without_asking_the_gpu_for_a_value(gpu, use_cache):
    prompt = torch.zeros(2, 4, dtype=torch.int64, device=gpu)   # reading a value of a fake tensor would raise
    tokens = llama.Llama(**SHAPE).generate(prompt, 3, use_cache=use_cache)
    assert on_gpu(tokens) and tokens.shape == (2, 3)


def test_tokens_left_on_the_cpu_are_refused_in_one_line(gpu):
    with pytest.raises(ValueError, match=r"^tokens are on cpu, the model on cuda; use tokens\.to\(\.\.\.\)$"):
        llama.Llama(**SHAPE).forward(torch.zeros(1, 4, dtype=torch.int64))


def test_flops_on_the_gpu_are_those_on_the_meta_device(gpu):
    def flops(device):
        model = llama.Llama(**SHAPE, dtype="bf16", device=device)
        prompt = torch.zeros(1, 16, dtype=torch.int64, device=device)
        return meter.count_flops(lambda: model.prefill(prompt))[0]

    assert flops("cuda") == flops("meta") > 0


@pytest.mark.parametrize("name", ["flash_attention", "efficient_attention", "cudnn_attention"])
def test_the_attention_kernels_of_a_gpu_count_grouped_heads(monkeypatch, name):
    def older_torch(q, k, v, *args, **kwargs):
        raise AssertionError("heads differ")

    kernel = getattr(torch.ops.aten, f"_scaled_dot_product_{name}")
    monkeypatch.setitem(flop_counter.flop_registry, kernel, older_torch)
    _setup.register_attention()
    q, kv = torch.empty(2, 8, 5, 16, device="meta"), torch.empty(2, 2, 7, 16, device="meta")
    assert flop_counter.flop_registry[kernel](q, kv, kv) == 2 * (2 * 8 * 5 * 7 * 16) * 2   # QK and AV


def test_a_gpu_is_measured_with_large_operands_and_its_events(gpu):
    found = machine.measure(seconds=0.5)
    assert (found.name, found.device, found.memory_bytes) == ("Example 9000", "cuda", 24 * 2**30)
    assert set(found.peak_flop_per_s) == set(found.gemv_bytes_per_s) == FORMATS
    for dtype in FORMATS:   # one millisecond a call
        assert found.peak_flop_per_s[dtype] == pytest.approx(2 * 8192**3 / 1e-3)
        assert found.gemv_bytes_per_s[dtype] == pytest.approx(8192**2 * _setup.DTYPES[dtype].itemsize / 1e-3)
    assert found.stream_bytes_per_s == pytest.approx(2**31 / 1e-3)
    assert set(found.spread_frac.values()) == {0.0}
    accelerator = found.as_accelerator()
    assert accelerator.memory_bytes == 24 * 2**30 and "the whole GPU" in accelerator.sources["compute"].title


def test_weights_of_a_sweep_exceed_the_caches_of_a_gpu(gpu):
    for dtype in FORMATS:
        stack = machine._weight_stack(dtype, machine._GPU.width, gpu)
        assert all(map(on_gpu, stack)) and 2**30 <= sum(weight.nbytes for weight in stack) < 2 * 2**30


def test_the_sweep_of_a_gpu_goes_on_beyond_its_ridge(gpu):
    points = machine.linear_sweep("bf16", repeats=3)
    assert [point.batch for point in points] == [2**i for i in range(13)]
    assert all(point.time_s == pytest.approx(1e-3) for point in points)
    assert points[-1].flops == 2 * 4096 * 8192**2
    assert points[-1].bytes == 2 * (8192**2 + 2 * 4096 * 8192)
    assert points[-1].intensity > 1000   # 2,048: several times the ridge of an H100


def test_steps_of_the_small_llama_are_timed_with_events(gpu):
    model = llama.Llama(**SHAPE, dtype="fp16")
    for timed in (timing.time_prefill(model, 9), timing.time_decode(model, context=11, batch=4)):
        assert timed.median_s == pytest.approx(1e-3) and timed.spread_frac == 0
    streamed = sum(weight.nbytes for weight in timing.streamed_matrices(model))
    assert timing.gemv_bytes_per_s(model) == pytest.approx(streamed / 1e-3)
