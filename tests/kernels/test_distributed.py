"""Two processes that share a model: the numbers of the whole, and the messages that `econ` predicts.

What the processes run is imported by them from this file. Mutants are the same runs with one mistake made
on purpose; what is asserted of the kernels must not hold for them.
"""

import ast
import contextlib
import itertools
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

import torch.distributed as dist  # noqa: E402

import econ  # noqa: E402
from econ.kernels import demonstrate, distributed, llama, messages, processes  # noqa: E402
from econ.parallel import collectives, ring_all_reduce_s, stages  # noqa: E402

SHAPE = {"layers": 3, "hidden": 48, "heads": 6, "kv_heads": 2, "head_dim": 16, "ffn": 80, "vocab": 101}
BATCH, PROMPT, N = 3, 17, 2
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
          "num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2,
          "head_dim": 16, "intermediate_size": 80, "vocab_size": 101, "tie_word_embeddings": False}
ROUTED = {"hidden": 24, "ffn": 40, "n_experts": 6, "top_k": 2}
ROUTED_CONFIG = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "torch_dtype": "bfloat16",
                 "num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 2, "num_key_value_heads": 2,
                 "intermediate_size": 40, "num_local_experts": 6, "num_experts_per_tok": 2, "vocab_size": 101}
ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0


def split(how, dtype="fp64", shape=SHAPE):
    return demonstrate.demonstrate(how, N, BATCH, PROMPT, dtype, shape)


def sent(records, rank=0):
    return [(m.kind, m.count, m.size_bytes) for m in records[rank].messages]


def predicted(config, **degrees):
    """Messages of one bf16 pass by `econ`'s formulas."""
    return [(c.kind, c.count, c.size_bytes) for c in collectives(econ.load_model(config), BATCH, PROMPT, **degrees)]


# Tensor parallelism


@pytest.fixture(scope="module")
def by_hand():
    return split("tensor")


@pytest.fixture(scope="module")
def by_torch():
    return split("torch")


def test_two_processes_compute_what_one_does(by_hand):
    assert [record.rank for record in by_hand] == [0, 1]
    assert {(record.n, record.backend) for record in by_hand} == {(2, "gloo")}
    assert all(record.largest_error <= 1e-12 for record in by_hand)


def test_each_layer_takes_two_all_reduces_of_the_activations(by_hand):
    in_fp64 = [("all-reduce", 2 * SHAPE["layers"], BATCH * PROMPT * SHAPE["hidden"] * 8)]
    assert sent(by_hand) == sent(by_hand, 1) == in_fp64
    assert in_fp64 == [(kind, count, 4 * size) for kind, count, size in predicted(CONFIG, tp=N)]


def test_in_bf16_the_bytes_are_those_of_econ():
    assert sent(split("tensor", "bf16")) == predicted(CONFIG, tp=N)


def test_torch_splits_the_layers_alike(by_hand, by_torch):
    assert all(record.largest_error <= 1e-12 for record in by_torch)
    assert sent(by_torch) == sent(by_torch, 1) == sent(by_hand)


def decode_in_parts():
    """Generated tokens and the last logits, whole and split; bytes and heads of both caches; counts by torch."""
    from torch.distributed.tensor.debug import CommDebugMode
    whole = llama.Llama(**SHAPE, dtype="fp64", device="cpu")
    part = distributed.TensorParallelLlama(whole)
    prompt = torch.arange(BATCH * PROMPT).view(BATCH, PROMPT)
    logits, caches = [], []
    for model in (whole, part):
        cache = model.new_cache(BATCH, PROMPT + 1)
        model.prefill(prompt[:, :9], cache)
        model.prefill(prompt[:, 9:], cache)
        with CommDebugMode() as counted:
            logits.append(model.decode(prompt[:, 0], cache))
        caches.append(cache.bytes)
    same_text = torch.equal(whole.generate(prompt, 4), part.generate(prompt, 4))
    return {"error": float((logits[0] - logits[1]).abs().max()), "cache_bytes": caches, "same_text": same_text,
            "total": counted.get_total_counts(), "params": part.n_params}


