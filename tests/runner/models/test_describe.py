from typing import Any

from paceline.runner.models.architecture import LayerSpec, MLPSpec
from paceline.runner.models.describe import describe, manifest
from paceline.runner.models.experts import MoESpec, Routing
from paceline.runner.models.rope import Rope, frequencies
from paceline.runner.models.tensor_spec import GGUFForm
from tests.runner.support import tiny

GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 6,
    "sliding_window": 5,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}


def layer(**changes: Any) -> LayerSpec:
    return describe(tiny(**changes)).layers[1]


def test_a_plain_layer_has_no_feature() -> None:
    attention, mlp = layer().attention, layer().mlp
    assert (attention.head_norms, attention.window, attention.output_norm) == (None, None, None)
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (4, 2, 8)
    assert (attention.scale, attention.rope) == (8**-0.5, Rope.plain(frequencies(10_000.0, 8)))
    assert isinstance(mlp, MLPSpec)
    assert (mlp.activation, mlp.output_norm) == ("silu", None)
    assert not attention.qkv.biases
    assert describe(tiny()).embedding_scale == 1.0


def test_the_norm_before_the_mlp_has_another_name_where_attention_has_a_norm_behind_it() -> None:
    assert layer().mlp.norm.weight.name == "model.layers.1.post_attention_layernorm.weight"
    both = layer(**GEMMA)
    assert both.attention.output_norm is not None
    after = both.attention.output_norm.weight
    assert after.name == "model.layers.1.post_attention_layernorm.weight"
    assert after.gguf.name == "blk.1.post_attention_norm.weight"
    before = both.mlp.norm.weight
    assert before.name == "model.layers.1.pre_feedforward_layernorm.weight"
    assert before.gguf.name == "blk.1.ffn_norm.weight"


def test_layers_with_a_window_turn_at_their_own_rate() -> None:
    spec = describe(tiny(**GEMMA))
    assert [one.attention.window for one in spec.layers] == [5, 5, 5, 5, 5, None]
    assert spec.layers[0].attention.rope == Rope.plain(frequencies(10_000.0, 8))
    assert spec.layers[5].attention.rope == Rope.plain(frequencies(1_000_000.0, 8))
    assert spec.embedding_scale == 24**0.5


def test_a_gguf_file_holds_norms_with_their_offset() -> None:
    norm = layer(**GEMMA).attention.norm
    assert norm.offset == norm.weight.gguf.offset == 1.0
    assert layer().attention.norm.weight.gguf.offset == 0.0


def test_a_gguf_file_of_a_llama_holds_queries_and_keys_in_pairs() -> None:
    paired = [weight.gguf.paired_heads for weight in layer().attention.qkv.weights]
    assert paired == [4, 2, 0]
    qwen = layer(architectures=["Qwen2ForCausalLM"]).attention.qkv
    assert {tensor.gguf.paired_heads for tensor in (*qwen.weights, *qwen.biases)} == {0}


def test_a_file_may_repeat_a_tied_embedding_as_the_head() -> None:
    assert describe(tiny(tie_word_embeddings=True)).embedding.copies == ("lm_head.weight",)
    assert describe(tiny()).embedding.copies == ()


def test_products_that_a_file_holds_as_one() -> None:
    one = layer(architectures=["Phi3ForCausalLM"])
    (qkv,) = one.attention.qkv.weights
    assert (qkv.name, qkv.shape) == ("model.layers.1.self_attn.qkv_proj.weight", (64, 24))
    assert qkv.gguf.name == "blk.1.attn_qkv.weight"
    assert isinstance(one.mlp, MLPSpec)
    (gate_up,) = one.mlp.gate_up.weights
    assert (gate_up.name, gate_up.shape) == ("model.layers.1.mlp.gate_up_proj.weight", (80, 24))


def test_a_mixture_has_a_router_and_experts() -> None:
    mixture = layer(
        architectures=["MixtralForCausalLM"], num_local_experts=3, num_experts_per_tok=2
    ).mlp
    assert isinstance(mixture, MoESpec)
    assert (mixture.routing, mixture.width) == (Routing(2, True), 40)
    block = "model.layers.1.block_sparse_moe"
    (router,) = mixture.router.weights
    assert (router.name, router.shape) == (f"{block}.gate.weight", (3, 24))
    assert router.gguf == GGUFForm("blk.1.ffn_gate_inp.weight")
    gate, up = mixture.experts[2].gate_up.weights
    assert (gate.name, up.name) == (f"{block}.experts.2.w1.weight", f"{block}.experts.2.w3.weight")
    assert gate.gguf == GGUFForm("blk.1.ffn_gate_exps.weight", part=2)
    (down,) = mixture.experts[2].down.weights
    assert (down.name, down.shape) == (f"{block}.experts.2.w2.weight", (24, 40))


def test_some_layers_of_a_mixture_are_plain() -> None:
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    names = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4}
    spec = describe(tiny(**names, **sizes, decoder_sparse_step=2, mlp_only_layers=[3]))
    assert [isinstance(one.mlp, MoESpec) for one in spec.layers] == [False, True, False, False]
    assert [one.mlp.width for one in spec.layers] == [40, 16, 40, 40]


def test_the_longest_sequence_chooses_the_rope() -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = tiny(rope_scaling=scaling, original_max_position_embeddings=64)
    short, long = (describe(config, length).layers[0].attention.rope for length in (64, None))
    assert short.frequencies[0] == 1.0
    assert long.frequencies[0] == 0.5


def names(**changes: object) -> set[str]:
    return {name.replace("layers.0", "layers.N") for name in manifest(tiny(**changes))}


def test_shapes_of_a_plain_model() -> None:
    shapes = manifest(tiny())
    assert shapes["model.embed_tokens.weight"] == shapes["lm_head.weight"] == (61, 24)
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == (32, 24)
    assert shapes["model.layers.1.self_attn.v_proj.weight"] == (16, 24)
    assert shapes["model.layers.1.self_attn.o_proj.weight"] == (24, 32)
    assert shapes["model.layers.1.mlp.down_proj.weight"] == (24, 40)
    assert len(shapes) == 3 + 2 * 9


def test_what_families_add_and_tying_takes_away() -> None:
    plain = names()
    block = "model.layers.N."
    assert names(tie_word_embeddings=True) == plain - {"lm_head.weight"}
    added = {
        "Qwen2": {f"self_attn.{part}_proj.bias" for part in "qkv"},
        "Qwen3": {"self_attn.q_norm.weight", "self_attn.k_norm.weight"},
        "Mistral": set[str](),
        "Gemma3": {
            "self_attn.q_norm.weight",
            "self_attn.k_norm.weight",
            "pre_feedforward_layernorm.weight",
            "post_feedforward_layernorm.weight",
        },
    }
    for traits, expected in added.items():
        found = names(architectures=[f"{traits}ForCausalLM"]) - plain
        assert {name.removeprefix(block) for name in found if block in name} == expected
