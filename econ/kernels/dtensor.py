"""Tensor parallelism without writing a message: torch splits every layer by a plan of column and row.

The arithmetic and the messages are those of `distributed.TensorParallelLlama`; here torch places them.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from econ.kernels.distributed import COLUMN, ROW, check_split, split_counts
from econ.kernels.llama import Llama, attend, rms_norm, rotate, rotation
from econ.kernels.processes import here, place


class TorchLayer(nn.Module):
    """One layer of a Llama written as a torch module, whole, for torch's tools to split."""

    def __init__(self, w: dict[str, Tensor], head_dim: int) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm, self.head_dim = w["attention_norm"], w["ffn_norm"], head_dim
        for name in (*COLUMN, *ROW):
            linear = nn.Linear(w[name].shape[1], w[name].shape[0], bias=False, device="meta")
            linear.weight = nn.Parameter(w[name].clone(), requires_grad=False)
            self.add_module(name, linear)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, S, H], cos and sin [S, head_dim/2] -> [B, S, H]"""
        q, k, v, gate, up, o, down = (self.get_submodule(name) for name in (*COLUMN, *ROW))
        normed = rms_norm(x, self.attention_norm)
        heads = [m(normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for m in (q, k, v)]
        mixed = attend(rotate(heads[0], cos, sin), rotate(heads[1], cos, sin), heads[2])
        x = x + o(mixed.transpose(1, 2).flatten(2))
        normed = rms_norm(x, self.ffn_norm)
        return x + down(F.silu(gate(normed)) * up(normed))


class TorchParallelLlama:
    """A Llama whose layers `parallelize_module` splits over all processes; embedding, norms and head whole.

    Raises ValueError for heads, KV heads or channels that the processes do not divide.
    """

    def __init__(self, whole: Llama) -> None:
        check_split(place()[1], split_counts(whole))
        self.whole, self.layers = whole, [_parallelized(TorchLayer(w, whole.head_dim)) for w in whole.layers]

    def prefill(self, tokens: Tensor) -> Tensor:
        """The same logits in every process.  tokens [B, S] -> [B, 1, vocab]"""
        whole = self.whole
        whole._check(tokens, None, "last")
        turn = rotation(0, tokens.shape[1], whole.head_dim, whole.rope_theta, whole.device)
        cos, sin = (table.to(whole.dtype) for table in turn)
        x = F.embedding(tokens, whole.embedding)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(rms_norm(x[:, -1:], whole.norm), whole.head)


def _parallelized(layer: TorchLayer) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    plan: dict[str, Any] = {name: ColwiseParallel() for name in COLUMN}
    plan |= {name: RowwiseParallel() for name in ROW}
    return parallelize_module(layer, init_device_mesh(here().type, (place()[1],)), plan)
