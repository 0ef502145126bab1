"""The Triton kernel in the interpreter, where triton is installed; its refusals everywhere."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

from econ.kernels import triton_flash  # noqa: E402

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None,
                                  reason="triton is not installed (pip install econ[triton])")
SOURCE = Path(triton_flash.__file__).read_text(encoding="utf-8")
SHAPES = [(100, 100, 64), (256, 256, 32), (130, 130, 128), (37, 200, 64), (1, 50, 16)]  # new, total, head_dim

ERRORS = """
import json, sys, torch
import copied
from econ.kernels import attention
errors = []
for new, total, dim in {shapes}:
    random = torch.Generator().manual_seed(new)
    q, k, v = (torch.randn(2, 2, n, dim, generator=random) for n in (new, total, total))
    for tiles in ((64, 64), (16, 32)):
        errors.append(float((copied.triton_flash(q, k, v, *tiles) - attention.naive(q, k, v)).abs().max()))
print(json.dumps(errors))
"""

COMPILE = """
import copied
kernel = copied._kernel()
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
sizes = dict(DIM=64, TILE_Q=64, TILE_K=64)
types = dict(q="*bf16", k="*bf16", v="*bf16", out="*bf16", scale="fp32", new="i32", total="i32")
source = ASTSource(fn=kernel, signature=types | dict.fromkeys(sizes, "constexpr"), constexprs=sizes)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(len(made.asm["cubin"]) > 0, "wgmma" in made.asm["ptx"])
"""


def run(code, source, folder, **env):
    """What a fresh process prints that finds `source` as the module `copied`."""
    (folder / "copied.py").write_text(source, encoding="utf-8")
    paths = [str(folder), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    env = {"PYTHONPATH": os.pathsep.join(paths), "TRITON_CACHE_DIR": str(folder / "cache"), **env}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=os.environ | env,
                          capture_output=True, text=True, check=True)
    return done.stdout.strip()


def largest_error(source, folder, shapes=SHAPES):
    return max(json.loads(run(ERRORS.format(shapes=shapes), source, folder, TRITON_INTERPRET="1")))


@needs_triton
def test_it_equals_plain_attention(tmp_path):
    assert largest_error(SOURCE, tmp_path) < 2e-6


@needs_triton
@pytest.mark.parametrize(("right", "wrong"), [
    ("mix * shrink[:, None]", "mix"),  # old sums not corrected
    ("position = total - new + row", "position = row"),  # a top-left mask
    ("seen = tl.minimum(total - new +", "seen = tl.minimum("),  # tiles skipped that are seen
    ("key[None, :] <= position[:, None]", "key[None, :] <= position[:, None] + 1"),  # one key of the future
])
def test_a_wrong_kernel_would_be_noticed(right, wrong, tmp_path):
    assert SOURCE.count(right) == 1
    found = largest_error(SOURCE.replace(right, wrong), tmp_path, [(37, 200, 64), (100, 100, 64)])
    assert not found < 1e-2  # or not a number


@needs_triton
@pytest.mark.skipif(sys.platform != "linux", reason="triton compiles for CUDA on Linux")
def test_it_compiles_to_tensor_core_code_of_an_h100_without_one(tmp_path):
    assert run(COMPILE, SOURCE, tmp_path) == "True True"


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="triton is installed")
def test_without_triton_the_error_says_what_to_install():
    with pytest.raises(ImportError, match="pip install econ.triton."):
        triton_flash._kernel()


@pytest.mark.parametrize(("changes", "tiles", "message"), [
    ({}, (64, 64), "tensors are on cpu; use a GPU, or start with TRITON_INTERPRET=1"),
    ({"dim": 48}, (64, 64), "head_dim=48"), ({"dim": 8}, (64, 64), "head_dim=8"),
    ({}, (48, 64), "tile_q=48"), ({}, (64, 0), "tile_k=0"),
    ({"dtype": torch.float64}, (64, 64), "fp64 inputs"), ({"new": 9}, (64, 64), "9 queries but 5 keys"),
    ({"v_dim": 16}, (64, 64), "32 in q and 16 in v"),
])
def test_what_does_not_fit_is_refused_in_one_line(changes, tiles, message, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    shape = {"new": 5, "dim": 32, "dtype": torch.float32, **changes}
    q, k = (torch.zeros(1, 1, n, shape["dim"], dtype=shape["dtype"]) for n in (shape["new"], 5))
    v = torch.zeros(1, 1, 5, shape.get("v_dim", shape["dim"]), dtype=shape["dtype"])
    with pytest.raises(ValueError, match=".") as refusal:
        triton_flash.triton_flash(q, k, v, *tiles)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
