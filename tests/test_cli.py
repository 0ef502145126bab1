"""The command line: every subcommand for people and for programs, its exit codes, and input of every kind."""

import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import econ
from econ import cli
from econ.memory import Memory
from econ.profiles import profiles

core = pytest.mark.core

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "econ" / "data" / "models"
D = "llama-3.3-70b --gpu h100-sxm -n 4"
COMMANDS = {
    "fit": f"fit {D} --context 8192 --batch 32", "time": f"time {D} --prompt 2048 --output 300 --batch 16",
    "cost": f"cost {D} --prompt 2048 --output 300 --concurrency 64 --usd-per-gpu-hour 2.5",
    "compare": "compare llama-3.1-8b --prompt 2048 --output 300 --slo-ttft 1.0 --slo-tpot 0.05",
    "models": "models", "gpus": "gpus"}


@pytest.fixture
def run(capsys):
    def run(line):
        status = cli.main(line.split() if isinstance(line, str) else line)
        out, err = capsys.readouterr()
        return status, out, err
    return run


def answered(run, line):
    status, out, err = run(f"{line} --json")
    assert err == "" and out.count("\n") == 1
    return status, json.loads(out, parse_constant=pytest.fail)  # neither NaN nor Infinity


# Answers.
@pytest.mark.parametrize("name", COMMANDS)
@core
def test_an_answer_for_people(run, name):
    status, out, err = run(COMMANDS[name])
    lines = out.splitlines()
    assert status == 0 and err == "" and len(lines) > 3
    assert max(map(len, lines)) <= 100 and all(line == line.rstrip() for line in lines) and out.isascii()
    assert sum(line.startswith("assumed: ") for line in lines) == 1


@pytest.mark.parametrize("name", COMMANDS)
@core
def test_an_answer_for_programs(run, name):
    status, answer = answered(run, COMMANDS[name])
    assert status == 0 and set(answer) == {"econ", "inputs", "assumptions", "result"}
    assert answer["econ"] == econ.__version__ and answer["result"] and answer["assumptions"]
    assert all(isinstance(line, str) for line in answer["assumptions"])


def same(found, expected):
    expected = dataclasses.asdict(expected) if dataclasses.is_dataclass(expected) else expected
    return {name: value for name, value in found.items() if name in expected} == expected


@core
def test_the_numbers_are_those_of_the_package(run):
    d = econ.Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4)
    results = {name: answered(run, line)[1]["result"] for name, line in COMMANDS.items()}
    assert same(results["fit"], d.memory(32, 8192))
    assert set(results["fit"]) == {f.name for f in dataclasses.fields(Memory)}
    assert same(results["time"], d.request(16, 2048, 300))
    assert same(results["time"]["prefill"], d.prefill(16, 2048)) and same(results["time"]["decode"], d.decode(16, 2048))
    assert same(results["cost"], d.cost(2.5, 64, 2048, 300)) and same(results["cost"]["load"], d.serve(64, 2048, 300))
    rows = econ.compare("llama-3.1-8b", 2048, 300, slo_ttft_s=1, slo_tpot_s=0.05)
    assert results["compare"] == [dataclasses.asdict(row) for row in rows]
    assert [m["name"] for m in results["models"]] == econ.models()
    assert [g["name"] for g in results["gpus"]] == econ.accelerators()


@core
def test_the_floor_of_the_70b_in_words(run):
    _, out, _ = run("time llama-3.3-70b --gpu h100-sxm -n 4 --prompt 2048 --output 2")
    assert re.search(r"time to first token +72\.3 ms", out) and re.search(r"time per further token +10\.4 ms", out)
    assert "the floor" in out and re.search(r"decode, bound by memory +0\.350 %", out)


@core
def test_options_reach_the_deployment(run):
    line = ("fit deepseek-v3 --gpu h200-sxm -n 16 --tp 2 --pp 1 --dp 8 --ep 16 --weights fp8 --kv fp8 --context 4096 "
            "--batch 4 --gpu-mem-frac 0.8 --profile vllm-h100-llama70b-2025-03 --link 4e11 --max-running 9")
    _, answer = answered(run, line)
    assert answer["inputs"] == {
        "model": "deepseek-v3", "gpu": "h200-sxm", "n_gpus": 16, "tp": 2, "pp": 1, "dp": 8, "ep": 16, "weights": "fp8",
        "kv": "fp8", "context": 4096, "batch": 4, "gpu_mem_frac": 0.8, "profile": "vllm-h100-llama70b-2025-03",
        "link": 4e11, "max_running": 9}
    formats = dict(weights="fp8", kv="fp8", gpu_mem_frac=0.8)
    d = econ.Deployment("deepseek-v3", "h200-sxm", n_gpus=16, tp=2, dp=8, ep=16, **formats)
    assert same(answer["result"], d.memory(4, 4096))
    said = " ".join(answer["assumptions"])
    assert "weights fp8" in said and "tp 2 pp 1 dp 8 ep 16" in said and "80.0 %" in said and "held-out error" in said


