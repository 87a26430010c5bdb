"""All layers of a decoder in one call of native code."""

from ctypes import byref, pointer
from typing import Any

import torch
from torch import Tensor

from paceline.runner.attention.native import NativeStep
from paceline.runner.attention_backend import Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.decoder_layer import DecoderLayer, TorchStack
from paceline.runner.layers.linear import Linear
from paceline.runner.layers.mixers.self_attention import SelfAttention
from paceline.runner.layers.mlp import MoE
from paceline.runner.layers.native_linear import NativeLinear
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.models.architecture import LayerSpec, MLPSpec, attentions, parts_of
from paceline.runner.models.experts import MoESpec
from paceline.runner.models.layer_groups import STORED, BackendSupport
from paceline.runner.models.linear_spec import NormSpec
from paceline.runner.native.library import (
    DecoderStruct,
    ExpertStruct,
    LayerStruct,
    MoEStruct,
    library,
)
from paceline.runner.vision.spec import TOWER_FEATURES

# `struct decoder` in decoder.c has these once for all layers.
NATIVE = BackendSupport(
    backend="native",
    features=frozenset(
        {
            "embedding_scale",
            "logit_scale",
            "logit_cap",
            "layers.attention.qkv.biases",
            "layers.attention.head_norms",
            "layers.attention.window",
            "layers.attention.score_cap",
            "layers.attention.output.biases",
            "layers.attention.output_norm",
            "layers.mlp.activation=gelu_pytorch_tanh",
            "layers.mlp.gate_up.biases",
            "layers.mlp.down.biases",
            "layers.mlp.output_norm",
            "layers.mlp=moe",
            "vision.reads_itself=always",
        }
    )
    | TOWER_FEATURES,
    one_value={
        **STORED,
        "number of heads": lambda layer: [one.heads for one in attentions(layer)],
        "query scale": lambda layer: [one.scale for one in attentions(layer)],
        "score cap": lambda layer: [one.score_cap for one in attentions(layer)],
        "activation": lambda layer: [one.activation for one in parts_of(layer, (MLPSpec, MoESpec))],
        "norm eps": lambda layer: [norm.eps for norm in parts_of(layer, NormSpec)],
    },
)


class NativeStack:
    """All layers in one call, with the weights of a torch stack.

    If attention is not native, the torch stack computes the step.
    """

    def __init__(self, stack: TorchStack, layers: tuple[LayerSpec, ...]) -> None:
        self._stack, self._kernels = stack, library()
        self._scratch = torch.empty(0, dtype=torch.uint8)  # grows to the largest step
        structs = map(self._struct, stack.layers, layers)
        self._layers = (LayerStruct * len(layers))(*structs)
        attention, mlp = layers[0].attention, layers[0].mlp
        assert attention is not None and mlp is not None  # NATIVE has no such feature
        norm = attention.norm
        assert norm is not None
        self._decoder = DecoderStruct(
            self._layers,
            0,
            len(layers),
            norm.width,
            attention.heads,
            attention.kv_heads,
            attention.head_dim,
            mlp.activation == "gelu_pytorch_tanh",
            norm.eps,
            attention.scale,
            attention.score_cap or 0.0,
        )

    def __call__(
        self,
        hidden: Tensor,
        batch: Batch,
        kv: KVStore,
        attention: Prepared,
        wanted: Tensor | None = None,
        inputs: LayerInputs | None = None,
    ) -> Tensor:
        """The residual stream after all layers. The layers overwrite `hidden`."""
        if not isinstance(attention, NativeStep):
            return self._stack(hidden, batch, kv, attention, wanted, inputs)
        decoder, rest = self._decoder, hidden
        picked: tuple[int | None, int, int | None] = None, -1, None  # all of them
        if wanted is not None:
            at, rest = wanted.long().contiguous(), hidden.new_empty(len(wanted), hidden.shape[1])
            picked = at.data_ptr(), len(at), rest.data_ptr()
        needed = self._kernels.decoder_scratch_bytes(byref(decoder), max(len(hidden), len(rest)))
        if needed > len(self._scratch):
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        how = self._scratch.data_ptr(), torch.get_num_threads()
        if inputs is not None:
            decoder = self._keep(inputs, attention, hidden, how)
        self._kernels.decode(byref(decoder), attention.step, hidden.data_ptr(), *picked, *how)
        return rest

    def _keep(
        self, inputs: LayerInputs, step: NativeStep, hidden: Tensor, how: tuple[int, int]
    ) -> DecoderStruct:
        """Keep the inputs of some layers, with one call for the layers before each. Returns the
        decoder of the remaining layers."""
        decoder, first = DecoderStruct.from_buffer_copy(self._decoder), 0
        for layer in sorted(layer for layer in inputs.layers if layer < self._decoder.count):
            decoder.first, decoder.count = first, layer
            everything = None, -1, None
            if layer > first:
                run = byref(decoder), step.step, hidden.data_ptr()
                self._kernels.decode(*run, *everything, *how)
            inputs.keep(layer, hidden)
            first = layer
        decoder.first, decoder.count = first, self._decoder.count
        return decoder

    def _struct(self, layer: DecoderLayer, spec: LayerSpec) -> LayerStruct:
        (attention,), mlp = layer.mixers, layer.mlp
        assert isinstance(attention, SelfAttention) and mlp is not None
        assert spec.attention is not None and spec.mlp is not None
        norms = attention.norm, attention.output_norm, mlp.output_norm
        gate_up, down, moe = None, None, None
        if isinstance(mlp, MoE):
            assert isinstance(spec.mlp, MoESpec)
            moe = pointer(_moe(mlp, spec.mlp))
        else:
            gate_up, down = _matrix(mlp.linears.gate_up), _matrix(mlp.linears.down)
        return LayerStruct(
            _matrix(attention.qkv),
            _matrix(attention.output),
            gate_up,
            down,
            moe,
            *(None if norm is None else norm.factor.data_ptr() for norm in norms),
            self._stack.ropes[spec.attention.rope].data_ptr(),
            spec.mlp.width,
            spec.attention.window or 0,
        )


def _moe(moe: MoE, spec: MoESpec) -> MoEStruct:
    structs = [
        ExpertStruct(_matrix(expert.gate_up), _matrix(expert.down)) for expert in moe.experts
    ]
    return MoEStruct(
        moe.router.data_ptr(),
        (ExpertStruct * len(structs))(*structs),
        len(structs),
        spec.routing.chosen,
        spec.routing.shares_sum_to_one,
    )


def _matrix(linear: Linear) -> Any:
    assert isinstance(linear, NativeLinear)
    return pointer(linear.matrix)
