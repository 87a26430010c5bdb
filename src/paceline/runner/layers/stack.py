"""All layers of a decoder: one by one in torch, or together in one call of a kernel."""

from ctypes import byref, pointer

import torch
from torch import Tensor

from paceline.runner.attention.backend import Prepared
from paceline.runner.attention.native import NativeStep
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.block import Block
from paceline.runner.layers.factory import Parts
from paceline.runner.layers.native import Native
from paceline.runner.layers.rotary import Rotation
from paceline.runner.layers.self_attention import Step
from paceline.runner.models.config import ModelConfig
from paceline.runner.native.library import Decoder, Layer, library


class Stack:
    """The layers in torch: what the other way of going through them is measured by.

    Behind the attention of the last layer, positions that nobody wants are left out.
    """

    def __init__(self, parts: Parts) -> None:
        config = parts.config
        self._dtype = parts.dtype
        self.frequencies = {
            rope: torch.tensor(rope, device=parts.device)
            for rope in dict.fromkeys(map(config.rope_of, range(config.layers)))
        }
        self.blocks = [Block(parts, layer) for layer in range(config.layers)]

    def __call__(
        self,
        hidden: Tensor,
        batch: Batch,
        kv: KVStore,
        attention: Prepared,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """The residual stream behind all layers, which overwrite `hidden`."""
        rotations = {
            rope: Rotation.of(batch.position, frequencies, self._dtype)
            for rope, frequencies in self.frequencies.items()
        }
        step = Step(rotations, kv, kv.cells(batch.write_cell).unbind(), attention)
        for block in self.blocks[:-1]:
            block(hidden, step)
        return self.blocks[-1](hidden, step, wanted)


class NativeStack:
    """The layers in one call, with the weights of a stack in torch.

    Where attention is not by kernels too, that stack does it.
    """

    def __init__(self, stack: Stack, config: ModelConfig) -> None:
        self._stack, self._kernels = stack, library()
        self._scratch = torch.empty(0, dtype=torch.uint8)  # grows to what the largest step needs
        self._layers = (Layer * config.layers)(*map(self._layer, stack.blocks))
        self._decoder = Decoder(
            self._layers,
            config.layers,
            config.width,
            config.mlp_width,
            config.heads,
            config.kv_heads,
            config.head_dim,
            config.traits.activation != "silu",
            config.norm_eps,
            config.query_scale,
        )

    def __call__(
        self,
        hidden: Tensor,
        batch: Batch,
        kv: KVStore,
        attention: Prepared,
        wanted: Tensor | None = None,
    ) -> Tensor:
        if not isinstance(attention, NativeStep):
            return self._stack(hidden, batch, kv, attention, wanted)
        decoder, rest = byref(self._decoder), hidden
        picked: tuple[int | None, int, int | None] = None, -1, None  # all of them
        if wanted is not None:
            at, rest = wanted.long().contiguous(), hidden.new_empty(len(wanted), hidden.shape[1])
            picked = at.data_ptr(), len(at), rest.data_ptr()
        needed = self._kernels.decoder_scratch_bytes(decoder, max(len(hidden), len(rest)))
        if needed > len(self._scratch):
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        scratch, threads = self._scratch.data_ptr(), torch.get_num_threads()
        self._kernels.decode(decoder, attention.step, hidden.data_ptr(), *picked, scratch, threads)
        return rest

    def _layer(self, block: Block) -> Layer:
        attention, mlp = block.attention, block.mlp
        products = (attention.qkv, attention.out, mlp.gate_up, mlp.down)
        norms = (attention.norm, block.attention_norm, block.mlp_norm)
        return Layer(
            *(pointer(product.matrix) for product in products if isinstance(product, Native)),
            *(None if norm is None else norm.factor.data_ptr() for norm in norms),
            self._stack.frequencies[attention.frequencies].data_ptr(),
            attention.window or 0,
        )


def stack_of(parts: Parts) -> Stack | NativeStack:
    stack = Stack(parts)
    return NativeStack(stack, parts.config) if parts.linear_kind is Native else stack
