"""Reads parts of a config.json of any version of transformers."""

from dataclasses import dataclass, replace
from typing import Any, cast

from paceline.core.errors import ConfigError
from paceline.core.pooling import CLASSIFIER, ENCODERS
from paceline.runner.models.architecture import InputSizes, Multipliers
from paceline.runner.models.config_entries import ConfigEntries
from paceline.runner.models.rope import RopeChoice, frequencies, scaled
from paceline.runner.models.states.state_sizes import StateLayers
from paceline.runner.models.traits import Traits, architectures, find, nearest_to, unsupported
from paceline.runner.weights import weight_format
from paceline.runner.weights.weight_format import UNQUANTIZED, Quantization

FULL, SLIDING, STATE, BOTH = "full_attention", "sliding_attention", "linear_attention", "hybrid"
WITH_STATE = (STATE, BOTH)
ALONE = ("mlp", "moe")  # layers that are an MLP or an MoE alone; then all layers have one part
THETA = 10_000.0
TEXT, WITH_IMAGES = "ForCausalLM", "ForConditionalGeneration"
ENDINGS = (TEXT, WITH_IMAGES, CLASSIFIER, "TextModel", "Model")
IGNORED = {CLASSIFIER: ("score.",)}  # the head of a classifier, which the front end applies
OF_THE_WHOLE = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config")
UNSUPPORTED = ("use_bidirectional_attention", "clip_qkv")


@dataclass(frozen=True, slots=True)
class Found:
    """An architecture, found by its name.

    name          of the architecture
    traits        with the names of tensors that this file has
    generates     there is a head to logits of tokens
    is_text_part  the decoder alone of a model with images
    ignored       what the names of tensors begin with that are not of the decoder
    """

    name: str
    traits: Traits
    generates: bool = True
    is_text_part: bool = False
    ignored: tuple[str, ...] = ()


def architecture(read: ConfigEntries, text_only: bool = False) -> Found:
    """ConfigError if there is no architecture of the name in the file. With `text_only`, a model
    with images is read without them, if it can be."""
    name = str((read.get("architectures") or [""])[0])
    ending = next((one for one in ENDINGS if name.endswith(one)), "")
    short = name.removesuffix(ending).lower()
    traits = architectures().get(short) if ending else None
    if traits is None:
        raise unsupported_name(name, ending)
    if ending != WITH_IMAGES:
        if traits.vision is not None:
            raise unsupported_name(name, ending)
        return Found(short, traits, generates=ending == TEXT, ignored=IGNORED.get(ending, ()))
    if traits.vision is not None:
        return Found(short, with_decoder(read, traits))
    if (part := traits.text_part) is None:
        raise unsupported_name(name, ending)
    traits = replace(traits, decoder=part.decoder)
    has_images = read.raw.get("vision_config", {}) is not None
    if part.vision is not None and has_images and not text_only:
        return Found(short, replace(traits, vision=part.vision))
    return Found(short, traits, is_text_part=True, ignored=part.images)


def with_decoder(read: ConfigEntries, traits: Traits) -> Traits:
    """The traits of a model with images, whose decoder may be of an architecture that text_config
    names."""
    if not traits.text_model:
        return traits
    named = str(read.get("text_config", {}).get("model_type") or traits.text_model)
    decoder = find(named.removesuffix("_text").replace("_", ""))
    return replace(
        decoder,
        decoder=traits.decoder,
        vision=traits.vision,
        defaults=(*decoder.defaults, *traits.defaults),
    )


def unsupported_name(name: str, ending: str) -> ConfigError:
    """The error of an architecture that is not known, with what works and is nearest."""
    if not ending and not name.endswith("ForMaskedLM"):
        return unsupported(name)
    decoders, encoders = architectures(), [f"{family}Model" for family in ENCODERS]
    with_images = [one for one, traits in decoders.items() if traits.vision is not None]
    texts = [one for one in decoders if one not in with_images]
    if ending == TEXT or name.endswith("LMHeadModel"):
        known, what = texts, "models that generate text"
    elif ending == WITH_IMAGES:
        known, what = with_images, "models with images"
    else:
        known, what = [*encoders, *texts], "models that embed or classify texts"
    near = nearest_to(name.removesuffix(ending), known)
    nearest = f"; the nearest is {near}" if near else ""
    listed = ", ".join(known)
    if known[0] in encoders:
        listed = f"{', '.join(encoders)}, and their {CLASSIFIER}; and Model and {CLASSIFIER} of "
        listed += ", ".join(texts)
    return ConfigError(
        f"architecture {name!r} is not supported{nearest}; supported {what} are {listed}"
    )


