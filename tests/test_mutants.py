"""Wrong formulas that real tools ship, put into a copy of econ one at a time: the core tests must notice each.

A mutant is a file, a piece of its source and a replacement. It has to match exactly once, import, and change some
value of the contract. Then the core tests run on the copy, and one of their assertions has to fail.
"""

import json
import os
import queue
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
ENVIRONMENT = {**os.environ, "HYPOTHESIS_PROFILE": "short", "PYTHONPATH": ""}
ENVIRONMENT.pop("PYTHONDONTWRITEBYTECODE", None)  # the tests are compiled once, not once a mutant


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One wrong formula: what it gets wrong, and how."""

    name: str
    file: str
    source: str
    wrong: str


def mutants(file, *rows):
    return [Mutant(name=name, file=file, source=source, wrong=wrong) for name, source, wrong in rows]


LATENT = "        if self.latent:\n            return self.latent.rank + self.latent.rope_dim\n"
MUTANTS = [
    *mutants(
        "model.py",
        ("query heads in the cache", "return self.read_elements + self",
         "return (self.read_elements if self.latent else self.heads * (self.qk_dim + self.v_dim)) + self"),
        ("MLA cached twice, as K and V", "return self.read_elements + self",
         "return (2 if self.latent else 1) * self.read_elements + self"),
        ("MLA cached as full K and V heads", "return self.read_elements + self",
         "return self.kv_heads * (self.qk_dim + self.v_dim) + self"),
        ("every query head reads its own K and V", f"caches included.\"\"\"\n{LATENT}        return self.kv_heads *",
         f"caches included.\"\"\"\n{LATENT}        return self.heads *"),
        ("a multiply-add counted as one FLOP", "return 2 * self.n_used_params if", "return self.n_used_params if"),
        ("every expert multiplies every token", "return prod(self.shape) * self.used",
         "return prod(self.shape) * self.copies"),
        ("scores of QK^T only", "return 2 * self.heads * (self.qk_dim + self.v_dim)",
         "return 2 * self.heads * self.qk_dim"),
        ("tied head counted twice", "*(() if self.tied else (self.head,))", "self.head"),
        ("tied table held twice", "    if model.tied:  # the head is", "    if False:  # the head is"),
        ("all experts read in every step", "return total * (1 - (1 - used / total) ** tokens)", "return total"),
        ("active experts only, at any batch", "return total * (1 - (1 - used / total) ** tokens)", "return used"),
        ("experts touched without overlap", "return total * (1 - (1 - used / total) ** tokens)",
         "return minimum(total, used * tokens)"),
        ("tables and head quantised too", "return FORMATS[recipe] if quantized else FORMATS[\"bf16\"]",
         "return FORMATS[recipe]"),
        ("window layers dropped from the cache", "* (tokens if a.window is None else minimum(tokens, a.window))\n",
         "* (tokens if a.window is None else 0)\n"),
        ("the cache of one sequence for the whole batch", "return batch * held * cache_bytes",
         "return held * cache_bytes"),
    ),
    *mutants(
        "keys.py",
        ("num_kv_heads not read", "(\"num_key_value_heads\", \"num_kv_heads\", ", "(\"num_key_value_heads\", "),
    ),
    *mutants(
        "schedule.py",
        ("a switched-off window applied", "keys.raw(\"use_sliding_window\") is not False", "True"),
    ),
    *mutants(
        "rules.py",
        ("first dense layers taken for MoE", "\"sparse\" if i >= first and i %", "\"sparse\" if i %"),
    ),
    *mutants(
        "layers.py",
        ("head_dim from hidden / heads although declared", "given, hidden = keys.optional(\"head_dim\")",
         "given, hidden = None"),
        ("multi-query attention ignored", "kv_heads = 1 if multi_query else", "kv_heads = heads if multi_query else"),
        ("two matrices in a gated MLP", "(\"gate_proj\", \"up_proj\") if family.gated else (\"up_proj\",)",
         "(\"up_proj\",)"),
        ("shared expert forgotten", "return tensors + _shared_expert(keys, family, width)", "return tensors"),
    ),
    *mutants(
        "precision.py",
        ("scales of quantised blocks forgotten", "        if self.block:\n", "        if False:\n"),
        ("weight-only int8 at an 8-bit rate", "Format(name=\"int8\", bits=8, block=(1, 0), scale_bits=16)",
         "Format(name=\"int8\", bits=8, block=(1, 0), scale_bits=16, rate=\"fp8\")"),
        ("a GGUF head at 4 bits", "    if role == \"head\":\n", "    if False:\n"),
    ),
    *mutants(
        "hardware.py",
        ("GB/s taken as 2^30 B/s", "hbm_bytes_per_s=float(memory[\"hbm_bytes_per_s\"])",
         "hbm_bytes_per_s=float(memory[\"hbm_bytes_per_s\"]) * 1.073741824"),
        ("sparse peaks", "peaks = {p: float(raw[\"compute\"][p])", "peaks = {p: 2 * float(raw[\"compute\"][p])"),
        ("both directions of a link added", "bytes_per_s_each_way=float(link[\"bytes_per_s_each_way\"])",
         "bytes_per_s_each_way=2 * float(link[\"bytes_per_s_each_way\"])"),
        ("printed GB for the memory that software sees", "capacity = self.visible_bytes or self.printed_bytes",
         "capacity = self.printed_bytes or self.visible_bytes"),
    ),
    *mutants(
        "units.py",
        ("GiB printed as GB", "\"GiB\": GIB", "\"GiB\": G"),
    ),
    *mutants(
        "work.py",
        ("causal halving lost", "        return new_tokens * context + _triangle(new_tokens)",
         "        return new_tokens * (context + new_tokens)"),
        ("a new token does not see itself", "return n * (n + 1) // 2 if", "return n * (n - 1) // 2 if"),
        ("decode scores one key", "        return new_tokens * context + _triangle(new_tokens)",
         "        return _triangle(new_tokens)"),
        ("head on every position of a prompt", "{\"last\": batch, ", "{\"last\": tokens, "),
        ("embedding counted as a matrix product", "Layer(tensors=(*model.final, model.head))",
         "Layer(tensors=(*model.final, model.head, model.head))"),
        ("embedding table read in every pass", "Layer(tensors=(*model.final, model.head))",
         "Layer(tensors=(*model.embeddings, *model.final, model.head))"),
        ("the whole cache written in every step", "kv_write_bytes=share * a.cache_elements * new_tokens",
         "kv_write_bytes=share * a.cache_elements * (context + new_tokens)"),
        ("weights read again for every token", "weight_bytes=copies_read * self.bytes)",
         "weight_bytes=copies_read * self.bytes * tokens)"),
        ("activations charged as memory traffic", "+ self.kv_write_bytes + self.state_bytes",
         "+ self.kv_write_bytes + self.state_bytes + self.activation_bytes"),
        ("the cache in the format of the weights", "cache = model.cache_dtype if kv is None else",
         "cache = (\"fp8\" if weights == \"fp8\" else model.cache_dtype) if kv is None else"),
        ("window layers score the whole context", "    if window is None:\n        return new_tokens * context +",
         "    if True:\n        return new_tokens * context +"),
        ("window layers read the whole context", "    if window is None:\n        return context\n",
         "    if True:\n        return context\n"),
        ("chunks taken for sliding windows", "seen = _chunked_pairs if chunked else _windowed_pairs",
         "seen = _windowed_pairs"),
        ("MLA always expands its cache", "flops = minimum(flops + expand, pairs * a.flops_per_absorbed_score)",
         "flops = flops + expand"),
        ("MLA always absorbed, prefill too", "flops = minimum(flops + expand, pairs * a.flops_per_absorbed_score)",
         "flops = pairs * a.flops_per_absorbed_score"),
        ("the latent divided by tensor parallelism", "        if attention.latent:\n            return 1\n", ""),
        ("KV heads divided beyond their number", "_fraction(ceil_div(attention.kv_heads, self.tp), attention.kv_heads)",
         "_fraction(1, self.tp)"),
        ("norms divided by tensor parallelism", "if tensor.shard == \"whole\":", "if False:"),
        ("attention not divided by tensor parallelism", "name=name, flops=_part(flops, split.tp),",
         "name=name, flops=flops,"),
    ),
    *mutants(
        "roofline.py",
        ("compute and memory time added", "return maximum(compute_s, memory_s) + comm_s",
         "return compute_s + memory_s + comm_s"),
        ("the number of GPUs ignored", "memory_s=work.bytes / (n * accelerator", "memory_s=work.bytes / (accelerator"),
    ),
    *mutants(
        "memory.py",
        ("pages not rounded up", "maximum(ceil_div(tokens, BLOCK_TOKENS), 1)", "tokens / BLOCK_TOKENS"),
        ("weights left out of what fits", "room = capacity_bytes - held -", "room = capacity_bytes -"),
        ("max_batch ignores the context", "max_batch=_whole(room, each)",
         "max_batch=_whole(room, _page_bytes(model, kv, split))"),
    ),
    *mutants(
        "placement.py",
        ("all of the memory usable", "usable_bytes = self.gpu_mem_frac * self", "usable_bytes = self"),
        ("a batch that does not fit is timed anyway", "        if not need.fits:\n            raise",
         "        if False:\n            raise"),
    ),
    *mutants(
        "latency.py",
        ("a decode step for the first token too", "total, later = ttft + decoding,",
         "total, later = ttft + decoding + single,"),
        ("time per output token includes the prefill", "decoding / later, single)", "total / output, single)"),
        ("decode at the prompt's length throughout", "self._pass(batch, 1, first + maximum(end - 1, start))",
         "self._pass(batch, 1, first + start)"),
        ("input tokens counted as output", "output_tokens_per_s=batch * output / total",
         "output_tokens_per_s=batch * (prompt + output) / total"),
        ("every product at the 16-bit rate", "peaks.get(rate) or peaks.get(\"bf16\")", "peaks.get(\"bf16\")"),
    ),
    *mutants(
        "parallel.py",
        ("ring factor dropped", "{\"all-reduce\": 2 * (self.n - 1) / self.n,", "{\"all-reduce\": 1,"),
        ("half of an all-reduce", "{\"all-reduce\": 2 * (self.n - 1) / self.n,",
         "{\"all-reduce\": (self.n - 1) / self.n,"),
        ("one all-reduce a layer", "reduces += n * (mixers + has_mlp)", "reduces += n"),
        ("a token sent to one expert", "size_bytes=used * size / tp", "size_bytes=size / tp"),
        ("a hop for every stage", "count=pp - 1, size_bytes=size", "count=pp, size_bytes=size"),
        ("the embedding table in every stage", "embeddings=model.embeddings if i == 0 else ()",
         "embeddings=model.embeddings"),
    ),
    *mutants(
        "latency.py",
        ("a pipeline's stages at the same time for one request", "sum(w.bytes for w in work) / bus\n",
         "sum(w.bytes for w in work) / bus / self.pp\n"),
        ("the network as fast as links inside a node", "if c.span > self.gpus_per_node else inside",
         "if False else inside"),
        ("an efficiency multiplied", "compute_s = peak_s / profile.flop_frac",
         "compute_s = peak_s * profile.flop_frac"),
        ("arithmetic hidden behind reading", "        if not profile.overlap:\n", "        if False:\n"),
        ("the cache as efficient as the weights", "/ profile.weight_frac + kv_s / profile.kv_frac",
         "/ profile.weight_frac + kv_s / profile.weight_frac"),
        ("latency of one collective for all", "self.profile.collective_s * sum(c.count * math.log2(c.n)",
         "self.profile.collective_s * sum(math.log2(c.n)"),
        ("drafted tokens without logits", "logits=\"all\")", "logits=\"last\")"),
    ),
    *mutants(
        "placement.py",
        ("replicas counted as slices", "return Split(tp=self.tp, experts",
         "return Split(tp=self.tp * self.dp, experts"),
        ("every replica holds all experts", "return Split(tp=self.tp, experts=self.ep)", "return Split(tp=self.tp)"),
    ),
    *mutants(
        "work.py",
        ("shared experts see one replica's tokens", "touched(*key, tokens * split.replicas)", "touched(*key, tokens)"),
        ("the cache read twice", "return self.weight_bytes + self.kv_read_bytes +",
         "return self.weight_bytes + 2 * self.kv_read_bytes +"),
        ("windows without an end in a long answer", "        elif a.window:\n            found",
         "        elif False:\n            found"),
    ),
    *mutants(
        "serving.py",
        ("prefills of others left out of the time per token",
         "tpot_s=_per_token(c.met_s, output, c.decode_s)", "tpot_s=c.decode_s"),
        ("all prompts of a batch for the price of one", "cycle = running * added / groups +",
         "cycle = added / groups +"),
        ("a step for every token, the first too", "self._time(group, 1, context) + others, output - 1",
         "self._time(group, 1, context) + others, output"),
        ("capacity ignored", "running = minimum(concurrency / replicas, places)", "running = concurrency / replicas"),
        ("throughput of one replica", "rate = replicas * running / c.cycle_s", "rate = running / c.cycle_s"),
        ("nobody waits", "ttft_s=c.first_s + wait,\n", "ttft_s=c.first_s,\n"),
        ("clients not shared among replicas", "minimum(concurrency / replicas, places)",
         "minimum(concurrency, places)"),
        ("steps at the prompt's length", "context = maximum(running, 1) / groups, prompt + output / 2",
         "context = maximum(running, 1) / groups, prompt"),
        ("one group in a pipeline", "groups = minimum(maximum(running, 1), self.pp)", "groups = 1"),
        ("a chunk reads the weights again", "_joined(a, b, w.weight_bytes)",
         "_joined(a, b, a.weight_bytes + b.weight_bytes)"),
        ("a cached prefix is not attended", "alone = self._time(1, fresh, prompt - fresh)",
         "alone = self._time(1, fresh, 0)"),
        ("a short prompt for nothing in a full engine", "return maximum(compute_s + self._wire_s(new), sum(",
         "return minimum(compute_s + self._wire_s(new), sum("),
        ("more served than can be", "        if rate >= top:\n", "        if False:\n"),
        ("arrivals that wait twice", "(2 * (1 - rate * c.service_s))", "(1 - rate * c.service_s)"),
    ),
    *mutants(
        "cost.py",
        ("utilisation multiplied", "usd_per_s = price * self.n_gpus / 3600 / busy",
         "usd_per_s = price * self.n_gpus / 3600 * busy"),
        ("one GPU paid of all", "usd_per_s = price * self.n_gpus / 3600", "usd_per_s = price / 3600"),
        ("the bill over output tokens alone", "1e6 * request / (prompt + output)", "1e6 * request / output"),
        ("everything charged twice", "usd_per_mtok_output=1e6 * request * (1 - to_input)",
         "usd_per_mtok_output=1e6 * request"),
        ("half of the time for the prompt", "where(output > 1, 1 - (output - 1) * load.decode_s / load.cycle_s, 1.0)",
         "where(output > 1, 0.5, 1.0)"),
        ("memory of cached tokens for free", "self.profile.kv_frac) + load.cycle_s / g.memory_bytes",
         "self.profile.kv_frac)"),
        ("energy of one GPU", "self.n_gpus * self.accelerator.tdp_w", "self.accelerator.tdp_w"),
    ),
    *mutants(
        "market.py",
        ("a discount on the whole bill", "number(\"output\", output, minimum=0) * self",
         "number(\"output\", output, minimum=0) * (1 - 0.9 * cached) * self"),
    ),
    *mutants(
        "choose.py",
        ("replicas are paid and do not serve", "tokens_per_s = dp * served", "tokens_per_s = served"),
        ("unpriced GPUs are free", "priced = row.usd_per_mtok_blended is not None", "priced = True"),
    ),
    *mutants(
        "techniques.py",
        ("the target's own token forgotten", "sum(a**i for i in range(k + 1))", "sum(a**i for i in range(1, k + 1))"),
        ("verified for the price of one token", "d.verify(batch, k + 1, context)", "d.decode(batch, context)"),
        ("one draft step for k tokens", "k * draft.decode(batch", "draft.decode(batch"),
        ("a cache sent by one GPU of many", "(d.tp * d.pp * link)", "link"),
    ),
]

PROBE = """
import json, econ
values = {}
def note(key, call):
    try:
        values[key] = repr(call())
    except Exception as error:
        values[key] = type(error).__name__
