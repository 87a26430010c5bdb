from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.experts import ExpertSizes, Routing
from paceline.runner.models.gguf_config import GGUFTensors
from paceline.runner.models.latent import LatentSizes, score_scale, score_scale_of_gguf
from paceline.runner.models.rope import Frequencies, Rope, RopeChoice, frequencies
from tests.runner.support import TINY, tiny

GEMMA: dict[str, Any] = {
    **TINY,
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 7,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 512,
    "query_pre_attn_scalar": 256,
}
del GEMMA["tie_word_embeddings"]
OLD_GEMMA = {
    **GEMMA,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "rope_scaling": None,
    "sliding_window_pattern": 6,
}
NEW_GEMMA = {
    **GEMMA,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 40,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 61,
    "llama.rope.freq_base": 500.0,
    "tokenizer.ggml.eos_token_id": 2,
}


def always(found: Frequencies) -> RopeChoice:
    return RopeChoice.always(Rope.plain(found))


def factors(numbers: tuple[float, ...]) -> GGUFTensors:
    return GGUFTensors(factors={"rope_freqs.weight": numbers})


def test_a_plain_llama() -> None:
    config = tiny()
    assert (config.layers, config.width, config.mlp_width, config.vocab) == (2, 24, 40, 61)
    assert (config.heads, config.kv_heads, config.head_dim) == (4, 2, 8)
    assert config.windows == (None, None)
    assert config.rope == config.local_rope == always(frequencies(10_000.0, 8))
    assert config.query_scale == 8**-0.5
    assert (config.bos, config.eos) == (1, (2,))


def test_what_follows_from_the_rest() -> None:
    config = tiny(head_dim=None, num_key_value_heads=None, hidden_size=32, eos_token_id=[3, 4])
    assert (config.head_dim, config.kv_heads, config.eos) == (8, 4, (3, 4))
    assert tiny(eos_token_id=None).eos == ()


def test_gemma_of_old_and_new_transformers_is_the_same() -> None:
    old, new = ModelConfig.of_hf(OLD_GEMMA), ModelConfig.of_hf(NEW_GEMMA)
    assert old == new
    assert old.windows == (512, 512, 512, 512, 512, None, 512)
    assert old.rope == always(frequencies(1_000_000.0, 8))
    assert old.local_rope == always(frequencies(10_000.0, 8))
    assert old.query_scale == 1 / 16
    assert old.tied_embedding


def test_gemma_without_what_its_family_implies() -> None:
    assert ModelConfig.of_hf({**GEMMA, "rope_theta": 1_000_000.0}) == ModelConfig.of_hf(NEW_GEMMA)


