"""The general profile is what its script gives, and the accuracy tool predicts any table without its values."""

import csv
import importlib
import json
import random
import sys
from pathlib import Path

import pytest

import econ

np = pytest.importorskip("numpy", reason="numpy is not installed")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
accuracy, baselines, fit, robust, rows = (
    importlib.import_module(n) for n in ("accuracy", "baselines", "fit_general", "robust", "rows"))
MEASURED = ROOT / "econ" / "data" / "measured"


def table(name: str) -> list[dict]:
    with open(MEASURED / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


LATENCY = table("latency.csv")
SOME = [row for name in fit.FILES for row in table(name)[::40]]


def test_the_profiles_are_what_the_fit_gives():
    assert fit.main(["--check"]) == 0


def test_the_fit_finds_constants_that_made_the_data():
    rng = np.random.default_rng(1)
    a, b = rng.uniform(1, 9, (2, 200))
    measured = 3 * a + 0.2 * b
    measured[:10] *= 5  # outliers
    found = robust.fit(lambda x: x[0] * a + x[1] * b, np.array([1.0, 1.0]), measured, np.ones(200))
    assert found == pytest.approx([3, 0.2], rel=0.05)


def test_quantiles_count_weights():
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])
    assert robust.weighted_quantile(values, weights, 0.5) == 2.0
    assert robust.cell_weights(["a", "a", "a", "a", "b"]) == pytest.approx([0.5, 0.5, 0.5, 0.5, 1])


@pytest.mark.parametrize("kind", ["tpot", "ttft", "throughput"])
def test_the_fit_computes_what_a_deployment_says(kind):
    some = [k for k in fit.known() if k.q.kind == kind and not k.q.at_rate and k.q.output > 1][::25]
    some = [k for k in some if kind == "throughput" or rows.served(k.q).queued == 0]
    p = econ.load_profile("general")
    x = np.array([getattr(p, name) for name in fit.JOINT])
    steps = [econ.load_profile(f"general/{e}").first_token_steps for e in rows.SERVERS]
    first = np.array([p.expert_prefill_frac, p.burst_frac, *steps])
    assert fit.predict(x, first, fit.table(some)) == pytest.approx([rows.answer(k.q) for k in some], rel=1e-6)


def test_predictions_do_not_look_at_values():
    for row in SOME:
        blank = {**row, "value": ""}
        absent = {k: v for k, v in row.items() if k != "value"}
        assert accuracy.predict(row) == accuracy.predict(blank) == accuracy.predict(absent)


def test_few_rows_are_refused_and_each_says_why():
    served = [row for row in LATENCY if row["metric"] in ("ttft_ms", "tpot_ms")]
    found = [accuracy.predict(row) for row in served[::10]]
    assert all(p.reason for p in found if p.predicted is None)
    assert sum(p.predicted is None for p in found) < 0.05 * len(found)
    assert all(0 < p.low < p.predicted < p.high for p in found if p.predicted)


def test_intervals_hold_most_published_values():
    pairs = [(row, accuracy.predict(row)) for row in LATENCY[::7] if row["metric"] == "tpot_ms"]
    assert accuracy.errors(pairs)["coverage"] > 75
    assert accuracy.errors(pairs)["median_ape"] < 15


@pytest.mark.parametrize("kind", ["tpot", "ttft", "throughput"])
def test_the_roofline_to_beat_is_the_floor_of_a_deployment(kind):
    some = [k for k in fit.known() if k.q.kind == kind and not k.q.at_rate and k.q.output > 1][::25]
    ideal = [fit.replace(k.q, deployment=fit.replace(k.q.deployment, profile="ideal")) for k in some]
    pairs = [(k, q) for k, q in zip(some, ideal, strict=True) if rows.served(q).queued == 0 or kind == "throughput"]
    found = baselines.served(np.ones(2), fit.table([k for k, _ in pairs]))
    assert found == pytest.approx([rows.answer(q) for _, q in pairs], rel=1e-6)


@pytest.mark.parametrize("kind", ["batch1", "tpot", "throughput", "ttft"])
def test_the_profile_is_better_than_simpler_models_on_rows_left_out(kind):
    fitted = econ.load_profile("llama.cpp" if kind == "batch1" else "general").fitted
    for i in (1, 2):
        own = max(fitted["errors"][kind][scheme][i] for scheme in ("gpu", "model"))
        assert all(own < 0.7 * found[i - 1] for found in fitted["baselines"][kind].values())


