from paceline.runner.models.describe import manifest
from tests.runner.support import tiny


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
