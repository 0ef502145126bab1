"""The traps of timing torch on a CPU are really dealt with, and each check can fail."""

import os
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

from econ.kernels import _setup  # noqa: E402

FAULTS = """
import resource
{load}
import torch
torch.set_num_threads(1)
x = torch.ones(2**23)  # 32 MiB
for _ in range(20):  # the heap settles within a few
    x + 1
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    x + 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(load):
    code = FAULTS.format(load=load)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(not _setup.PAGES_KEPT, reason="freed pages can only be kept with glibc on Linux")
def test_large_temporaries_stop_paying_for_page_faults():
    without, kept = page_faults(load=""), page_faults(load="import econ.kernels")
    assert without > 8 * 2**25 / 4096 / 600  # at least one fault for 2 MiB of fresh memory (huge pages)
    assert kept < without / 4


def test_waiting_threads_sleep_unless_the_user_chose_otherwise():
    show = "import os, econ.kernels; print(os.environ['OMP_WAIT_POLICY'])"
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for chosen, expected in ((None, "passive"), ("active", "active")):
        run = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True,
                             env=env | ({"OMP_WAIT_POLICY": chosen} if chosen else {}))
        assert run.stdout.strip() == expected


def test_one_thread_restores_the_number_even_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), _setup.one_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_the_clock_counts_work_and_not_waiting():
    asleep = _setup.elapsed_s(lambda: time.sleep(0.2))
    busy = _setup.elapsed_s(lambda: sum(range(200_000)), calls=3)
    assert 0 <= asleep < 0.1 < 0.2
    assert busy > 0


def test_events_of_a_gpu_are_read_in_milliseconds(monkeypatch):
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("record")

        def synchronize(self):
            log.append("wait")

        def elapsed_time(self, end):
            return 250.0  # milliseconds, as CUDA says

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert _setup.elapsed_s(lambda: log.append("work"), "cuda", calls=2) == 0.25
    assert log == ["record", "work", "work", "record", "wait"]


def test_the_fastest_format_is_chosen_by_trying(monkeypatch):
    assert _setup.matmul_dtype("cpu") in ("fp64", "fp32", "bf16")  # never fp16 on a CPU
    seconds = {torch.float64: 4.0, torch.float32: 2.0, torch.bfloat16: 9.0}
    monkeypatch.setattr(_setup, "_probe_s", lambda dtype, device: seconds[dtype])
    assert _setup.matmul_dtype("cpu") == "fp32"
    assert _setup.model_dtype("cpu") == "fp32"


def test_names_and_devices_are_checked():
    names = ["fp64", "fp32", "bf16", "fp16"]
    assert [_setup.dtype_name(_setup.pick_dtype(name)) for name in names] == names == list(_setup.DTYPES)
    for wrong in ("float7", torch.int8, None, 16):
        with pytest.raises(ValueError, match="use fp64, fp32, bf16, fp16"):
            _setup.pick_dtype(wrong)
    for wrong in ("gpu", 3.5):
        with pytest.raises(ValueError, match="use 'cpu', 'cuda' or 'meta'"):
            _setup.pick_device(wrong)