def of_decoder(read: ConfigEntries, found: Found) -> ConfigEntries:
    """The entries of the decoder. A model with images has them in text_config; older files have
    them beside it."""
    read = _text_entries(read, found)
    if (entries := found.traits.entries) is None:
        return read
    return replace(read, raw={**read.raw, **entries(read)})


def _text_entries(read: ConfigEntries, found: Found) -> ConfigEntries:
    text, usual = read.get("text_config"), dict(found.traits.defaults)
    if text is None or not (found.is_text_part or found.traits.vision is not None):
        return ConfigEntries({**usual, **read.raw}, read.where)
    whole = {key: read.raw[key] for key in OF_THE_WHOLE if key in read.raw}
    where = f"{read.where}, text_config"
    given = {key: value for key, value in text.items() if value is not None}
    if (part := found.traits.text_part) is not None:
        return ConfigEntries({**usual, **dict(part.defaults), **given, **whole}, where)
    return ConfigEntries({"tie_word_embeddings": False, **usual, **given, **whole}, where)


def refuse_unsupported(read: ConfigEntries, traits: Traits) -> None:
    for key in UNSUPPORTED:
        if read.get(key) not in (None, False, 0, "vision"):  # a text has no images
            raise ConfigError(f"{read.where}: {key} = {read.get(key)!r} is not supported")
    for key in ("hidden_act", "hidden_activation"):
        if read.get(key, traits.activation) != traits.activation:
            raise ConfigError(f"{read.where}: {key} = {read.get(key)!r} is not supported")


def quantization(read: ConfigEntries, chosen: str) -> Quantization:
    """The formats of weights, read by the format that is chosen, or else by that of the file."""
    given = read.get("quantization_config")
    if not given:
        return UNQUANTIZED
    if not isinstance(given, dict):
        raise ConfigError(f"{read.where}: quantization_config is {given!r:.200}, not an object")
    config = cast("dict[str, Any]", given)
    method = str(config.get("quant_method", ""))
    if "." in chosen:
        return weight_format.load(chosen).of_config(config)
    known = weight_format.known()
    name = method.replace("-", "_")
    if chosen not in ("auto", name):
        raise ConfigError(
            f"quantization is {chosen!r}, but the checkpoint has quant_method {method!r}; remove "
            "the setting"
        )
    if name not in known:
        raise ConfigError(
            f"{read.where}: quantization_config has quant_method {method!r}, which is not "
            f"supported; supported are {', '.join(known)}"
        )
    return weight_format.load(name).of_config(config)


def of_file(read: ConfigEntries, traits: Traits) -> Traits:
    """The traits of an architecture, of which some models have no norms of heads."""
    return replace(traits, qk_norm=bool(read.get("use_qk_norm", traits.qk_norm)))


def ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def biases(read: ConfigEntries, traits: Traits) -> tuple[bool, bool, bool]:
    """Whether the linears of attention, the one after it, and those of the MLP have biases."""
    every = bool(read.get("use_bias"))
    attention = every or bool(read.get("attention_bias"))
    output = bool(read.get("attention_out_bias", attention and traits.output_bias))
    return attention, output, every or bool(read.get("mlp_bias"))


def norm_eps(read: ConfigEntries) -> float:
    names = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")
    return float(next((eps for name in names if (eps := read.get(name))), 1e-6))


def query_scale(read: ConfigEntries, head_dim: int) -> float:
    if (given := read.get("attention_multiplier")) is not None:
        return float(given)
    return (read.get("query_pre_attn_scalar") or head_dim) ** -0.5


def multipliers(read: ConfigEntries) -> Multipliers:
    return Multipliers(
        float(read.get("embedding_multiplier", 1.0)),
        float(read.get("residual_multiplier", 1.0)),
        float(read.get("logit_scale", 1 / read.get("logits_scaling", 1.0))),
        tuple(read.get("linear_multipliers", ())),
    )


def cap(read: ConfigEntries, key: str, default: float | None) -> float | None:
    """A soft cap. Unlike a missing entry, null means that there is none."""
    found = read.raw.get(key, default)
    return None if found is None else float(found)


def windows(read: ConfigEntries, layers: int, traits: Traits) -> tuple[int | None, ...]:
    """The window of each layer."""
    window = read.get("sliding_window")
    if kinds := read.get("layer_types"):
        seen = {FULL: None, SLIDING: window}
        if traits.states is not None:
            seen = {FULL: None, BOTH: None, STATE: 0, **dict.fromkeys(ALONE, 0)}
        if strange := set(kinds) - set(seen):
            raise ConfigError(f"{read.where}: layer types {sorted(strange)} are not supported")
        return tuple(seen[kind] for kind in kinds)
    if read.get("use_sliding_window"):
        full = read.get("max_window_layers", 0)
        return tuple(None if layer < full else window for layer in range(layers))
    every = read.get("sliding_window_pattern", traits.global_every)
    return traits.windows(layers, window, every)


