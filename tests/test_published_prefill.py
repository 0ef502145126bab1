"""The article's own prefill runs, read from the file that ships: times, exponent and utilisation.

Expected values are what the article prints, or what facts.csv holds of it; the runs are measurements by others.
The rule for stalls was stated before the rows were looked at: more than 35 % above the median time per token.
"""

import csv
import math
from pathlib import Path
from statistics import median

import pytest

import econ
from econ.names import DATA

pytestmark = pytest.mark.core

RUNS = DATA / "measured" / "llama_vllm_h100_2025.csv"
M = econ.load_model("llama-3.3-70b")
FOUR_H100S_FLOP_PER_S = 4 * econ.load_accelerator("h100-sxm").flop_per_s("bf16")


def table(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


FACTS = {row["id"]: float(row["value"].replace(",", "")) for row in table(Path(__file__).parents[1] / "facts.csv")}
ONE_TOKEN = {(int(float(row["mean_input_tokens"])), int(row["batch"])): float(row["elapsed_s"])
             for row in table(RUNS) if row["model"] == M.name and row["max_output_tokens"] == "1"}


def kept(slack_frac=0.35):
    """The prefill runs that are not stalls: (tokens, batch) -> seconds."""
    per_token_s = {run: time_s / (run[0] * run[1]) for run, time_s in ONE_TOKEN.items()}
    limit_s = (1 + slack_frac) * median(per_token_s.values())
    return {run: time_s for run, time_s in ONE_TOKEN.items() if per_token_s[run] <= limit_s}


def flops(tokens, causal, logits="last"):
    return econ.forward(M, new_tokens=tokens, causal=causal, logits=logits, count="article").flops


def mfu_frac(tokens, batch, causal, logits="last"):
    return batch * flops(tokens, causal, logits) / ONE_TOKEN[tokens, batch] / FOUR_H100S_FLOP_PER_S


def test_the_file_is_whole_and_keeps_its_licence():
    models = [row["model"] for row in table(RUNS)]
    assert (len(models), models.count("llama-3.3-70b"), models.count("llama-3.1-8b")) == (688, 660, 28)
    licence = RUNS.with_suffix(".LICENSE").read_text(encoding="utf-8")
    assert licence.startswith("MIT License") and "Copyright (c) 2024 Piotr Mazurek" in licence


def test_any_sensible_rule_drops_the_same_stalls():
    assert len(ONE_TOKEN) == 27
    assert len(kept()) == 20
    assert kept(0.2) == kept() == kept(10)


@pytest.mark.parametrize(("tokens", "batch"), [(1059, 1), (1059, 8), (1059, 32), (2083, 1), (2083, 8), (2083, 32),
                                               (4131, 1), (8227, 1), (8227, 4), (32_803, 1)])
def test_prefill_times_are_the_cited_ones(tokens, batch):
    assert kept()[tokens, batch] == pytest.approx(FACTS[f"prefill-s{tokens}-b{batch}"], abs=5.1e-5)


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 32])
def test_the_articles_utilisation_reproduces_in_its_own_count(batch):
    printed_flop = FACTS["article-prefill-flop-all-logits"] * 1e12 / 2048 * 2083  # rounded, and scaled to the prompt
    printed_frac = batch * printed_flop / ONE_TOKEN[2083, batch] / FOUR_H100S_FLOP_PER_S
    assert 100 * printed_frac == pytest.approx(FACTS[f"article-prefill-mfu-b{batch}"], abs=0.011)
    counted_frac = mfu_frac(2083, batch, causal=False, logits="all")
    assert counted_frac == pytest.approx(printed_frac, rel=0.002)


@pytest.mark.parametrize("tokens", [1059, 2083, 4131, 8227, 32_803])
def test_utilisation_of_lone_prompts(tokens):
    assert 100 * mfu_frac(tokens, 1, causal=True) == pytest.approx(FACTS[f"prefill-mfu-causal-s{tokens}"], abs=0.051)
    assert 100 * mfu_frac(tokens, 1, causal=False) == pytest.approx(FACTS[f"prefill-mfu-full-s{tokens}"], abs=0.051)


def test_time_to_first_token_grows_with_the_power_of_one_not_two():
    runs, ratio = kept(), math.log(32_803 / 1059)
    exponent = math.log(runs[32_803, 1] / runs[1059, 1]) / ratio
    assert exponent == pytest.approx(FACTS["prefill-exponent"], abs=0.0005)
    counted = [math.log(flops(32_803, causal) / flops(1059, causal)) / ratio for causal in (True, False)]
    assert counted == pytest.approx([1.077, 1.137], abs=0.0005)


def test_utilisation_is_flat_only_when_counted_causally():
    long = (4131, 8227, 32_803)
    causal, full = ([mfu_frac(tokens, 1, count) for tokens in long] for count in (True, False))
    assert max(causal) / min(causal) < 1.06
    assert max(full) / min(full) > 1.25


def test_a_token_in_a_long_prompt_costs_what_the_causal_count_says():
    def growth(tokens, causal):
        return flops(tokens, causal) / tokens / flops(1059, causal) * 1059

    runs = kept()
    base_s = runs[1059, 8] / (8 * 1059)
    for batch in (1, 2):
        measured = runs[32_803, batch] / (batch * 32_803) / base_s
        assert measured == pytest.approx(growth(32_803, causal=True), rel=0.05)
        assert measured < 0.85 * growth(32_803, causal=False)


def test_no_run_beats_the_floor():
    d = econ.Deployment(M, "h100-sxm", n_gpus=4)
    for (tokens, batch), time_s in ONE_TOKEN.items():
        assert d.prefill(batch=batch, prompt=tokens).time_s < 0.5 * time_s
    assert ONE_TOKEN[2083, 1] / d.prefill(prompt=2083).time_s == pytest.approx(2.57, abs=0.005)