def test_a_split_model_decodes_and_generates_with_half_of_the_cache():
    records = processes.run(decode_in_parts, N, timeout_s=WAIT_S)
    whole = llama.Llama(**SHAPE, device="meta")
    kept = sum(w.numel() for w in whole.weights() if w.dim() == 1) + 2 * whole.embedding.numel()
    for record in records:
        assert record["error"] <= 1e-12 and record["same_text"]
        assert record["cache_bytes"][0] == N * record["cache_bytes"][1]
        assert record["total"] == 2 * SHAPE["layers"]   # by another meter, of torch
        assert record["params"] == kept + (whole.n_params - kept) // N


def test_the_parts_of_a_layer_make_up_the_whole():
    layer = llama.Llama(**SHAPE, device="cpu").layers[0]
    parts = [distributed.shard(layer, rank, N) for rank in range(N)]
    for name, weight in layer.items():
        pieces = [part[name] for part in parts]
        if weight.dim() == 1:
            assert all(piece is weight for piece in pieces)
            continue
        assert torch.equal(torch.cat(pieces, dim=1 if name in ("o", "down") else 0), weight)
        assert all(piece.untyped_storage().nbytes() == weight.nbytes // N for piece in pieces)


@contextlib.contextmanager
def swap(name, value):
    with mock.patch.object(distributed, name, value):
        yield


def reduce_every_other(x):
    return real_all_reduce(x) if next(turns) else x


def shard_of_the_other(w, rank, n):
    mine, other = real_shard(w, rank, n), real_shard(w, n - 1 - rank, n)
    return mine | {"o": other["o"]}


def interleaved_shard(w, rank, n):
    return real_shard(w, rank, n) | {"q": w["q"][rank::n]}


def shard_with_norms(w, rank, n):
    return real_shard(w, rank, n) | {"ffn_norm": w["ffn_norm"] / n}


real_all_reduce, real_shard, turns = distributed.all_reduce, distributed.shard, itertools.cycle((True, False))
TENSOR_MUTANTS = {
    "no all-reduce": [("all_reduce", lambda x: x)],
    "an all-reduce a layer is missing": [("all_reduce", reduce_every_other)],
    "two all-reduces in place of one": [("all_reduce", lambda x: real_all_reduce(real_all_reduce(x)))],
    "row and column swapped": [("COLUMN", distributed.ROW), ("ROW", distributed.COLUMN)],
    "the MLP's row and column swapped": [("COLUMN", ("q", "k", "v", "down")), ("ROW", ("o", "gate", "up"))],
    "the output matrix of the other process": [("shard", shard_of_the_other)],
    "query heads dealt out in turn": [("shard", interleaved_shard)],
    "norms divided as well": [("shard", shard_with_norms)],
}


def mutated(name):
    """Error and messages with a mistake in place; an operator that refuses the shapes counts as any error."""
    with contextlib.ExitStack() as stack:
        for attribute, value in TENSOR_MUTANTS[name]:
            stack.enter_context(swap(attribute, value))
        try:
            record = demonstrate.here_and_now("tensor", BATCH, PROMPT, "fp64", SHAPE)
        except RuntimeError:
            return None
    return record.largest_error, [(m.kind, m.count, m.size_bytes) for m in record.messages]


def all_mutants():
    return {name: mutated(name) for name in TENSOR_MUTANTS}


@pytest.fixture(scope="module")
def mutants():
    return processes.run(all_mutants, N, timeout_s=WAIT_S)[0]


@pytest.mark.parametrize("name", TENSOR_MUTANTS)
def test_a_mistake_in_the_split_shows(mutants, by_hand, name):
    found = mutants[name]
    assert found is None or found[0] > 1e-6 or found[1] != sent(by_hand)


def test_mistakes_show_in_what_they_break(mutants, by_hand):
    right = sent(by_hand)
    assert mutants["no all-reduce"][1] == [] and mutants["no all-reduce"][0] > 1e-3
    assert mutants["an all-reduce a layer is missing"][1][0][1] == right[0][1] // 2
    assert mutants["the output matrix of the other process"][0] > 1e-3
    assert mutants["the output matrix of the other process"][1] == right   # counts alone would not tell
    assert mutants["row and column swapped"] is None


# Pipeline


def test_a_pipeline_is_exact_and_sends_once_between_two_stages():
    records = split("pipeline", "bf16")
    assert [record.largest_error for record in records] == [None, 0.0]
    assert sent(records) == predicted(CONFIG, pp=N)
    assert sent(records, 1) == []


def pipeline_in_chunks():
    """A prefill in two chunks and a decode step through two stages, each with the cache of its layers."""
    whole = llama.Llama(**SHAPE, dtype="fp64", device="cpu")
    stage, tokens = distributed.PipelineStage(whole), torch.arange(BATCH * PROMPT).view(BATCH, PROMPT)
    cache = stage.part.new_cache(BATCH, PROMPT)
    made = [stage.forward(chunk, cache) for chunk in tokens.split([9, PROMPT - 10, 1], dim=1)]
    error = None if made[-1] is None else float((made[-1] - whole.prefill(tokens)).abs().max())
    return len(stage.part.layers), cache.kv.shape[0], error


def test_stages_keep_the_cache_of_their_own_layers():
    first, last = processes.run(pipeline_in_chunks, N, timeout_s=WAIT_S)
    assert first == (2, 2, None)
    assert last[:2] == (1, 1) and last[2] <= 1e-12


@pytest.mark.parametrize(("layers", "n"), [(3, 2), (32, 4), (61, 4), (80, 8), (7, 7), (5, 1)])
def test_stages_are_cut_where_econ_cuts_them(layers, n):
    model = econ.load_model(CONFIG | {"num_hidden_layers": layers})
    assert distributed.stage_layers(layers, n) == [len(stage.layers) for stage in stages(model, n)]


# Experts


@pytest.fixture(scope="module")
def routed():
    return split("experts", "fp64", ROUTED)


def test_experts_in_two_processes_give_every_token_its_own(routed):
    assert all(record.largest_error <= 1e-12 for record in routed)


def test_tokens_go_out_as_econ_says_and_come_back_unevenly(routed):
    (_, count, size), = predicted(ROUTED_CONFIG, ep=N)
    size *= 4   # fp64 for bf16
    told, out, back = ([sent(routed, rank)[i] for rank in range(N)] for i in range(3))
    assert count == 2
    assert set(told) == {("all-to-all", 1, 8 * ROUTED["n_experts"])}   # how many rows: not part of the formula
    assert set(out) == {("all-to-all", 1, size)}
    assert sum(bytes_ for _, _, bytes_ in back) == N * size
    assert back[0] != back[1]   # popular experts have more to send back


def test_the_reference_adds_up_the_chosen_experts_of_each_token(monkeypatch):
    monkeypatch.setattr(demonstrate, "here", lambda: torch.device("cpu"))
    router, experts = demonstrate.random_experts(24, 40, 6, "fp64")
    x = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    found = demonstrate.all_experts(x, router, experts, 2)
    for token, result in zip(x, found, strict=True):
        scores = {e: float(token @ router[e]) for e in range(6)}
        best = sorted(scores, key=scores.get)[-2:]
        shares = torch.tensor([scores[e] for e in best], dtype=torch.float64).exp()
        expected = sum(share / shares.sum() * mlp(token, *experts[e]) for e, share in zip(best, shares, strict=True))
        assert float((result - expected).abs().max()) < 1e-12


def mlp(token, gate, up, down):
    a = gate @ token
    return down @ (a / (1 + (-a).exp()) * (up @ token))


def unsorted(x, router, local, top_k):
    with mock.patch.object(torch.Tensor, "argsort", lambda chosen, stable: torch.arange(len(chosen))):
        return real_expert_mlp(x, router, local, top_k)


def equal_shares(x, router, local, top_k):
    with mock.patch.object(torch.Tensor, "softmax", lambda scores, dim: torch.full_like(scores, 1 / top_k)):
        return real_expert_mlp(x, router, local, top_k)


def experts_of_the_other(x, router, local, top_k):
    return real_expert_mlp(x, router, local[::-1], top_k)


real_expert_mlp = distributed.expert_mlp
EXPERT_MUTANTS = (unsorted, equal_shares, experts_of_the_other)


def expert_mutants():
    errors = {}
    for mutant in EXPERT_MUTANTS:
        with mock.patch.object(demonstrate, "expert_mlp", mutant):
            errors[mutant.__name__] = demonstrate.here_and_now("experts", BATCH, PROMPT, "fp64", ROUTED).largest_error
    return errors


def test_mistakes_with_experts_show():
    for errors in processes.run(expert_mutants, N, timeout_s=WAIT_S):
        assert set(errors) == {mutant.__name__ for mutant in EXPERT_MUTANTS}
        assert min(errors.values()) > 1e-3


# Processes


def refuses_in_one_process():
    if dist.get_rank() == 1:
        raise ValueError("rank 1 does not like this")
    dist.barrier()   # would wait for ever


def test_what_one_process_refuses_ends_the_others_and_is_told_in_one_line():
    start = time.monotonic()
    with pytest.raises(ValueError, match="^rank 1 does not like this$"):
        processes.run(refuses_in_one_process, N, timeout_s=300)
    assert time.monotonic() - start < 200   # and not after the time a message may take


def test_sizes_that_two_processes_cannot_share_are_refused_in_one_line():
    with pytest.raises(ValueError, match="^5 KV heads cannot be split over 2 processes; use a divisor of 5$"):
        split("tensor", shape=SHAPE | {"heads": 10, "kv_heads": 5})


def three_experts_of_eight():
    distributed.expert_mlp(torch.zeros(2, 4), torch.zeros(8, 4), [()] * 3, 1)


BAD_IN_A_GROUP = {
    "7 heads cannot be split over 3 processes": lambda: distributed.check_split(3, {"heads": 7}),
    "3 stages are more than the 2 layers; use at most 2": lambda: distributed.stage_layers(2, 3),
    "3 experts in each of 3 processes are not the router's 8": three_experts_of_eight,
    "x [2, 4] and router [3, 5] do not fit; use [tokens, hidden]":
        lambda: distributed.expert_mlp(torch.zeros(2, 4), torch.zeros(3, 5), [()], 1),
    "top_k=4 of 3 experts; use 1 to 3":
        lambda: distributed.expert_mlp(torch.zeros(2, 4), torch.zeros(3, 4), [()], 4),
    "split='data' is unknown; use one of tensor, torch, pipeline, experts":
        lambda: demonstrate.here_and_now("data"),
    "shape has unknown sizes width; use hidden, ffn, n_experts, top_k":
        lambda: demonstrate.here_and_now("experts", shape={"width": 3}),
}


@pytest.mark.parametrize("message", BAD_IN_A_GROUP)
def test_bad_sizes_are_refused_in_one_line(monkeypatch, message):
    for module in (distributed, demonstrate):
        monkeypatch.setattr(module, "place", lambda: (0, 3))
    with pytest.raises(ValueError, match=".") as error:
        BAD_IN_A_GROUP[message]()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_process_without_a_group_is_told_so():
    for call in (processes.place, processes.here, messages.time_all_reduce,
                 lambda: distributed.TensorParallelLlama(llama.Llama(**SHAPE, device="meta"))):
        with pytest.raises(ValueError, match=r"^this process is alone; call it through processes\.run\(fn, n\)"):
            call()


def test_functions_that_a_new_process_cannot_find_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="lives in a cell or in another function.*put it into a module"):
        processes.run(lambda: None, N)

    def in_a_cell():
        """As a notebook would define it: its module is __main__, which no file holds."""

    monkeypatch.setattr(in_a_cell, "__module__", "__main__")
    monkeypatch.setattr(in_a_cell, "__qualname__", "in_a_cell")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(ValueError, match="^in_a_cell lives in a cell"):
        processes.run(in_a_cell, N)


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "two"])
def test_a_number_of_processes_is_a_positive_whole_number(n):
    with pytest.raises(ValueError, match=f"^n={n!r} is not a size; use a whole number of at least 1$"):
        processes.run(refuses_in_one_process, n)