def test_rope_of_old_and_new_transformers_is_the_same() -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    old = tiny(rope_theta=500.0, rope_scaling=scaling)
    assert old == tiny(rope_parameters={**scaling, "rope_theta": 500.0})
    assert old.rope == always(tuple(frequency / 2 for frequency in frequencies(500.0, 8)))


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 9}, (9, 9, 9)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, (None, None, None)),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 9}, (None, None, None)),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 9,
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            (None, None, 9),
        ),
        ({"sliding_window": 9}, (None, None, None)),
    ],
)
def test_windows(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert tiny(num_hidden_layers=3, **changes).windows == windows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": None}, "architecture '' is not supported; supported are "),
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "'GPT2LMHeadModel' is not supported; supported models that generate text .* llama, ",
        ),
        (
            {"architectures": ["MambaForCausalLM"]},
            "'MambaForCausalLM' is not supported; the nearest is jamba; .* llama, ",
        ),
        ({"hidden_size": None}, "config.json has no 'hidden_size'"),
        ({"vocab_size": "many"}, "vocab_size is 'many'; it must be a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be a positive integer"),
        ({"hidden_size": 0}, "hidden_size is 0; it must be a positive integer"),
        ({"head_dim": -8}, "model dimensions must be positive"),
        ({"num_key_value_heads": 3}, r"\(4\) must be a multiple of .* \(3\)"),
        ({"head_dim": 7}, "the head size must be even, not 7"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quant_method '', which is not supported"),
        ({"layer_types": ["full_attention"]}, "2 layers, but 1 layer types"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": -1},
            "sliding windows must be positive",
        ),
        ({"layer_types": ["full_attention", "mamba"]}, r"layer types \['mamba'\] are not"),
        ({"rope_scaling": {"type": "yarn"}}, "rope scaling 'yarn' lacks 'factor'"),
        ({"partial_rotary_factor": 0.4}, r"head size \(8\), not 3"),
        ({"head_dim": "eight"}, "config.json has a value of the wrong type"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be a positive integer"),
        ({"layer_types": 7}, "config.json has a value of the wrong type"),
        ({"rms_norm_eps": "small"}, "config.json has a value of the wrong type"),
        ({"architectures": 3}, "config.json has a value of the wrong type"),
        ({"architectures": ["os.pathForCausalLM"]}, "'os.pathForCausalLM' is not supported"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(**changes)


def test_gguf() -> None:
    config = ModelConfig.of_gguf(GGUF)
    assert (config.layers, config.width, config.head_dim, config.vocab) == (2, 32, 8, 61)
    assert config.rope == always(frequencies(500.0, 8))
    assert (config.tied_embedding, config.bos, config.eos) == (True, None, (2,))


def test_gguf_scales_by_a_factor_or_by_many() -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    plain = frequencies(500.0, 8)
    for known in (linear, {"llama.rope.scaling.factor": 4.0}, {"llama.rope.scale_linear": 4.0}):
        found = ModelConfig.of_gguf({**GGUF, **known}).rope
        assert found == always(tuple(f / 4 for f in plain))
    many = ModelConfig.of_gguf(GGUF, factors((1.0, 1.0, 2.0, 8.0))).rope
    assert many == always((plain[0], plain[1], plain[2] / 2, plain[3] / 8))
    with pytest.raises(ConfigError, match=r"rope_freqs\.weight has 3 factors; the model needs 4"):
        ModelConfig.of_gguf(GGUF, factors((1.0, 1.0, 2.0)))


def test_only_the_largest_gemma_scales_queries_by_its_width() -> None:
    named = {key.replace("llama", "gemma3"): value for key, value in GGUF.items()}
    sizes = {"gemma3.attention.key_length": 16, "gemma3.attention.sliding_window": 8}
    gemma = {**named, "general.architecture": "gemma3", **sizes}
    for layers, scaled_by in ((46, 16), (61, 16), (62, 8)):
        config = ModelConfig.of_gguf({**gemma, "gemma3.block_count": layers})
        assert config.query_scale == scaled_by**-0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": None}, "the GGUF header has no 'general.architecture'"),
        ({"general.architecture": "rwkv"}, "'rwkv' is not supported; .* llama, "),
        ({"general.architecture": "gemma3n"}, "a GGUF file of 'gemma3n' is not supported: use"),
        ({"general.architecture": "gema3"}, "'gema3' is not supported; the nearest is gemma3;"),
        ({"general.architecture": "unittest.__main__"}, "'unittest.__main__' is not supported"),
        ({"general.architecture": "..llama"}, r"'\.\.llama' is not supported"),
        ({"llama.block_count": 2**31 - 9}, "the largest supported value is 10000"),
        ({"llama.block_count": None}, "the GGUF header has no 'llama.block_count'"),
        ({"llama.rope.dimension_count": 12}, "rope.dimension_count is 12; it must be even"),
        ({"llama.rope.scaling.type": "ntk"}, "rope scaling 'ntk' is not supported; choose"),
        (
            {"llama.attention.head_count": [4, 2]},
            r"head_count is \[4, 2\]; it must be a positive integer",
        ),
    ],
)
def test_what_is_refused_of_gguf(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.of_gguf({**GGUF, **changes})


def test_gguf_says_by_its_tensors_which_products_have_biases() -> None:
    plain = ModelConfig.of_gguf(GGUF)
    assert (plain.attention_bias, plain.mlp_bias, plain.tied_embedding) == (False, False, True)
    assert not plain.output_bias
    biases = (f"blk.0.{linear}.bias" for linear in ("attn_q", "attn_output", "ffn_down"))
    biased = ModelConfig.of_gguf(GGUF, GGUFTensors((*biases, "output.weight")))
    assert (biased.attention_bias, biased.mlp_bias, biased.tied_embedding) == (True, True, False)
    assert biased.output_bias


def test_caps() -> None:
    plain, gemma = tiny(), tiny(architectures=["Gemma2ForCausalLM"])
    assert (plain.score_cap, plain.logit_cap) == (None, None)
    assert (gemma.score_cap, gemma.logit_cap) == (50.0, 30.0)
    given = {"attn_logit_softcapping": None, "final_logit_softcapping": 20}
    capped = tiny(architectures=["Gemma2ForCausalLM"], **given)
    assert (capped.score_cap, capped.logit_cap) == (None, 20.0)
    assert ModelConfig.of_gguf({**GGUF, "llama.attn_logit_softcapping": 9.0}).score_cap == 9.0


def test_part_of_a_head_turns() -> None:
    config = tiny(partial_rotary_factor=0.5)
    assert config.rotary_dim == 4
    assert config.rope == RopeChoice.always(Rope.plain(frequencies(10_000.0, 4)).padded(4))
    gguf = ModelConfig.of_gguf({**GGUF, "llama.rope.dimension_count": 4})
    assert (gguf.rotary_dim, gguf.rope.short.frequencies[2:]) == (4, (0.0, 0.0))


def test_yarn_of_gguf() -> None:
    kind = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    known = {**GGUF, **kind, "llama.rope.scaling.original_context_length": 32}
    found = ModelConfig.of_gguf(known).rope
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert found == tiny(rope_theta=500.0, rope_scaling=scaling).rope
    grown = ModelConfig.of_gguf({**known, "llama.rope.scaling.attn_factor": 2.0}).rope
    assert grown.short.amplitudes[0] == pytest.approx(2 * found.short.amplitudes[0])


def test_factors_of_long_and_short_sequences_of_gguf() -> None:
    short, long = (1.0, 1.0, 2.0, 2.0), (1.0, 2.0, 4.0, 8.0)
    names = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    known = {
        "llama.rope.scaling.original_context_length": 32,
        "llama.rope.scaling.attn_factor": 2.0,
    }
    found = ModelConfig.of_gguf({**GGUF, **known}, GGUFTensors(factors=names)).rope
    plain = frequencies(500.0, 8)
    for length, by in ((32, short), (33, long)):
        expected = tuple(f / one for f, one in zip(plain, by, strict=True))
        assert found.at(length) == Rope.plain(expected, 2.0)


EXPERTS = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4}


def test_experts() -> None:
    mixtral = tiny(**EXPERTS, num_experts_per_tok=2).experts
    assert mixtral == ExpertSizes(4, 40, (True, True), Routing(2, True))
    names = {"architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 16}
    qwen = tiny(**names, num_experts=8, num_experts_per_tok=3, mlp_only_layers=[0]).experts
    assert qwen == ExpertSizes(8, 16, (False, True), Routing(3, False))
    assert tiny(num_local_experts=4, num_experts_per_tok=2).experts is None  # of a Llama


def test_a_llama_of_gguf_with_experts_is_a_mixtral() -> None:
    known = {**GGUF, "llama.expert_count": 4, "llama.expert_used_count": 2}
    config = ModelConfig.of_gguf(known, GGUFTensors(["blk.1.ffn_gate_inp.weight"]))
    assert config.architecture == "mixtral"
    assert config.experts == ExpertSizes(4, 40, (False, True), Routing(2, True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "config.json has no 'num_experts_per_tok'"),
        ({"num_experts_per_tok": 5}, "between 1 and all 4 experts, not 5"),
        ({"num_experts_per_tok": 1, "moe_intermediate_size": -3}, "must be positive, not -3"),
    ],
)
def test_experts_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(**EXPERTS, **changes)


def test_scores_of_latent_attention_grow_alike_in_both_formats() -> None:
    sizes = LatentSizes(rank=20, query_rank=None, key_dim=10, rope_dim=6, value_dim=6)
    yarn = {"rope_type": "yarn", "factor": 40.0, "mscale_all_dim": 0.7}
    expected = score_scale(ConfigEntries({"rope_parameters": yarn}, "config.json"), sizes)
    header = {"type": "yarn", "factor": 40.0, "yarn_log_multiplier": 0.07}
    entries = {f"rope.scaling.{key}": value for key, value in header.items()}
    assert expected > 1.5 / 4
    assert score_scale_of_gguf(ConfigEntries(entries, "a header"), sizes) == pytest.approx(expected)
