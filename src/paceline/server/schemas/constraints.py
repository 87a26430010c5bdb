"""Fields of requests that constrain outputs, and those that this server refuses."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError


def refused(reason: str) -> BeforeValidator:
    """A field that is not supported. Null, false and an empty list are accepted."""
    return BeforeValidator(lambda given, info: refuse(given, info, reason, (None, False, [])))


def fixed(reason: str, *values: Any) -> BeforeValidator:
    """A field of which only null and `values` are supported."""
    return BeforeValidator(lambda given, info: refuse(given, info, reason, (None, *values)))


def refuse(given: Any, info: ValidationInfo, reason: str, accepted: tuple[Any, ...]) -> None:
    """An error that names the field, unless its value is one of those that are accepted."""
    if not any(type(given) is type(one) and given == one for one in accepted):
        problem = f"{reason}; remove {info.field_name}"
        raise PydanticCustomError("unsupported", "{problem}", {"problem": problem})


REFUSED: Any = Field(description="refused")
OtherConstraint = Annotated[None, refused("constraints are in structured_outputs"), REFUSED]
Adapter = Annotated[None, refused("adapters are not supported"), REFUSED]
OtherInput = Annotated[None, refused("only text is supported as input"), REFUSED]
OwnTemplate = Annotated[
    None, refused("the chat template of the model is used, and it begins a new message"), REFUSED
]
Functions = Annotated[None, refused("functions are not supported; see tools"), REFUSED]
Processors = Annotated[None, refused("logits cannot be processed by code of the client"), REFUSED]
Documents = Annotated[
    None, refused("documents are not supported; write their text into messages"), REFUSED
]
Embeddings = Annotated[None, refused("a prompt is a text or token ids"), REFUSED]
NoTransfer = Annotated[None, refused("this route transfers no KV"), REFUSED]
NoSearch = Annotated[None, refused("the web is not searched"), REFUSED]
Regexes = Annotated[None, refused("an answer stops at strings; see stop"), REFUSED]
ChosenLogprobs = Annotated[
    None,
    refused("logprobs of chosen tokens are not returned on this route; see top_logprobs"),
    REFUSED,
]
HiddenStates = Annotated[None, refused("hidden states are not returned"), REFUSED]
OwnArguments = Annotated[None, fixed("there are no arguments of extensions", {}), REFUSED]
NoTokenIds = Annotated[None, refused("token ids are not returned on this route"), REFUSED]
NoToolCalls = Annotated[None, refused("the server calls no tools by itself"), REFUSED]
NoMessages = Annotated[
    None, refused("messages in the model's own format are not exchanged; see input"), REFUSED
]
StoredPrompt = Annotated[None, refused("prompts are not stored; see input"), REFUSED]
NoEcho = Annotated[None, refused("a conversation is not echoed"), REFUSED]
NoEffort = Annotated[None, refused("there is no chat template on this route"), REFUSED]
ThinkingBudget = Annotated[None, refused("a text has no reasoning apart; see max_tokens"), REFUSED]
Repetitions = Annotated[
    None, refused("an output is not searched for repetitions; see repetition_penalty"), REFUSED
]
Whitespace = Annotated[
    None,
    refused("there is no pattern of whitespace; see structured_outputs.disable_any_whitespace"),
    REFUSED,
]
Backend = Annotated[None, refused("the server chooses it (--structured-outputs-backend)"), REFUSED]
Offsets = Annotated[None, refused("see text_offset in the logprobs of a completion"), REFUSED]
Watermark = Annotated[None, refused("the server has no watermark"), REFUSED]
MediaArguments = Annotated[None, fixed("clients cannot change how images are read", {}), REFUSED]
EncoderTransfer = Annotated[None, fixed("outputs of encoders are not transferred", {}), REFUSED]
WeightVersions = Annotated[None, refused("weights do not change while the server runs"), REFUSED]
RoutedExperts = Annotated[None, fixed("the experts of tokens are not returned", 0), REFUSED]
Rendered = "this route returns no rendered prompt"
Payload = Annotated[None, fixed(Rendered, "tensors"), REFUSED]
MediaReturned = Annotated[None, fixed(Rendered, False), REFUSED]
Interval = Annotated[
    None, fixed("tokens are sent as they are generated, several together under load", 1), REFUSED
]
PromptText = Annotated[
    None, refused("the prompt is no conversation, or there are several"), REFUSED
]
Reasoning = Annotated[None, fixed("a text has no reasoning apart", True), REFUSED]
Detokenized = Annotated[None, fixed("the text is always returned", True), REFUSED]
Verbosity = Annotated[None, fixed("the verbosity cannot be set", "medium"), REFUSED]


Name = Annotated[str, Field(max_length=64)]
Words = Annotated[
    dict[Name, Annotated[str, Field(max_length=512)]],
    Field(max_length=16, description="at most 16 texts of the client's own, by name"),
]


class RequestBody(BaseModel):
    """A JSON object. Values are not converted to other types."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Constraints(RequestBody):
    """Fields of other servers that constrain the text or change the prompt.

    A client that sends one relies on it, so most are refused and none is ignored. The fields:
    response_format, modalities, function_call, functions, add_special_tokens, structured_outputs,
    guided_json, guided_regex, guided_choice, guided_grammar, regex, json_schema, ebnf, grammar,
    logits_processors, custom_logit_processor, prompt_embeds, stop_regex, web_search_options,
    vllm_xargs, return_hidden_states, detokenize, verbosity, repetition_detection,
    guided_whitespace_pattern, guided_decoding_backend, return_token_offsets, watermarking,
    mm_processor_kwargs, media_io_kwargs, ec_transfer_params, return_weight_versions,
    routed_experts_prompt_start, mm_payload, return_mm_kwargs, stream_interval;
    adapters: adapter, lora, lora_path, lora_request; inputs that are no text: images,
    image_data, video_data, audio, audio_data, multi_modal_data.
    """

    response_format: dict[str, Any] | None = Field(
        None, description="text, json_object, json_schema or structural_tag"
    )
    modalities: Annotated[list[str], Field(fail_fast=True)] | None = Field(
        None, description="text only"
    )
    function_call: str | dict[str, Any] | None = Field(None, description="none or auto")
    functions: Functions = None
    add_special_tokens: bool | None = Field(
        None, description="by default true for a text, false for a conversation"
    )
    structured_outputs: dict[str, Any] | None = Field(
        None, description="one of json, json_object, regex, choice, grammar and structural_tag"
    )
    guided_json: dict[str, Any] | bool | str | None = Field(None, description="a JSON schema")
    guided_regex: str | None = Field(None, description="a regular expression")
    guided_choice: list[str] | None = Field(None, description="texts, of which the output is one")
    guided_grammar: str | None = Field(None, description="a grammar in EBNF or Lark")
    regex: OtherConstraint = None
    json_schema: OtherConstraint = None
    ebnf: OtherConstraint = None
    grammar: OtherConstraint = None
    logits_processors: Processors = None
    prompt_embeds: Embeddings = None
    custom_logit_processor: Processors = None
    stop_regex: Regexes = None
    web_search_options: NoSearch = None
    vllm_xargs: OwnArguments = None
    return_hidden_states: HiddenStates = None
    detokenize: Detokenized = None
    verbosity: Verbosity = None
    repetition_detection: Repetitions = None
    guided_whitespace_pattern: Whitespace = None
    guided_decoding_backend: Backend = None
    return_token_offsets: Offsets = None
    watermarking: Watermark = None
    mm_processor_kwargs: MediaArguments = None
    media_io_kwargs: MediaArguments = None
    ec_transfer_params: EncoderTransfer = None
    return_weight_versions: WeightVersions = None
    routed_experts_prompt_start: RoutedExperts = None
    mm_payload: Payload = None
    return_mm_kwargs: MediaReturned = None
    stream_interval: Interval = None
    adapter: Adapter = None
    lora: Adapter = None
    lora_path: Adapter = None
    lora_request: Adapter = None
    images: OtherInput = None
    image_data: OtherInput = None
    video_data: OtherInput = None
    audio: OtherInput = None
    audio_data: OtherInput = None
    multi_modal_data: OtherInput = None
