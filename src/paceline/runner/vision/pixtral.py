"""The vision tower of Pixtral, for Mistral Small 3.1 and later: images of any size."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.rope import Rope, frequencies
from paceline.runner.vision.spec import (
    CLIP_MEAN,
    CLIP_STD,
    COLUMNS,
    ROWS,
    PatchSpec,
    PixelScale,
    ProjectorSpec,
    TowerSpec,
    VisionBlockSpec,
    vision_activation,
    vision_entries,
)
from paceline.runner.vision.square import PROJECTOR, TOWER, expect, two_linears

EPS, THETA = 1e-5, 10_000.0


def pixtral(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """With Llava's projector."""
    width = vision_entries(whole).number("hidden_size", 1024)
    return tower(whole, settings, 1, two_linears(whole, width, output))


def mistral3(whole: ConfigEntries, output: int, settings: Mapping[str, Any]) -> TowerSpec:
    """With a projector that merges squares of patches first."""
    width = vision_entries(whole).number("hidden_size", 1024)
    merge = whole.number("spatial_merge_size", 2)
    text = ConfigEntries(whole.get("text_config", {}), whole.where)
    return tower(
        whole,
        settings,
        merge,
        replace(
            two_linears(whole, width, output, bias=False),
            norm=PROJECTOR.norm("norm", width, text.get("rms_norm_eps", EPS), bias=False),
            merger=PROJECTOR.linear(
                ("patch_merger.merging_layer",), (width, width * merge**2), bias=False
            ),
        ),
    )


def tower(
    whole: ConfigEntries, settings: Mapping[str, Any], merge: int, projector: ProjectorSpec
) -> TowerSpec:
    read = vision_entries(whole)
    if whole.get("vision_feature_layer", -1) != -1:
        raise ConfigError(f"{whole.where}: vision_feature_layer must be -1")
    expect(whole, "vision_feature_select_strategy", "full", "full")
    width, heads = read.number("hidden_size", 1024), read.number("num_attention_heads", 16)
    if width % (4 * heads):
        raise ConfigError(
            f"the vision width {width} must be a multiple of four times the number of heads "
            f"({heads})"
        )
    patch = read.number("patch_size", 16)
    return TowerSpec(
        pixels=PixelScale.of_hf(settings, CLIP_MEAN, CLIP_STD),
        patch=PatchSpec(TOWER.linear(("patch_conv",), (width, 3, patch, patch), bias=False), patch),
        side=None,
        positions=None,
        class_token=None,
        first_norm=TOWER.norm("ln_pre", width, EPS, bias=False),
        blocks=tuple(
            block(read, f"transformer.layers.{layer}", width, heads)
            for layer in range(read.number("num_hidden_layers", 24))
        ),
        rope=rope(read, width // heads),
        window=None,
        merge=merge,
        projector=projector,
        unread=(),
    )


def rope(read: ConfigEntries, head_dim: int) -> Rope:
    """Half of the pairs of a head rotate by row, with every other frequency, and the others by
    column."""
    given = read.get("rope_parameters", {})
    each = frequencies(float(given.get("rope_theta", read.get("rope_theta", THETA))), head_dim)
    axes = (ROWS,) * len(each[::2]) + (COLUMNS,) * len(each[1::2])
    return Rope(each[::2] + each[1::2], (1.0,) * len(each), axes)


def block(read: ConfigEntries, name: str, width: int, heads: int) -> VisionBlockSpec:
    inner = read.number("intermediate_size", 4096)
    qkv = tuple(f"{name}.attention.{one}_proj" for one in "qkv")
    up = tuple(f"{name}.feed_forward.{one}_proj" for one in ("gate", "up"))
    return VisionBlockSpec(
        norm=TOWER.norm(f"{name}.attention_norm", width, EPS, bias=False),
        qkv=TOWER.linear(qkv, (width, width), bias=False),
        output=TOWER.linear((f"{name}.attention.o_proj",), (width, width), bias=False),
        mlp_norm=TOWER.norm(f"{name}.ffn_norm", width, EPS, bias=False),
        up=TOWER.linear(up, (inner, width), bias=False),
        down=TOWER.linear((f"{name}.feed_forward.down_proj",), (width, inner), bias=False),
        heads=heads,
        activation=vision_activation(read, "gelu"),
        gated=True,
        windowed=False,
    )