def fields(result):
    return {k: getattr(result, k) for k in result.__dataclass_fields__ if k != "operators"}
for name in ("llama-3.3-70b", "llama-3.1-8b", "gemma-2b", "falcon-7b", "falcon-40b", "qwen3-32b", "qwen2.5-7b",
             "qwen1.5-1.8b-chat", "mixtral-8x7b-v0.1", "deepseek-v3", "gpt-oss-20b", "llama-4-scout-17b-16e"):
    note(name, lambda: econ.load_model(name).n_params)
    try:
        m = econ.load_model(name)
    except ValueError:
        continue
    note((name, "active"), lambda: (m.n_active_params, m.kv_bytes_per_token(), m.kv_growth_bytes_per_token()))
    note((name, "cache"), lambda: [m.kv_cache_bytes(t, 3) for t in (100, 20_000)])
    for recipe in (None, "bf16", "fp8", "int8", "q4_0"):
        note((name, recipe), lambda: (m.weight_bytes(recipe), [m.streamed_weight_bytes(recipe, t) for t in (1, 40)]))
        for sizes in ((1, 1, 0), (4, 1, 9000), (2, 3000, 0), (2, 3000, 3000)):
            note((name, recipe, sizes), lambda: (fields(w := econ.forward(m, *sizes, weights=recipe)), w.bytes))
    for tp in (1, 4, 8, 16):
        d = lambda: econ.Deployment(m, "h200-sxm", n_gpus=tp)
        note((name, tp, "decode"), lambda: fields(d().decode(2, 2041)))
        fp8 = lambda: econ.Deployment(m, "h100-sxm", n_gpus=tp, weights="fp8")
        note((name, tp, "fp8"), lambda: fields(fp8().prefill(1, 2041)))
        note((name, tp, "prefill"), lambda: fields(d().prefill(2, 2041)))
        note((name, tp, "request"), lambda: fields(d().request(2, 2041, 4)))
        note((name, tp, "memory"), lambda: fields(d().memory(2, 2041)))
