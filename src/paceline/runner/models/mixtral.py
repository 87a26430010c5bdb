"""Mixtral: Mistral with a mixture of experts in every layer."""

from paceline.runner.models.traits import ExpertNames, Traits

TRAITS = Traits(
    global_every=0,
    experts=ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2"),
    shares_sum_to_one=True,
    paired_in_gguf=True,
)
