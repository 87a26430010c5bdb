"""The vision tower of Llama 4: square tiles of one size."""

from collections.abc import Mapping
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.rope import Rope, frequencies
from paceline.runner.vision.spec import (
    COLUMNS,
    HALF,
    ROWS,
    PatchSpec,
    PixelScale,
    PositionSpec,
    ProjectorSpec,
    TowerSpec,
    VisionBlockSpec,
    VisionTensors,
    vision_entries,
)
from paceline.runner.vision.square import expect, side_of

TENSORS = VisionTensors("vision_model")
PROJECTOR = VisionTensors("multi_modal_projector")
EPS, THETA = 1e-5, 10_000.0  # norms have torch's eps, whatever the file says


def llama4(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """Learned positions and a rotation. The class token is the last in the table of positions."""
    read = vision_entries(whole)
    expect(read, "hidden_act", "gelu", "gelu")
    expect(read, "vision_feature_select_strategy", "default", "default")
    width, heads = read.number("hidden_size", 768), read.number("num_attention_heads", 16)
    if width % (4 * heads):
        raise ConfigError(
            f"the vision width {width} must be a multiple of four times the number of heads "
            f"({heads})"
        )
    sizes = ConfigEntries({"image_size": 448, "patch_size": 14, **read.raw}, read.where)
    patch = side_of(sizes, "patch_size")
    side = side_of(sizes, "image_size") // patch
    pixels = TENSORS.linear(("patch_embedding.linear",), (width, 3 * patch**2), bias=False)
    table = TENSORS.tensor("positional_embedding_vlm", side * side + 1, width)
    return TowerSpec(
        pixels=PixelScale.of_hf(settings, HALF, HALF),
        patch=PatchSpec(pixels, patch),
        side=side,
        positions=PositionSpec(table, side, "index", class_last=True),
        class_token=TENSORS.tensor("class_embedding", width),
        first_norm=TENSORS.norm("layernorm_pre", width, EPS),
        blocks=tuple(
            block(f"model.layers.{layer}", read, width, heads)
            for layer in range(read.number("num_hidden_layers", 34))
        ),
        rope=rope(read, width // heads),
        window=None,
        merge=round(1 / float(read.get("pixel_shuffle_ratio", 0.5))),
        projector=projector(read, output, width),
        unread=(),
    )


def block(name: str, read: ConfigEntries, width: int, heads: int) -> VisionBlockSpec:
    inner = read.number("intermediate_size", 5632)
    qkv = tuple(f"{name}.self_attn.{one}_proj" for one in "qkv")
    return VisionBlockSpec(
        norm=TENSORS.norm(f"{name}.input_layernorm", width, EPS),
        qkv=TENSORS.linear(qkv, (width, width)),
        output=TENSORS.linear((f"{name}.self_attn.o_proj",), (width, width)),
        mlp_norm=TENSORS.norm(f"{name}.post_attention_layernorm", width, EPS),
        up=TENSORS.linear((f"{name}.mlp.fc1",), (inner, width)),
        down=TENSORS.linear((f"{name}.mlp.fc2",), (width, inner)),
        heads=heads,
        activation="gelu",
        gated=False,
        windowed=False,
        pairs="adjacent",
    )


def rope(read: ConfigEntries, head_dim: int) -> Rope:
    """Half of the pairs of a head rotate by column, the others by row."""
    given = read.get("rope_parameters", {})
    each = frequencies(float(given.get("rope_theta", read.get("rope_theta", THETA))), head_dim // 2)
    axes = (COLUMNS,) * len(each) + (ROWS,) * len(each)
    return Rope(each * 2, (1.0,) * len(axes), axes)


def projector(read: ConfigEntries, output: int, width: int) -> ProjectorSpec:
    """Patches of a square, side by side, through three linears."""
    inner = read.number("projector_output_dim", 4096)
    merge = round(1 / float(read.get("pixel_shuffle_ratio", 0.5)))
    merged = width * merge**2
    if read.number("intermediate_size", 5632) != merged:
        raise ConfigError(
            f"{read.where}: intermediate_size must be {merged}, the width of the patches of a "
            "square, which the projector reads"
        )
    for key in ("projector_input_dim", "vision_output_dim"):
        if read.number(key, inner) != inner:
            raise ConfigError(
                f"{read.where}: {key} is {read.get(key)}; it must be projector_output_dim ({inner})"
            )
    return ProjectorSpec(
        norm=TENSORS.norm("layernorm_post", width, EPS),
        mean=None,
        merger=None,
        merged_norm=None,
        linears=(
            TENSORS.linear(("vision_adapter.mlp.fc1",), (inner, merged), bias=False),
            TENSORS.linear(("vision_adapter.mlp.fc2",), (inner, inner), bias=False),
            PROJECTOR.linear(("linear_1",), (output, inner), bias=False),
        ),
    )
