"""What the GPUs of a deployment send each other: collectives of a forward pass, and how long they take.

Tensor parallelism ends every attention and every MLP with an all-reduce of the activations. Pipeline stages
hand activations on. Experts that are spread over replicas get their tokens by two all-to-alls a layer.
"""

from dataclasses import dataclass, replace
from typing import Any

from .arrays import minimum, whole
from .model import Model, Tensor
from .work import ACTIVATION_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Equal messages of one pass: `count` times, `size_bytes` each among `n` GPUs that lie within `span` GPUs."""

    kind: str  # all-reduce, all-to-all or send
    count: int
    size_bytes: Any
    n: int
    span: int

    @property
    def wire_bytes(self):
        """Bytes that each GPU puts on its link for one of them.

        All-reduce (ring) 2 (n - 1) / n * size; all-to-all (n - 1) / n * size; send, the size.        [B]
        """
        factor = {"all-reduce": 2 * (self.n - 1) / self.n, "all-to-all": (self.n - 1) / self.n, "send": 1}
        return factor[self.kind] * self.size_bytes


def collectives(model: Model, batch, new_tokens, tp: int = 1, pp: int = 1, ep: int = 1) -> tuple[Collective, ...]:
    """The messages of one forward pass of one replica.

    Two all-reduces of batch * new_tokens * hidden activations (16 bit) in a layer with a mixer and an MLP, if
    tp > 1. pp - 1 sends of the same. With experts over several replicas (ep > tp), a routed layer's second
    all-reduce gives way to two all-to-alls, in which each GPU sends its 1 / tp of the tokens to their k experts.
    Left out: one all-reduce each for a divided embedding table and head. One too many is counted for blocks that
    run attention and MLP in parallel, and k copies where two experts of a token share a GPU.

    >>> from econ.config import load_model
    >>> [(c.kind, c.count, c.size_bytes) for c in collectives(load_model("llama-3.3-70b"), 1, 1, tp=4)]
    [('all-reduce', 160, 16384)]
    """
    size = batch * new_tokens * model.hidden * ACTIVATION_BYTES
    reduces, routed = 0, dict[int, int]()
    for layer, n in model.layer_kinds:
        experts = next((t for t in layer.tensors if t.role == "expert"), None)
        mixers = (layer.attention is not None) or (layer.recurrent is not None)
        has_mlp = any(t.name.startswith("mlp.") for t in layer.tensors)
        if experts is None or ep <= tp:
            reduces += n * (mixers + has_mlp)
        else:
            reduces += n * mixers
            routed[experts.used] = routed.get(experts.used, 0) + 2 * n
    found = [Collective(kind="all-reduce", count=reduces, size_bytes=size, n=tp, span=tp)] if tp > 1 else []
    found += [Collective(kind="all-to-all", count=count, size_bytes=used * size / tp, n=ep, span=ep)
              for used, count in routed.items()]
    found += [Collective(kind="send", count=pp - 1, size_bytes=size, n=2, span=tp * pp)] if pp > 1 else []
    return tuple(found)


def ring_all_reduce_s(size_bytes, n: int, link_bytes_per_s, hop_s=0.0):
    """A ring all-reduce: every GPU sends its part around twice, in 2 (n - 1) steps.

    2 (n - 1) / n * size / link + 2 (n - 1) * hop                                                       [s]

    `link_bytes_per_s` each way, `hop_s` the latency of one message. Source: nccl-tests, thakur2005.

    >>> round(ring_all_reduce_s(8192 * 80 * 2 * 2, 4, 450e9) * 1e6, 3)    # one token of the 70B: 160 at once
    8.738
    """
    return 2 * (n - 1) / n * size_bytes / link_bytes_per_s + 2 * (n - 1) * hop_s


def one_shot_all_reduce_s(size_bytes, n: int, link_bytes_per_s, hop_s=0.0):
    """A one-shot all-reduce: every GPU sends all it has to every other, in one step.

    (n - 1) * size / link + hop                                                                         [s]

    Better than a ring for small messages: n - 1 times the bytes, one latency.

    >>> one_shot_all_reduce_s(16_384, 4, 450e9, 5e-6) < ring_all_reduce_s(16_384, 4, 450e9, 5e-6)
    True
    """
    return (n - 1) * size_bytes / link_bytes_per_s + hop_s


def all_reduce_s(size_bytes, n: int, link_bytes_per_s, hop_s=0.0):
    """The faster of the two, as engines choose by message size.

    >>> all_reduce_s(0, 1, 450e9, 5e-6)
    0.0
    """
    if n == 1:
        return 0.0 * size_bytes
    return minimum(ring_all_reduce_s(size_bytes, n, link_bytes_per_s, hop_s),
                   one_shot_all_reduce_s(size_bytes, n, link_bytes_per_s, hop_s))


def pipeline_s(pass_s, pp: int, micro_batches: int):
    """The time of equal micro-batches in a pipeline whose stages take the same time.

    (micro_batches + pp - 1) / pp * pass                                                                [s]

    `pass_s` is the serial time of one micro-batch through all stages. (pp - 1) / (micro_batches + pp - 1) of it each
    stage waits, the bubble; a decode step that follows at once, as in `Deployment.serve`, fills it.

    >>> pipeline_s(4.0, pp=4, micro_batches=1), pipeline_s(4.0, pp=4, micro_batches=12)
    (4.0, 15.0)
    """
    return (whole("micro_batches", micro_batches) + whole("pp", pp) - 1) / pp * pass_s


def stages(model: Model, pp: int) -> tuple[Model, ...]:
    """The model cut into `pp` pipeline stages of consecutive layers, each a `Model` of its own.

    layers // pp each; what is left over goes one by one to the last stages but one, as those hold no table.
    The first stage keeps the embeddings, the last the final norm and its own copy of a tied head.
    Raises ValueError for more stages than layers.

    >>> from econ.config import load_model
    >>> [len(s.layers) for s in stages(load_model("deepseek-v3"), 4)]
    [15, 15, 16, 15]
    """
    if pp == 1:
        return (model,)
    n_layers = len(model.layers)
    if pp > n_layers:
        raise ValueError(f"pp={pp} is more than the {n_layers} layers of {model.name}; use at most {n_layers}")
    counts = [n_layers // pp] * pp
    for i in range(n_layers % pp):
        counts[-2 - i] += 1
    empty = Tensor(name="lm_head", shape=(0, model.hidden), role="head", quantized=False)
    cut, first = [], 0
    for i, count in enumerate(counts):
        final, head = (model.final, model.head) if i == pp - 1 else ((), empty)
        cut.append(replace(model, layers=model.layers[first:first + count], tied=False, final=final, head=head,
                           embeddings=model.embeddings if i == 0 else ()))
        first += count
    return tuple(cut)
