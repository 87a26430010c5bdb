"""Describes several residual streams, and what layers do beside attention with them."""

from paceline.runner.models.architecture import AltUpSizes, AltUpSpec, LaurelSpec, LayerAltUpSpec
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.description.tensors import LayerTensors, decoder_linear


def describe_altup(config: ModelConfig, sizes: AltUpSizes) -> AltUpSpec:
    shape = (config.width, config.width)
    expand, contract = (
        tuple(
            decoder_linear(config, f"{name}.{one}", gguf, shape, part=one)
            for one in range(sizes.count - 1)
        )
        for name, gguf in (
            ("altup_projections", "altup_proj"),
            ("altup_unembed_projections", "altup_unembd_proj"),
        )
    )
    return AltUpSpec(expand, contract)


def describe_layer_altup(
    config: ModelConfig, sizes: AltUpSizes, tensors: LayerTensors
) -> LayerAltUpSpec:
    count = sizes.count
    return LayerAltUpSpec(
        norm=tensors.residual_norm("altup.router_norm", "altup_router_norm"),
        router=tensors.linear("altup.modality_router", "altup_router", (count, config.width)),
        predict=tensors.tensor(
            "altup.prediction_coefs.weight", "altup_predict_coef.weight", count**2, count
        ),
        correct=tensors.tensor(
            "altup.correction_coefs.weight", "altup_correct_coef.weight", count, count
        ),
    )


def describe_laurel(config: ModelConfig, sizes: AltUpSizes, tensors: LayerTensors) -> LaurelSpec:
    width, rank = config.width, sizes.laurel_rank
    return LaurelSpec(
        norm=tensors.residual_norm(config.traits.norms.attention, "attn_norm"),
        down=tensors.linear("laurel.linear_left", "laurel_l", (rank, width)),
        up=tensors.linear("laurel.linear_right", "laurel_r", (width, rank)),
        output_norm=tensors.norm("laurel.post_laurel_norm", "laurel_post_norm", width),
    )