def test_one_fitted_constant_is_the_best_single_factor():
    some = [k for k in fit.known() if k.q.kind == "tpot" and not k.q.at_rate and k.q.output > 1][::20]
    t, weights = fit.table(some), np.ones(len(some))
    found = baselines.errors(baselines.served, fit.pick, t, some, weights)
    assert found["two constants"][1] < found["roofline"][1] and found["one constant"][1] < found["roofline"][1]


def test_the_cache_of_an_engine_that_shares_out_free_memory():
    """A 70B in 16 bit on two GPUs: half of 141.1 GB of weights leaves 15.3 GB on each."""
    row = next(r for r in table("serving_throughput.csv") if r["model"] == "Llama-3.1-70B" and r["n_gpus"] == "2"
               and r["gpu"] == "A100-SXM-80" and r["weight_dtype"] == "fp16")
    free = lambda row: rows.question(row).deployment.memory(batch=0).free_bytes  # noqa: E731
    assert "up to 0.95" in row["notes"]
    assert free(row) == pytest.approx(0.95 * (81_920 * 2**20 - 141_107_412_992 / 2), rel=0.01)
    assert free({**row, "notes": "num_requests=2048"}) == pytest.approx(0.9 / 0.95 * free(row))
    vllm = rows.question({**row, "engine_version": "vllm 0.18.0"}).deployment
    assert vllm.gpu_mem_frac == 0.9


def test_a_floor_is_worse_than_the_profile():
    some = [k for k in fit.known() if k.q.kind == "tpot" and not k.q.at_rate][::20]
    of = lambda name: [rows.answer(fit.replace(k.q, deployment=fit.replace(  # noqa: E731
        k.q.deployment, profile=name))) / k.value - 1 for k in some]
    assert np.median(np.abs(of("general"))) < 0.5 * np.median(np.abs(of("ideal")))


