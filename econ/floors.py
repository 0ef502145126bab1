"""The floor of one pass, and the time beyond which it is slow.

The floor is physics. Where normal ends is a judgement, stated here once: a decode step may take 1 / 0.4 of its floor
and a prefill 1 / 0.2, plus time to start kernels, collectives and experts. The rows of tests/data/cases.csv that
people asked about fall on the side of these lines that their answers name.
"""

import math
from dataclasses import dataclass

from .parallel import collectives
from .precision import GGUF
from .roofline import FASTEST
from .subject import Subject
from .work import forward

DECODE_SHARE, PREFILL_SHARE = 0.4, 0.2  # of the floor's rate: less is slow
LAYER_S, COLLECTIVE_S, EXPERT_S, SEQUENCE_S = 30e-6, 20e-6, 7e-6, 7e-6  # allowed on top, each layer, all-reduce, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The terms of one pass at full rates, and the time beyond which it is slow. Seconds.

    No time is slow (`slow_s` is infinite) for a prompt on a GPU whose FLOP/s are not known.
    """

    weight_s: float
    kv_s: float
    compute_s: float
    slow_s: float
    share: float = DECODE_SHARE

    @property
    def time_s(self) -> float:
        """The longer of reading and computing."""
        return max(self.weight_s + self.kv_s, self.compute_s)


def floor(s: Subject, batch, new_tokens, context) -> Floor:
    """The floor of one pass: all bytes once at full bandwidth or all FLOPs at the peak, stages one after the other."""
    assert s.model and s.accelerator
    g, share = s.accelerator, DECODE_SHARE if new_tokens == 1 else PREFILL_SHARE
    wide = g.peaks.get("bf16") or g.peaks.get("fp16") or math.inf
    if s.weights in GGUF:  # these kernels multiply in int8 where the GPU can
        wide = max(wide, g.peaks.get("int8", 0.0))
    works = [forward(p, batch, new_tokens, context, weights=s.weights, kv=s.kv, split=s.split) for p in s.parts]
    weight_s = sum(w.weight_bytes for w in works) * s.weight_scale / g.hbm_bytes_per_s
    kv_s = sum(w.bytes - w.weight_bytes for w in works) * s.kv_scale / g.hbm_bytes_per_s
    compute_s = sum(n / (g.peaks.get(rate) or wide) for w in works for rate, n in w.flops_by_rate.items())
    found = Floor(weight_s=weight_s, kv_s=kv_s, compute_s=compute_s, slow_s=0.0)
    slow_s = found.time_s / share + starting_s(s, batch, new_tokens)
    if new_tokens > 1 and wide >= FASTEST:
        slow_s = math.inf
    return Floor(weight_s=weight_s, kv_s=kv_s, compute_s=compute_s, slow_s=slow_s, share=share)


def starting_s(s: Subject, batch, new_tokens) -> float:
    """What starting kernels, collectives and experts may take."""
    assert s.model
    sends = sum(c.count * math.log2(c.n) for c in collectives(s.model, batch, new_tokens, s.tp, s.pp, s.ep))
    experts = sum(
        n * max((t.used for t in layer.tensors if t.role == "expert"), default=0) for layer, n in s.model.layer_kinds
    )
    return LAYER_S * len(s.model.layers) + COLLECTIVE_S * sends + EXPERT_S * experts + SEQUENCE_S * batch
