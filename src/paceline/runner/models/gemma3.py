"""Gemma 3, text: five layers with a window for each one without, and norms on both sides."""

from paceline.runner.models.traits import Traits

TRAITS = Traits(
    activation="gelu_pytorch_tanh",
    qk_norm=True,
    post_norms=True,
    norm_offset=1.0,
    scaled_embedding=True,
    tied_embedding=True,
    global_every=6,
    local_theta=10_000.0,
)