def global_heads(
    read: ConfigEntries, windows: tuple[int | None, ...], kv_heads: int, head_dim: int
) -> tuple[int, int]:
    """Heads of keys and their size in layers without a window; those of the others are given."""
    layers = [layer for layer, window in enumerate(windows) if window is None]
    if given := read.get("per_layer_config"):
        found = {
            (one.get("num_key_value_heads", kv_heads), one.get("head_dim", head_dim))
            for one in (given.get(str(layer), {}) for layer in layers)
        }
        if len(found) > 1 or set(map(int, given)) - set(layers):
            raise ConfigError(
                f"{read.where}: per_layer_config is supported where it is the same for all layers "
                "without a window, and for these alone"
            )
        return found.pop()
    if read.get("attention_k_eq_v"):
        kv_heads = read.get("num_global_key_value_heads", kv_heads)
    return kv_heads, read.get("global_head_dim", head_dim)


def input_sizes(read: ConfigEntries) -> InputSizes | None:
    if not (width := read.get("hidden_size_per_layer_input")):
        return None
    vocab = read.get("vocab_size_per_layer_input") or read.number("vocab_size")
    return InputSizes(vocab, width, read.get("pad_token_id", 0))


def states(read: ConfigEntries, traits: Traits) -> StateLayers | None:
    if traits.states is None:
        return None
    kinds: list[str] = read.need("layer_types")
    one_part = any(kind in ALONE for kind in kinds)
    return StateLayers(
        sizes=traits.states(read),
        layers=tuple(kind in WITH_STATE for kind in kinds),
        mlps=tuple(kind in ALONE or not one_part for kind in kinds),
    )


def unread(read: ConfigEntries, layers: int, traits: Traits) -> tuple[str, ...]:
    """What tensors begin with that files may have and no layer reads: keys and values of layers
    that read those of others, and layers behind the last one, which draft tokens."""
    first, prefix = layers - read.get("num_kv_shared_layers", 0), f"{traits.decoder.prefix}.layers"
    drafting = range(layers, layers + read.get("num_nextn_predict_layers", 0))
    shared = (
        f"{prefix}.{layer}.self_attn.{name}."
        for layer in range(first, layers)
        for name in ("k_proj", "v_proj", "k_norm", "v_norm")
    )
    return (*shared, *(f"{prefix}.{layer}." for layer in drafting))


def unrotated(
    read: ConfigEntries, windows: tuple[int | None, ...], traits: Traits
) -> tuple[bool, ...]:
    """Whether queries and keys of each layer stay as they are."""
    if rotated := read.get("no_rope_layers"):  # 1 where they rotate
        return tuple(not one for one in rotated)
    return traits.unrotated(windows, read.get("no_rope_layer_interval"))


def rope(read: ConfigEntries, kind: str, head_dim: int, traits: Traits) -> RopeChoice:
    """The rope of layers of a kind."""
    given = read.get("rope_parameters")
    scaling: dict[str, Any]
    if given is not None:
        scaling = {**given.get(kind, given)}
        theta = scaling.get("rope_theta") or read.get("rope_theta", THETA)
    elif kind == SLIDING and traits.local_theta is not None:
        scaling = {}
        theta = read.get("rope_local_base_freq", traits.local_theta)
    else:
        scaling = {**read.get("rope_scaling", {})}
        theta = read.get("rope_theta", THETA)
    longest = read.number("max_position_embeddings")
    original = scaling.get("original_max_position_embeddings", longest)
    scaling["original_max_position_embeddings"] = read.get(
        "original_max_position_embeddings", original
    )
    plain = frequencies(float(theta), rotary_dim(read, head_dim))
    found, sections = scaled(plain, scaling, longest), scaling.get("mrope_section")
    if sections is not None and traits.vision is not None:  # positions of text have one coordinate
        found = found.with_sections(sections, bool(scaling.get("mrope_interleaved")))
    return found.padded(head_dim // 2)


def rotary_dim(read: ConfigEntries, head_dim: int) -> int:
    """Dimensions of each head that rotate, from the first one on."""
    if (dims := read.get("rotary_dim")) is not None:
        return int(dims)
    given = read.get("rope_parameters", {})
    part = given.get("partial_rotary_factor") or read.get("partial_rotary_factor", 1.0)
    return int(head_dim * float(part))
