"""Text models with one MLP in each layer."""

from paceline.runner.models.traits import Traits

ARCHITECTURES = {
    # Llama 2 and 3, and models of the same architecture: SmolLM2, TinyLlama
    "llama": Traits(paired_in_gguf=True),
    # a window in every layer, if the file gives one
    "mistral": Traits(global_every=0),
    # Phi-3, Phi-3.5 and Phi-4: linears of the same input are stored as one
    "phi3": Traits(fused_linears=True, global_every=0),
    # Qwen 2 and 2.5: queries, keys and values have a bias
    "qwen2": Traits(qkv_bias=True),
    # queries and keys are normalised instead of biased
    "qwen3": Traits(qk_norm=True),
}
