"""Gemma 2: scores and logits are capped, every other layer has a window, norms on both sides."""

from paceline.runner.models.traits import Traits

TRAITS = Traits(
    activation="gelu_pytorch_tanh",
    post_norms=True,
    norm_offset=1.0,
    scaled_embedding=True,
    tied_embedding=True,
    global_every=2,
    score_cap=50.0,
    logit_cap=30.0,
)