@core
def test_the_engines_limit_reaches_serving(run):
    _, answer = answered(run, f"cost {D} --prompt 100 --output 10 --concurrency 64 --max-running 9")
    assert answer["result"]["load"]["limited_by"] == "engine" and answer["result"]["load"]["queued"] == 55


@core
def test_a_shipped_price_is_dated_and_a_given_one_is_used(run):
    price = econ.prices()["h100-sxm"]
    _, answer = answered(run, f"cost {D} --prompt 2048 --output 300")
    assert answer["result"]["usd_per_hour"] == 4 * price.usd_per_gpu_hour
    assert f"median of {price.rows} listings up to {price.newest}" in answer["assumptions"][0]
    status, _, err = run("cost llama-3.1-8b --gpu mi355x --prompt 100 --output 10")
    assert status == 2 and "--usd-per-gpu-hour" in err


@core
def test_idle_hours(run):
    busy, half = (answered(run, f"{COMMANDS['cost']} --utilisation {u}")[1]["result"] for u in (1, 0.5))
    assert half["usd_per_mtok_output"] == pytest.approx(2 * busy["usd_per_mtok_output"])


@core
def test_a_config_and_a_gpu_of_ones_own(run, tmp_path):
    (tmp_path / "config.json").write_text((MODELS / "llama-3.1-8b.json").read_text(encoding="utf-8"))
    text = (ROOT / "econ" / "data" / "accelerators" / "h100-sxm.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(text.replace("hbm_bytes_per_s = 3.35e12", "hbm_bytes_per_s = 6.7e12"))
    line = f"time {tmp_path / 'config.json'} --gpu {tmp_path / 'mine.toml'} --prompt 100 --output 10"
    _, own = answered(run, line)
    d = econ.Deployment("llama-3.1-8b", "h100-sxm")
    assert own["result"]["tpot_s"] == pytest.approx(d.request(1, 100, 10).tpot_s / 2)
    status, out, _ = run(line)
    assert status == 0 and max(map(len, out.splitlines())) <= 100


@core
@pytest.mark.parametrize("name", profiles())
def test_every_profile_is_named_with_its_error(run, name):
    """By the floor first, and never faster than it."""
    line = "time llama-3.1-8b --gpu h100-sxm --prompt 2048 --output 300 --profile"
    floor, answer = (answered(run, f"{line} {p}")[1] for p in ("ideal", name))
    assert answer["result"]["ttft_s"] >= floor["result"]["ttft_s"]
    assert answer["result"]["tpot_s"] >= floor["result"]["tpot_s"]
    said = "; ".join(answer["assumptions"])
    assert ("the floor" in said) is (name == "ideal")
    assert name == "ideal" or (f"profile {name}," in said and "held-out error" in said)
    status, out, _ = run(f"{line} {name}")
    assert status == 0 and max(map(len, out.splitlines())) <= 100


@core
def test_the_last_token_of_a_model_is_timed(run):
    status, answer = answered(run, f"time {D} --prompt 131072 --output 1")
    assert status == 0 and answer["result"]["ttft_s"] == answer["result"]["total_s"]


@pytest.mark.parametrize("line", [
    "time qwen3-0.6b --gpu b200 -n 8 --prompt 1 --output 1", "time qwen3-0.6b --gpu b200 -n 8 --prompt 1 --output 2",
    "cost qwen3-0.6b --gpu b200 -n 8 --prompt 1 --output 2 --usd-per-gpu-hour 1e-9 --concurrency 1000",
    "cost smollm2-135m --gpu b200 --prompt 1 --output 1 --usd-per-gpu-hour 1e-12 --utilisation 0.0001",
    "fit smollm2-135m --gpu b200 --context 1", "time mamba-2.8b --gpu t4 --weights int4 --prompt 1 --output 1"])
@core
def test_nothing_small_is_printed_as_nothing(run, line):
    """Zero is printed as a bare 0, and only where the value is zero."""
    _, answer = answered(run, line)
    _, out, _ = run(line)
    assert not re.search(r"(?<![\d.,])\$?-?0\.0+(?![\d])", out)
    zeros = len(re.findall(r"(?<![\d.,-])\$?0(?![\d.,])", out.split("assumed:")[0]))
    def leaves(v):
        return [x for w in v.values() for x in leaves(w)] if isinstance(v, dict) else [v]
    assert zeros <= 2 * sum(v == 0 and v is not False for v in leaves(answer["result"]))


# Exit codes and errors.
@pytest.mark.parametrize("line, status, error, said", [
    ("fit llama-3.3-70b --gpu h100-sxm --context 8192", 1, None, "short by"),
    ("time llama-3.3-70b --gpu h100-sxm --prompt 100 --output 10", 1, "DoesNotFit", "tp=2 fits"),
    ("cost llama-3.3-70b --gpu h100-sxm --prompt 100 --output 10", 1, "DoesNotFit", "short by"),
    ("compare llama-3.3-70b --prompt 100 --output 10 --slo-tpot 1e-9", 1, "DoesNotFit", "loosen"),
    ("fit llama-3.3-7b --gpu h100-sxm", 2, "UnknownName", "llama-3.3-70b"),
    ("fit llama-3.3-70b --gpu h1000", 2, "UnknownName", "h100"),
    ("fit /no/such/config.json --gpu h100-sxm", 2, "ConfigError", "config.json"),
    ("fit . --gpu h100-sxm", 2, "UnknownName", "config.json"),
    ("fit llama-3.3-70b --gpu /no/such.toml", 2, "UnknownName", "such.toml"),
    ("fit llama-3.3-70b", 2, "UsageError", "--gpu"), ("fit", 2, "UsageError", "MODEL"),
    ("", 2, "UsageError", "COMMAND"),
    ("fit llama-3.3-70b --gpu h100-sxm --batch many", 2, "UsageError", "'many'"),
    ("fit llama-3.3-70b --gpu h100-sxm --bat 4", 2, "UsageError", "--bat"),
    ("sell llama-3.3-70b", 2, "UsageError", "sell"), ("fit llama-3.3-70b --gpu h100-sxm -n 3", 2, "ValueError", "tp=3"),
    ("fit llama-3.3-70b --gpu h100-sxm --batch -1", 2, "ValueError", "batch=-1"),
    ("time llama-3.3-70b --gpu h100-sxm -n 4 --prompt 131000 --output 100", 2, "ValueError", "131,072"),
    ("compare llama-3.1-8b --prompt 10 --output 10 --top 0", 2, "ValueError", "top=0"),
    ("compare llama-3.1-8b --prompt 10 --output 10 --slo-tpot nan", 2, "ValueError", "nan"),
    ("cost llama-3.1-8b --gpu h100-sxm --prompt 10 --output 10 --utilisation 0", 2, "ValueError", "utilisation_frac=0"),
    ("cost llama-3.1-8b --gpu h100-sxm --prompt 10 --output 10 --allocation fair", 2, "ValueError", "'fair'"),
    ("time llama-3.1-8b --gpu h100-sxm --prompt 10 --output 10 --profile fast", 2, "UnknownName", "ideal"),
    ("fit llama-3.1-8b --gpu h100-sxm --weights fp7", 2, "ValueError", "fp7")])
@core
def test_exit_codes_and_errors(run, line, status, error, said):
    found, out, err = run(line)
    assert found == status
    if error is None:
        assert said in out and err == ""
        return
    assert out == "" and err.count("\n") == 1 and err.startswith("econ: ") and said in err
    assert err.strip().isprintable()
    found, out, err = run(f"{line} --json")
    assert found == status and err == "" and out.count("\n") == 1
    assert set(json.loads(out)) == {"error", "message"}
    assert json.loads(out)["error"] == error and said in json.loads(out)["message"]


@pytest.mark.parametrize("line", ["--help", "--version", *(f"{name} --help" for name in (*COMMANDS, "measure"))])
@core
def test_help(line, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(line.split())
    out, err = capsys.readouterr()
    assert done.value.code == 0 and err == "" and out.strip() and max(map(len, out.splitlines())) <= 100


def test_help_names_every_option():
    for name, (_, _, options) in cli.COMMANDS.items():
        assert set(options) <= set(cli.OPTIONS), name
    assert set(cli.OPTIONS) == {option for _, _, options in cli.COMMANDS.values() for option in options}


# Measuring this machine.
def test_measure_without_torch_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "econ.kernels.machine", None)
    status, out, err = run("measure")
    assert status == 2 and out == "" and "pip install torch" in err


def test_measure_prints_what_was_measured(run, monkeypatch):
    machine = pytest.importorskip("econ.kernels.machine", reason="torch is not installed")
    found = machine.Machine(
        name="a processor", device="cpu", threads=2, memory_bytes=2**34, peak_flop_per_s={"fp32": 1e11},
        stream_bytes_per_s=2e10, gemv_bytes_per_s={"fp32": 1.5e10}, spread_frac={}, torch_version="2",
        measured_in_s=1.0)
    monkeypatch.setattr(machine, "measure", lambda: found)
    status, out, _ = run("measure")
    assert status == 0 and "100 GFLOP/s" in out and "20.0 GB/s" in out and "a processor, cpu, 2 threads" in out
    assert answered(run, "measure")[1]["result"] == dataclasses.asdict(found)


# As a program.
def program(*command, **kwargs):
    return subprocess.run(command, text=True, capture_output=True, cwd=ROOT, **kwargs)


def test_python_m_econ():
    done = program(sys.executable, "-m", "econ", *COMMANDS["fit"].split())
    assert done.returncode == 0 and done.stdout.count("\n") > 5 and done.stderr == ""
    assert program(sys.executable, "-m", "econ", "fit").returncode == 2


def test_a_closed_pipe_is_no_error():
    line = f"{sys.executable} -m econ models --json | head -c 1"
    done = program("bash", "-o", "pipefail", "-c", line)
    assert done.stderr == "" and done.stdout == "{"


def test_the_console_script_of_an_installed_package(tmp_path):
    """A wheel built without the network, installed into an empty environment, run from an empty folder."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    pytest.importorskip("pip", reason="pip is not installed")
    alone = {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "PIP_NO_INDEX": "1"}
    source, here = tmp_path / "source", dict(cwd=tmp_path, env=alone, text=True, capture_output=True)
    shutil.copytree(ROOT / "econ", source / "econ", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", source)
    pip = [sys.executable, "-m", "pip"]
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", source]
    subprocess.run([*pip, *build], check=True, **here)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "venv"], check=True, **here)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "-q", "--no-deps", wheel], check=True, **here)
    done = subprocess.run([python.with_name("econ"), *COMMANDS["cost"].split(), "--json"], **here)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["usd_per_hour"] == 10.0


# Input of every kind.
def fuzzed(rng: random.Random) -> list[str]:
    """A command line that is mostly right: options of the right kind with odd values, sometimes a wrong word."""
    fitted = "vllm-h100-llama70b-2025-03"
    odd = ["", "0", "-1", "1", "2", "3", "7", "8", "1e3", "1e400", "nan", "inf", "-inf", "0.5", "1.0", "two", "None",
           "0x10", "9" * 40, "fp8", "bf16", "int4", "nvfp4", "q4_k_m", "ideal", fitted, "\udcff", "a\nb", "--json",
           "-n", "é", "./", "/", "131072", "100000", "1000000", "2.5", "1_000", " 4", "time", "equal"]
    likely = {"gpu": econ.accelerators(), "n-gpus": ["1", "2", "4", "8", "16"], "kv": ["bf16", "fp8"],
              "weights": ["bf16", "fp8", "int4", "q4_0"], "prompt": ["1", "100", "2048", "30000"],
              "output": ["1", "2", "300", "90000"], "batch": ["1", "8", "5000"], "context": ["1", "8192", "100000"],
              "concurrency": ["1", "64", "5000"], "profile": profiles()}
    name = rng.choice(["fit", "time", "cost"]) if rng.random() < 0.95 else rng.choice([*COMMANDS, *odd, "measured"])
    _, _, options = cli.COMMANDS.get(name, (None, None, ()))
    line = [name, *([rng.choice(econ.models() if rng.random() < 0.97 else odd)] if options else [])]
    for option in options:
        needed = cli.OPTIONS[option][1] is cli.REQUIRED
        if rng.random() < (0.99 if needed else 0.12):
            choices = odd if rng.random() < (0.03 if needed else 0.3) or option not in likely else likely[option]
            line += [f"--{option}", rng.choice(choices)]
    return [*line, *(["--json"] if rng.random() < 0.5 else []), *([rng.choice(odd)] if rng.random() < 0.03 else [])]


def check_fuzz(capsys, count: int, seed: int):
    """Returns how many of `count` lines ended in each status."""
    rng, seen = random.Random(seed), {0: 0, 1: 0, 2: 0}
    for _ in range(count):
        line = fuzzed(rng)
        start = time.process_time()
        try:
            status = cli.main(line)
        except SystemExit as done:  # --help, --version
            assert done.code == 0, line
            status = 0
        out, err = capsys.readouterr()
        assert time.process_time() - start < 2, line
        seen[status] += 1
        if status and "--json" in line and not err:
            answer = json.loads(out, parse_constant=pytest.fail)
            assert set(answer) in ({"error", "message"}, {"econ", "inputs", "assumptions", "result"}), line
            kinds = {1: ("DoesNotFit",), 2: ("UsageError", "ValueError", "UnknownName", "ConfigError")}
            assert "error" not in answer or answer["error"] in kinds[status], line
        elif status:
            assert err.count("\n") == (0 if out else 1), (line, err)
        else:
            assert err == "" and ("--json" in line or max(map(len, out.splitlines())) <= 100), line
    return seen


def test_odd_input_ends_in_an_answer_or_an_error(capsys):
    seen = check_fuzz(capsys, 2_500, seed=1)
    assert all(n >= 100 for n in seen.values()), seen


@pytest.mark.long
def test_much_odd_input_ends_in_an_answer_or_an_error(capsys):
    check_fuzz(capsys, 100_000, seed=2)
