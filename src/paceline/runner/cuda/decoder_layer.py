"""One decoder layer on a GPU. Its linears add to the residual stream by themselves."""

from collections.abc import Mapping

from torch import Tensor

from paceline.runner.cuda.adapters import Beside, nowhere
from paceline.runner.cuda.coordinates import RotaryTable
from paceline.runner.cuda.experts.moe import CudaMoE
from paceline.runner.cuda.kernels.layers import PlainActivation, activate
from paceline.runner.cuda.linears import CudaLinear, NormedLinear, apart, residual_linear
from paceline.runner.cuda.mixers.attention import CudaAttention
from paceline.runner.cuda.mixers.latent_attention import CudaLatentAttention
from paceline.runner.cuda.mixers.mixer import CudaLayerContext, CudaMixer
from paceline.runner.cuda.mixers.per_layer_input import CudaPerLayerInput
from paceline.runner.cuda.states.mixers import CudaStateMixer
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.mlp import xielu_numbers
from paceline.runner.models.architecture import LayerSpec, MLPSpec
from paceline.runner.models.rope import Rope


class CudaLayer:
    """Mixers of the same input, then an MLP; or both of the same input."""

    def __init__(
        self,
        factory: LayerFactory[CudaLinear],
        spec: LayerSpec,
        layer: int,
        tables: Mapping[Rope, RotaryTable],
        beside: Beside = nowhere,
    ) -> None:
        self._mixers: list[CudaMixer] = []
        if spec.attention is not None:
            self._mixers.append(CudaAttention(factory, spec.attention, layer, tables, beside))
        if spec.latent is not None:
            self._mixers.append(CudaLatentAttention(factory, spec.latent, layer, tables))
        if spec.state is not None:
            self._mixers.append(CudaStateMixer(factory, spec.state, layer))
        self._is_parallel, scale = spec.parallel, layer_scale(factory, spec)
        self._mlp: CudaMLP | CudaMoE | None = None
        of_mlp = scale if spec.input is None else 1.0
        if isinstance(mlp := spec.mlp, MLPSpec):
            self._mlp = CudaMLP(factory, mlp, beside, of_mlp)
        elif mlp is not None:
            self._mlp = CudaMoE(factory, mlp, of_mlp)
        self._after_mlp: list[CudaMixer] = []
        if spec.input is not None:
            self._after_mlp.append(CudaPerLayerInput(factory, spec.input, layer, scale))

    def kernels(self) -> dict[str, str]:
        """Which kernels compute the linears of the layer, by rows."""
        found = {name: text for one in self._mixers for name, text in one.kernels().items()}
        return found if self._mlp is None else found | self._mlp.kernels()

    def __call__(
        self, hidden: Tensor, step: CudaLayerContext, wanted: Tensor | None = None
    ) -> Tensor:
        """The residual stream after this layer, of all positions or of the wanted ones."""
        mixers, adapters = (*self._mixers, *self._after_mlp), step.adapters
        mixed = [mixer(hidden, step) for mixer in mixers]
        if wanted is not None:
            hidden = hidden.index_select(0, wanted)
            if not len(wanted):
                return hidden
            mixed = [one.index_select(0, wanted) for one in mixed]
            adapters = None if adapters is None else adapters.index_select(0, wanted)
        if self._is_parallel:  # the MLP reads what the mixers have read
            self._add_mlp(hidden, adapters)
        for mixer, one in zip(self._mixers, mixed, strict=False):
            mixer.add_to(hidden, one, adapters)
        if not self._is_parallel:
            self._add_mlp(hidden, adapters)
        for mixer, one in zip(self._after_mlp, mixed[len(self._mixers) :], strict=True):
            mixer.add_to(hidden, one, adapters)
        return hidden

    def store(self, hidden: Tensor, position: Tensor, cells: Tensor, kv: KVStore) -> None:
        """Write what the layer keeps of positions [n] to cells of the store [n], and no more."""
        for mixer in self._mixers:
            mixer.store(hidden, position, cells, kv)

    def _add_mlp(self, hidden: Tensor, adapters: Tensor | None) -> None:
        if self._mlp is not None:
            self._mlp.add_to(hidden, adapters)


def layer_scale(factory: LayerFactory[CudaLinear], spec: LayerSpec) -> float:
    """The factor of the residual stream after a layer, which the last output norm applies."""
    if spec.scale is None:
        return 1.0
    assert spec.mlp is not None and spec.mlp.output_norm is not None and not spec.parallel
    return float(factory.read(spec.scale))


class CudaMLP:
    """The MLP, with or without a gate."""

    def __init__(
        self,
        factory: LayerFactory[CudaLinear],
        spec: MLPSpec,
        beside: Beside = nowhere,
        scale: float = 1.0,
    ) -> None:
        """With an output norm, the residual stream has the scale afterwards."""
        self._before, norm = apart(factory, spec.norm)
        linear = factory.linear(spec.gate_up, spec.norm)
        self._gate_up = NormedLinear(linear, norm, beside("gate_up"), is_gated=spec.gated)
        behind = spec.output_norm, beside("down"), scale
        self._down = residual_linear(factory, spec.down, *behind)
        self._is_silu, self._is_gated = spec.activation == "silu", spec.gated
        numbers = () if spec.xielu is None else (xielu_numbers(factory, spec.xielu),)
        self._activation = PlainActivation(spec.activation, *numbers)

    def kernels(self) -> dict[str, str]:
        return {"gate_up": str(self._gate_up), "down": str(self._down)}

    def add_to(self, hidden: Tensor, adapters: Tensor | None = None) -> None:
        """Add the MLP of the residual stream to it."""
        self._down(hidden, self._inner(self._before(hidden), adapters), adapters)

    def _inner(self, x: Tensor, adapters: Tensor | None) -> Tensor:
        """What `down` reads."""
        if self._is_gated:
            return self._gate_up.gated(x, self._is_silu, adapters)
        found, late = self._gate_up(x, adapters)
        return activate(found, self._activation, late)
