"""Where the memory went: what an engine printed, split into terms that `econ` computes and a part without a name."""

from .findings import CLOSE, Draft, Residual, gib, residual
from .memory import BLOCK_TOKENS, kv_bytes_per_gpu, kv_reserved_bytes_per_gpu, weight_bytes_per_gpu
from .precision import FORMATS
from .subject import Subject

PAD_ELEMENTS = 256  # kernels for 4-bit experts pad a matrix's sides to multiples of up to this


def weigh(draft: Draft, s: Subject) -> None:
    """The printed weights: parameters, a rope table, padded experts, and what is left."""
    facts = draft.facts
    printed = facts.get("weight_bytes") or facts.get("file_bytes")
    if not printed or printed <= 0:
        return
    if s.model is None or not s.weights_known:
        draft.lacks("model" if s.model is None else "format of the weights")
        return
    split = s.split if "weight_bytes" in facts else type(s.split)()
    held = max(weight_bytes_per_gpu(part, s.weights, split) for part in s.parts) * s.weight_scale
    terms = {"weights": held}
    if facts.get("engine") == "vllm log":
        terms["rope cache"] = rope_table_bytes(s)
    left, pad = printed - sum(terms.values()), _padding_bytes(s)
    if CLOSE * printed < left <= pad:
        terms["kernel padding of the 4-bit experts"] = left
    r = residual("weights of a GPU", printed, "B", terms)
    draft.residuals.append(r)
    draft.findings += _weight_findings(r, s)


def _weight_findings(r: Residual, s: Subject) -> list:
    assert s.model
    if abs(r.unnamed_frac) <= 0.03:
        return [("normal", f"weights take {gib(r.printed)} on each GPU; {r.unnamed_frac:+.2%} has no name")]
    ratio = r.printed / r.terms["weights"]
    said = (
        f"{gib(r.printed)} of weights, but {s.model.name} as {s.weights or 'published'} takes {gib(r.terms['weights'])}"
    )
    if ratio < 0.97:
        return [("impossible", f"{said}: {1 / ratio:.2g} times more than printed; another model or another format")]
    return [
        (
            "incomplete",
            f"{said}: {ratio - 1:.1%} more has no name; a format, a second model or a vision tower is not stated",
        )
    ]


def rope_table_bytes(s: Subject) -> float:
    """The cos and sin table that an engine keeps: longest context * head dimension * 2 bytes, whole on every GPU."""
    assert s.model
    kinds = [a for a, _ in s.model.attention_kinds]
    width = (kinds[0].latent.rope_dim if kinds[0].latent else kinds[0].qk_dim) if kinds else 0
    return (s.model.max_context or 0) * width * 2