for name in econ.accelerators():
    g = econ.load_accelerator(name)
    note(name, lambda: (dict(g.peaks), g.hbm_bytes_per_s, g.link, g.memory_bytes))
note("fmt", lambda: [econ.fmt(123456789, unit) for unit in ("MB", "GB", "MiB", "GiB")])
small, h100 = econ.load_model("llama-3.1-8b"), econ.load_accelerator("h100-sxm")
note("n", lambda: econ.time_on(econ.forward(small), h100, n=3).time_s)
from econ import techniques
profile = econ.Profile(name="probe", flop_frac=0.5, weight_frac=0.6, kv_frac=0.4, link_frac=0.7, collective_s=1e-5)
for degrees in (dict(), dict(n_gpus=4), dict(n_gpus=16), dict(n_gpus=4, tp=1, pp=4), dict(n_gpus=8, tp=2, dp=4),
                dict(n_gpus=16, tp=8, pp=2), dict(n_gpus=8, tp=1, dp=8, ep=8), dict(n_gpus=8, tp=2, dp=4, ep=8)):
    model = "deepseek-v3" if "ep" in degrees else "llama-3.1-8b"
    d = lambda: econ.Deployment(model, "h200-sxm", profile=profile, **degrees)
    key = str(degrees)
    note((key, "passes"), lambda: [fields(f(3, 900)) for f in (d().prefill, d().decode)])
    note((key, "memory"), lambda: fields(d().memory(3, 900)))
    for more in ((), (200, 0.4), (None, 0.4)):
        note((key, "serve", more), lambda: [fields(d().serve(c, 900, 50, *more)) for c in (1, 33, 10**5)])
    note((key, "rate"), lambda: fields(d().at_rate(1.5, 900, 50)))
    note((key, "too fast"), lambda: fields(d().at_rate(1e6, 900, 50)))
    note((key, "cost"), lambda: [fields(d().cost(2.5, 33, 900, 50, 0.4, a)) for a in ("time", "flops", "equal")])
    note((key, "sent"), lambda: techniques.kv_transfer_s(d(), 900, 1e9))