@pytest.mark.parametrize(("gpus", "n", "backend"), [(0, 1, "gloo"), (1, 2, "gloo"), (2, 2, "nccl"), (8, 2, "nccl")])
def test_a_gpu_each_or_all_on_the_cpu(monkeypatch, gpus, n, backend):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert processes.pick_backend(n) == backend


def test_the_same_runs_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               "-m", "econ.kernels.demonstrate", "tensor"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("Demonstration(")]
    assert len(lines) == 2
    for line in lines:
        fields = {keyword.arg: keyword.value for keyword in ast.parse(line, mode="eval").body.keywords}
        assert ast.literal_eval(fields["n"]) == 2 and ast.literal_eval(fields["largest_error"]) <= 1e-12
        assert "kind='all-reduce', count=8, size_bytes=262144" in line


# What an all-reduce costs


def test_an_exact_line_is_found_and_is_the_ring_of_econ():
    sizes = (1024, 2**16, 2**20, 2**24)
    samples = [[20e-6 + size / 2e9 for size in sizes]] * 3
    fit = messages.fit_all_reduce(4, "nccl", sizes, samples)
    assert fit.alpha_s == pytest.approx(20e-6) and fit.bytes_per_s == pytest.approx(2e9)
    assert max(fit.alpha_spread_frac, fit.bytes_per_s_spread_frac, fit.held_out_error_frac) < 1e-6
    for size in sizes:
        assert fit.time_s(size) == pytest.approx(ring_all_reduce_s(size, 4, fit.link_bytes_per_s, fit.hop_s))