def _padding_bytes(s: Subject) -> float:
    """The most that padding both sides of every 4-bit expert matrix can add."""
    assert s.model
    total, recipe = 0.0, s.model.recipe(s.weights)
    for i, layer in enumerate(s.model.layers):
        for t in layer.tensors:
            form = s.model.format_of(t, recipe, i)
            if t.role == "expert" and form in (FORMATS["mxfp4"], FORMATS["nvfp4"]):
                padded = 1.0
                for side in t.shape:
                    padded *= -(-side // PAD_ELEMENTS) * PAD_ELEMENTS / side
                total += form.bytes(t.shape) * t.copies * s.split.share(t, layer.attention) * (padded - 1)
    return total


def token_bytes(s: Subject) -> float:
    """Cache bytes that an engine keeps for a token on one GPU, every layer charged in full."""
    return (
        s.kv_scale * max(kv_reserved_bytes_per_gpu(p, BLOCK_TOKENS, 1, s.kv, s.split) for p in s.parts) / BLOCK_TOKENS
    )


def count_cache(draft: Draft, s: Subject) -> None:
    """The printed cache pool against its tokens, and a request's need against the pool."""
    facts = draft.facts
    tokens, pool = _tokens(facts), facts.get("kv_pool_bytes")
    if pool is None and "k_bytes" in facts and "v_bytes" in facts:
        pool = facts["k_bytes"] + facts["v_bytes"]
    if pool is not None and pool <= 0 or "no_room" in facts:
        room = f"{gib(pool)} is left" if pool is not None else "nothing is left"
        draft.findings.append(
            ("impossible", f"{room} for the cache: weights and activations fill the share of the GPU in use")
        )
        draft.advice += ["a larger share of the GPU's memory, a shorter max_model_len, smaller weights or more GPUs"]
        return
    if tokens is None and pool is None:
        return
    each = _each(draft, s)
    if each is None:
        if tokens and pool:
            draft.notes.append(f"{pool / tokens:,.0f} B of cache a token on each GPU: pool / tokens")
        return
    if tokens and pool:
        _balance(draft, s, pool, tokens, each)
    held = tokens or (pool or 0) / each
    draft.facts.setdefault("kv_pool_holds_tokens", int(held))
    draft.notes.append(
        f"the pool on each GPU: {gib(pool or tokens * each)}, {int(held):,} tokens of all requests together, "
        f"{each:,.10g} B a token"
    )
    _request(draft, s, held, each)


def _tokens(facts: dict):
    if facts.get("kv_tokens"):
        return facts["kv_tokens"]
    if facts.get("engine") == "llama.cpp log":
        return facts.get("max_model_len")
    blocks = facts.get("kv_blocks")
    return blocks * facts.get("block_tokens", BLOCK_TOKENS) if blocks else None


def _each(draft: Draft, s: Subject) -> float | None:
    """Bytes of a token from the model, or from the layer sizes that llama.cpp prints."""
    facts = draft.facts
    if s.model and not s.kv_known:
        draft.lacks("cache dtype")
        return None
    if s.model:
        return token_bytes(s) or None
    if {"n_layer", "n_embd_k", "n_embd_v"} <= set(facts) and s.kv_known:
        width = 4 if s.kv == "fp32" else 2 * s.kv_scale
        return (facts["n_layer"] * (facts["n_embd_k"] + facts["n_embd_v"]) * width) or None
    draft.lacks("model")
    return None


def _balance(draft: Draft, s: Subject, pool: float, tokens: float, each: float) -> None:
    terms, left = {f"cache of {int(tokens):,} tokens": tokens * each}, pool - tokens * each
    if abs(left) > CLOSE * pool and _between(s, pool, tokens * each):
        terms["windows and recurrent states: layers that share pages"] = left
    elif 0 < left <= BLOCK_TOKENS * each:
        terms["less than one block"] = left
    elif s.tp > 1 and 0 < left <= 0.02 * pool:
        terms["above the rank with the smallest pool, which sizes all"] = left
    r = residual("cache pool of a GPU", pool, "B", terms)
    draft.residuals.append(r)
    if abs(r.unnamed_frac) <= 0.02:
        draft.findings.append(
            ("normal", f"the cache pool is {gib(pool)} for {int(tokens):,} tokens; {r.unnamed_frac:+.2%} has no name")
        )
    else:
        draft.findings.append(
            (
                "incomplete",
                f"{gib(pool)} of cache for {int(tokens):,} tokens, but {each:,.10g} B a "
                f"token gives {gib(tokens * each)}",
            )
        )
        draft.lacks("cache dtype, or the number of GPUs the cache is split over")


def _between(s: Subject, pool: float, full: float) -> bool:
    """Whether a pool lies between the growing layers alone and all in full, of a model that has other layers.

    Pages that hold a recurrent state are padded: up to twice.
    """
    if s.model is None or not s.model.attention_kinds:
        return False
    growing, all_layers = s.model.kv_growth_bytes_per_token(), s.model.kv_bytes_per_token()
    state = bool(s.model.state_bytes())
    low, high = full * growing / all_layers, full * (2 if state else 1 + CLOSE)
    return (state or growing < all_layers) and low * (1 - CLOSE) <= pool <= high


def _request(draft: Draft, s: Subject, held: float, each: float) -> None:
    """What one longest request needs of the pool, and the concurrency the engine printed for it."""
    facts = draft.facts
    longest = facts.get("request_tokens") or facts.get("max_model_len")
    if s.model and longest and "kv_needed_bytes" in facts:
        draft.residuals.append(
            residual(
                "cache of one request",
                facts["kv_needed_bytes"],
                "B",
                {f"cache of {int(longest):,} tokens": -(-longest // BLOCK_TOKENS) * BLOCK_TOKENS * each},
            )
        )
    if not longest or longest <= 0 or facts.get("engine") == "llama.cpp log":
        return
    times = held / longest
    need = longest * each
    if s.model:  # windows hold less than their layers are charged for
        need = s.kv_scale * max(kv_bytes_per_gpu(p, longest, 1, s.kv, s.split) for p in s.parts)
    need = facts.get("kv_needed_bytes") or need  # an engine that charges windows in full says so
    if need > held * each:
        draft.findings.append(
            (
                "impossible",
                f"one request of {int(longest):,} tokens needs {gib(need)} and the pool "
                f"has {gib(held * each)}: {int(held):,} tokens",
            )
        )
        draft.advice.append(f"max_model_len of at most {int(held) // BLOCK_TOKENS * BLOCK_TOKENS:,}, or a larger pool")
        return
    full = "" if need > 0.99 * longest * each else f", every layer charged in full; with windows one needs {gib(need)}"
    draft.notes.append(f"{times:.2f} requests of {int(longest):,} tokens fit at once{full}; of shorter ones, more")
    printed = facts.get("max_concurrency")
    if printed and abs(printed / times - 1) > 0.02:
        uneven = s.model and (s.model.state_bytes() or any(a.window for a, _ in s.model.attention_kinds))
        why = "it counts window or recurrent layers once, not in full" if uneven else "its lines do not agree"
        draft.notes.append(f"the engine prints {printed:g}x: {why}")


def budget(draft: Draft, s: Subject) -> None:
    """The share of the GPU's memory in use, against all that was printed about it."""
    facts, pool = draft.facts, draft.facts.get("kv_pool_bytes")
    total = facts.get("total_bytes") or _capacity(s)
    weights = facts.get("weight_bytes") or 0
    held = (
        pool if pool is not None else (_tokens(facts) or 0) * (token_bytes(s) if s.model and s.kv_known else 0)
    ) or 0
    if total and weights + held > 1.01 * total:
        draft.findings.append(
            ("impossible", f"{gib(weights + held)} of weights and cache cannot be on a GPU of {gib(total)}")
        )
        draft.advice.append("another GPU, another model or a split over GPUs must be behind these lines")
        return
    share = facts.get("gpu_mem_frac")
    if not total or not share or not 0 < share <= 1 or not weights or pool is None or facts.get("engine") != "vllm log":
        return
    activation = facts.get("activation_bytes", facts["peak_bytes"] - weights if "peak_bytes" in facts else None)
    terms = {"weights": weights, "cache pool": pool}
    terms |= {"activations": activation} if activation is not None else {}
    terms |= {"non-torch memory": facts["non_torch_bytes"]} if "non_torch_bytes" in facts else {}
    left = share * total - sum(terms.values())
    if activation is None and left > 0:
        terms["activations, non-torch memory and graphs, not printed apart"] = left
    draft.residuals.append(residual(f"{share:.0%} of a GPU's memory", share * total, "B", terms))


def _capacity(s: Subject) -> float | None:
    if s.accelerator is None or not (s.accelerator.visible_bytes or s.accelerator.printed_bytes):
        return None
    return s.accelerator.memory_bytes