note("general", lambda: fields(econ.Deployment(small, h100, profile="general").serve(99, 10, 50)))
note("answer", lambda: fields(econ.Deployment("gpt-oss-20b", "h100-sxm").request(1, 100, 400)))
note("compare", lambda: [econ.compare(m, 900, 50, prices={"h100-sxm": 2.5}) for m in (small, "falcon-7b")])
note("api", lambda: [p.usd_per_request(2000, 100, 0.5) for p in econ.api_prices("llama-3.3-70b")])
note("draft", lambda: [techniques.expected_tokens(0.8, 3), techniques.speculation_speedup(
    econ.Deployment(small, h100), econ.Deployment("llama-3.2-1b", h100), 0.8, 3, 200, 50)])
note("verify", lambda: fields(econ.Deployment(small, h100).verify(200, 4, 50)))
print(json.dumps({"econ": econ.__file__, "values": {str(k): v for k, v in values.items()}}))
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened to one mutant."""

    matches: int
    probe: str = ""  # the error of a mutant that does not import
    changed: int = 0  # values of the contract
    tests: str = ""  # the last lines of the run
    killed_by: str = ""


class Copy:
    """A copy of the package and its core tests, in which one file at a time is changed."""

    def __init__(self, folder: Path):
        self.folder, self.clock = folder, 1_000_000_000
        subjects = {path.stem for path in (ROOT / "econ").glob("*.py")} | {"published", "cases"}  # others stay out
        core = [path for path in (ROOT / "tests").glob("test_*.py") if path.stem.removeprefix("test_") in subjects
                and re.search(r"mark\.core", path.read_text(encoding="utf-8"))]
        self.tests = sorted((f"tests/{path.name}" for path in core), reverse=True)  # the slow ones last
        shutil.copytree(ROOT / "econ", folder / "econ", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "tests" / "data", folder / "tests" / "data")
        for path in (ROOT / "pyproject.toml", *(ROOT / "tests" / name for name in ("conftest.py", "cases.py")), *core):
            shutil.copy(path, folder / path.relative_to(ROOT))

    def write(self, file: str, text: str) -> None:
        """Writes a module with a time of its own, so that no compiled copy of another mutant is taken for it."""
        path, self.clock = self.folder / "econ" / file, self.clock + 10
        path.write_text(text, encoding="utf-8")
        os.utime(path, (self.clock, self.clock))

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, *arguments], cwd=self.folder, text=True, capture_output=True,
                              env=ENVIRONMENT, timeout=300, check=False)

    def probe(self) -> tuple[str, dict]:
        done = self.run("-c", PROBE)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1], {}
        result = json.loads(done.stdout)
        assert Path(result["econ"]).is_relative_to(self.folder), "the probe runs another econ"
        return "", result["values"]

    def core(self, module: str = "") -> subprocess.CompletedProcess:
        """Runs the core tests up to the first that fails, those of `module` first."""
        tests = sorted(self.tests, key=lambda name: name != f"tests/test_{module}.py")
        return self.run("-m", "pytest", "-m", "core", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *tests)

    def try_out(self, mutant: Mutant, contract: dict) -> Outcome:
        source = (self.folder / "econ" / mutant.file).read_text(encoding="utf-8")
        matches = source.count(mutant.source)
        if matches != 1:
            return Outcome(matches=matches)
        self.write(mutant.file, source.replace(mutant.source, mutant.wrong))
        try:
            error, values = self.probe()
            changed = sum(contract[key] != values.get(key) for key in contract) if not error else 0
            tests = self.core(mutant.file.removesuffix(".py")).stdout.strip() if changed else ""
        finally:
            self.write(mutant.file, source)
        failed = re.search(r"^FAILED (\S+::\w+)", tests, re.MULTILINE)
        return Outcome(matches=1, probe=error, changed=changed, tests=tests[-300:],
                       killed_by=failed[1] if failed else "")


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    return [Copy(tmp_path_factory.mktemp("econ", numbered=True)) for _ in range(WORKERS)]


@pytest.fixture(scope="module")
def baseline(copies):
    error, values = copies[0].probe()
    assert not error, error
    return values


@pytest.fixture(scope="module")
def outcomes(copies, baseline):
    idle: queue.Queue = queue.Queue()
    for copy in copies:
        idle.put(copy)

    def try_out(mutant):
        copy = idle.get()
        try:
            return copy.try_out(mutant, baseline)
        finally:
            idle.put(copy)

    with ThreadPoolExecutor(WORKERS) as pool:
        return dict(zip((m.name for m in MUTANTS), pool.map(try_out, MUTANTS), strict=True))


def test_the_core_passes_on_an_unchanged_copy(copies, baseline):
    done = copies[0].core()
    assert done.returncode == 0, done.stdout[-2000:]
    assert len(baseline) > 300 and copies[-1].probe()[1] == baseline


def test_there_are_enough_mutants():
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 30


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant, outcomes):
    outcome = outcomes[mutant.name]
    assert outcome.matches == 1, f"{outcome.matches} matches in {mutant.file}; update the source of this mutant"
    assert not outcome.probe, f"does not import: {outcome.probe}"
    assert outcome.changed, "changes no value of the contract"
    assert outcome.killed_by, f"survives, or stops the tests before they run: {outcome.tests}"


def test_list_of_mutants(outcomes, capsys):
    with capsys.disabled():
        print(f"\n{len(MUTANTS)} wrong formulas, what they change and the test that sees them")
        for mutant in MUTANTS:
            outcome = outcomes[mutant.name]
            print(f"  {mutant.name:48} {outcome.changed:4} values  {outcome.killed_by.split('/')[-1]}")
    assert all(outcome.killed_by for outcome in outcomes.values())