def test_noise_shows_in_the_spread_and_in_the_held_out_error():
    sizes = (1024, 2**16, 2**20, 2**24)
    samples = [[20e-6 * factor + size / 2e9 for size in sizes] for factor in (1, 2, 3, 4)]
    fit = messages.fit_all_reduce(2, "gloo", sizes, samples)
    assert fit.alpha_spread_frac == pytest.approx(1.5 / 2.5)   # quartiles of 1, 2, 3, 4
    assert fit.bytes_per_s_spread_frac < 1e-6
    bent = [[20e-6, 30e-6, 400e-6, 1e-3]] * 3
    assert messages.fit_all_reduce(2, "gloo", sizes, bent).held_out_error_frac > 0.3


def test_all_reduces_between_two_processes_are_timed_at_every_size():
    fit = messages.measure_all_reduce(N, repeats=3, sizes_bytes=(2**10, 2**14, 2**18))
    assert (fit.n, fit.backend, fit.sizes_bytes) == (2, "gloo", (2**10, 2**14, 2**18))
    assert len(fit.times) == 3 and all(t.median_s > 0 and t.runs == 3 for t in fit.times)


@pytest.mark.timing
def test_an_all_reduce_starts_late_and_takes_longer_the_more_it_carries():
    fit = messages.measure_all_reduce(N)
    assert fit.alpha_s > 0
    assert fit.times[-1].median_s > fit.times[0].median_s and fit.bytes_per_s > 0


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"n": 1}, "one process sends no messages; use 2 or more"),
    ({"repeats": 2}, "repeats=2 and 8 sizes give no spread; use 3 or more of both"),
    ({"sizes_bytes": (8, 16)}, "repeats=7 and 2 sizes give no spread"),
    ({"sizes_bytes": (8, 16, 30)}, "use multiples of 4")])
def test_bad_requests_for_a_fit_are_refused_in_one_line(kwargs, message):
    with pytest.raises(ValueError, match=".") as error:
        messages.measure_all_reduce(**kwargs)
    assert message in str(error.value) and "\n" not in str(error.value)


def two_kinds_of_messages():
    """What the meter sees of messages that are not in the kernels, and of none."""
    rows, out = torch.ones(4, 2), torch.empty(8, 2)

    def talk():
        dist.all_gather_into_tensor(out, rows)
        dist.broadcast(rows, 0)
        dist.barrier()

    return messages.count_messages(talk), messages.count_messages(lambda: rows + rows)


def test_the_meter_names_what_it_does_not_know_and_counts_no_arithmetic():
    other, nothing = processes.run(two_kinds_of_messages, N, timeout_s=WAIT_S)[0]
    assert [(m.kind, m.count, m.size_bytes) for m in other] == [("all-gather", 1, 32), ("broadcast_", 1, 32)]
    assert nothing == ()


def test_every_process_of_a_group_runs_on_one_thread():
    assert processes.run(torch_threads, N, timeout_s=WAIT_S) == [1, 1]


def torch_threads():
    return torch.get_num_threads()