@pytest.mark.parametrize("given, name", [
    ("A100-SXM-80GB", "a100-sxm-80"), ("H100-SXM-80GB", "h100-sxm"), ("NVIDIA H200 141GB", "h200-sxm"),
    ("B200-SXM", "b200"), ("H100 SXM5", "h100-sxm"), ("MI300X", "mi300x"), ("A100-SXM4-80GB", "a100-sxm-80"),
    ("AMD Instinct MI300X", "mi300x"), ("NVIDIA GeForce RTX 4090", "rtx-4090"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-se")])
def test_spellings_of_gpus(given, name):
    assert rows.accelerator_of(given, None, "tpot").name == name


def test_the_interval_of_a_rate_is_that_of_its_time_turned_over():
    row = next(r for r in table("decode_batch1.csv") if "gpt-fast" in r["source_url"])
    p, (low, high) = accuracy.predict(row), econ.load_profile("general").interval("tpot", 1)
    assert (p.profile, p.low) == ("general", pytest.approx(p.predicted / high))
    assert p.high == pytest.approx(p.predicted / low)
    prompt = accuracy.predict({**row, "metric": "prefill_tok_s", "isl": "1000"})
    assert prompt.low < prompt.predicted < prompt.high


@pytest.mark.parametrize("key, given, said", [
    ("n_gpus", "four", "'four'"), ("n_gpus", "", "n_gpus is blank"), ("gpu", "", "gpu is blank"),
    ("model", "", "model is blank"), ("isl", "long", "isl"), ("osl", "", "osl")])
def test_a_refusal_names_the_column(key, given, said):
    reason = accuracy.predict({**next(r for r in LATENCY if r["metric"] == "tpot_ms"), key: given}).reason
    assert said in reason and "\n" not in reason


@pytest.mark.parametrize("text, status, said", [
    ("", 2, "none of the columns"), ("gpu;n_gpus;model\na;b;c\n", 2, "separate them by commas"),
    ("gpu,model,isl\nH100-SXM,Qwen3-32B,100\n", 0, "no column n_gpus")])
def test_a_file_without_the_columns_is_said_to_be_one(tmp_path, capsys, text, status, said):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert accuracy.main([str(tmp_path / "t.csv")]) == status
    assert said in capsys.readouterr().err


def test_spaces_and_line_ends_do_not_matter(tmp_path):
    row = {k: v for k, v in next(r for r in LATENCY if r["metric"] == "tpot_ms").items() if "," not in v}
    for number, (between, end) in enumerate([(",", "\n"), (", ", "\r\n"), (",", "\r")]):
        path = tmp_path / f"{number}.csv"
        path.write_bytes((between.join(row) + end + between.join(row.values()) + end).encode("utf-8-sig"))
        assert accuracy.read(path) == [row]


def test_a_gguf_format_without_a_recipe_is_priced_by_its_blocks():
    m = rows.model_of("Llama-3-8B", "q6_k", "llama.cpp")
    assert m.weight_bytes(rows.weights_of(m, "q6_k")) / 2**30 == pytest.approx(6.14, rel=0.01)  # the file: 6.14 GiB


BAD = ["", "nan", "inf", "-1", "0", "1e308", "x" * 5000, "\x1b[31m", "١٢", "QPS", "QPS 0", "max", "adp0", "\0", "1;2",
       "None"]


def test_a_damaged_row_is_a_row_less_and_nothing_else():
    rng = random.Random(3)
    for _ in range(400):
        row = dict(rng.choice(SOME))
        for key in rng.sample(sorted(row), rng.randint(1, 4)):
            row[key] = rng.choice(BAD)
        p = accuracy.predict(row)
        assert (p.predicted is None) == bool(p.reason)
        assert "not understood" not in p.reason, row
    assert accuracy.predict({}).reason
    assert accuracy.predict({None: ["a"], "gpu": None}).reason


def test_the_command(tmp_path, capsys):
    source, out = tmp_path / "some.csv", tmp_path / "out.csv"
    lines = (MEASURED / "latency.csv").read_text(encoding="utf-8").splitlines()
    source.write_bytes(("\ufeff" + "\r\n".join(lines[:40] + ["broken,row", ""])).encode() + b"\xff\x00\n")
    assert accuracy.main([str(source), "--out", str(out)]) == 0
    assert "median %" in capsys.readouterr().out
    with open(out, encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert list(written[0])[:6] == ["row_id", "predicted", "low", "high", "profile", "reason"]
    assert [row["row_id"] for row in written[:39]] == [line.split(",")[0] for line in lines[1:40]]
    assert accuracy.main([str(source), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"predictions", "errors"}
    assert accuracy.main([str(tmp_path / "none.csv")]) == 2
    assert accuracy.main([str(source), "--out", str(tmp_path / "none" / "out.csv")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_profile_gives_its_interval_and_what_it_has_not_seen():
    p = econ.load_profile("general/vllm")
    low, high = p.interval("tpot", 0.010)
    assert low < 0.010 < high
    with pytest.raises(ValueError, match="no interval for 'mass'"):
        p.interval("mass", 1.0)
    assert p.unseen(econ.load_model("qwen3-32b"), econ.load_accelerator("h100-sxm")) == []
    assert p.unseen(econ.load_model("gpt2"), econ.load_accelerator("tpu-v4")) == ["model", "gpu"]


def test_the_general_profile_works_through_a_deployment():
    floor = econ.Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4)
    d = econ.Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4, profile="general/vllm")
    real, best = d.serve(64, 2048, 300), floor.serve(64, 2048, 300)
    assert real.tpot_s > best.tpot_s and real.ttft_s > best.ttft_s
    assert real.output_tokens_per_s < best.output_tokens_per_s
    assert real.ttft_s > econ.Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4, profile="general").serve(
        1, 2048, 300).ttft_s / 4
    both = d.serve(np.array([1, 64]), 2048, 300)
    assert both.ttft_s[1] == pytest.approx(real.ttft_s, rel=1e-12)


@pytest.mark.parametrize(("row", "expected"), [
    ({"tp": "4", "ep_dp": ""}, (4, 1, 2, 1)),                  # two copies of four GPUs
    ({"tp": "4", "pp": "2", "ep_dp": ""}, (4, 2, 1, 1)),
    ({"tp": "64", "ep_dp": ""}, (8, 1, 1, 1)),                 # a source that stores tp x ep
    ({"tp": "8", "ep_dp": "adp8 moe_ep8"}, (1, 1, 8, 8)),
    ({"tp": "", "ep_dp": ""}, (8, 1, 1, 1)),
])
def test_how_eight_gpus_are_read(row, expected):
    assert rows.degrees(row, "vLLM", 8) == expected
