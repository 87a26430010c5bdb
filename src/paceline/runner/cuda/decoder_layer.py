"""One decoder layer on a GPU. Its linears add to the residual stream by themselves."""

from collections.abc import Mapping

from torch import Tensor

from paceline.runner.cuda.adapters import Beside, nowhere
from paceline.runner.cuda.coordinates import RotaryTable
from paceline.runner.cuda.kernels.layers import PlainActivation, activate
from paceline.runner.cuda.linears import CudaLinear, NormedLinear, apart, residual_linear
from paceline.runner.cuda.mixers.attention import CudaAttention
from paceline.runner.cuda.mixers.latent_attention import CudaLatentAttention
from paceline.runner.cuda.mixers.mixer import CudaLayerContext, CudaMixer
from paceline.runner.cuda.moe import CudaMoE
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
        mlp = spec.mlp
        assert mlp is not None, "CUDA has no such feature"
        self._mixers: list[CudaMixer] = []
        if spec.attention is not None:
            self._mixers.append(CudaAttention(factory, spec.attention, layer, tables, beside))
        if spec.latent is not None:
            self._mixers.append(CudaLatentAttention(factory, spec.latent, layer, tables))
        is_plain = isinstance(mlp, MLPSpec)
        self._mlp = CudaMLP(factory, mlp, beside) if is_plain else CudaMoE(factory, mlp)
        self._is_parallel = spec.parallel
        self._scale = None if spec.scale is None else float(factory.read(spec.scale))

    def kernels(self) -> dict[str, str]:
        """Which kernels compute the linears of the layer, by rows."""
        found = {name: text for one in self._mixers for name, text in one.kernels().items()}
        return found | self._mlp.kernels()

    def __call__(
        self, hidden: Tensor, step: CudaLayerContext, wanted: Tensor | None = None
    ) -> Tensor:
        """The residual stream after this layer, of all positions or of the wanted ones."""
        mixed, adapters = [mixer(hidden, step) for mixer in self._mixers], step.adapters
        if wanted is not None:
            hidden = hidden.index_select(0, wanted)
            if not len(wanted):
                return hidden
            mixed = [one.index_select(0, wanted) for one in mixed]
            adapters = None if adapters is None else adapters.index_select(0, wanted)
        if self._is_parallel:  # the MLP reads what the mixers have read
            self._mlp.add_to(hidden, adapters)
        for mixer, one in zip(self._mixers, mixed, strict=True):
            mixer.add_to(hidden, one, adapters)
        if not self._is_parallel:
            self._mlp.add_to(hidden, adapters)
        if self._scale is not None:
            hidden.mul_(self._scale)
        return hidden

    def store(self, hidden: Tensor, position: Tensor, cells: Tensor, kv: KVStore) -> None:
        """Write what the layer keeps of positions [n] to cells of the store [n], and no more."""
        for mixer in self._mixers:
            mixer.store(hidden, position, cells, kv)


class CudaMLP:
    """The MLP, with or without a gate."""

    def __init__(
        self, factory: LayerFactory[CudaLinear], spec: MLPSpec, beside: Beside = nowhere
    ) -> None:
        self._before, norm = apart(factory, spec.norm)
        linear = factory.linear(spec.gate_up, spec.norm)
        self._gate_up = NormedLinear(linear, norm, beside("gate_up"), is_gated=spec.gated)
        self._down = residual_linear(factory, spec.down, spec.output_norm, beside("down"))
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
