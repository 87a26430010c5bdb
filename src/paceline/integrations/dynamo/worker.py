"""A worker of NVIDIA Dynamo: its model card, and its life."""

import json
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import uvloop
from dynamo.common.backend import EngineConfig, LlmRegistration, Worker, WorkerConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.runtime.logging import configure_dynamo_logging

from paceline.core.settings.config import CacheConfig
from paceline.core.settings.load import LoadConfig
from paceline.core.system.files import json_object, stored
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.loop.messages import Capacity, EngineFailed
from paceline.engine.streaming import StreamingEngine
from paceline.hub.catalogue import DEFAULT
from paceline.hub.repository_files import Progress, silent
from paceline.integrations.dynamo.engine import DynamoEngine, DynamoPart
from paceline.integrations.dynamo.settings import DynamoSettings
from paceline.text.chat_template import ChatTemplate
from paceline.text.tokenizer import Tokenizer
from paceline.wiring.model_files import download, sampling_rules
from paceline.wiring.processes.serving import ServedModel, exit_on_sigterm, loaded
from paceline.wiring.recording import begin_files
from paceline.wiring.settings import part_of
from paceline.wiring.vllm.configs import kv_events_in
from paceline.wiring.vllm.values import EVENTS, as_json

CONFIG = "config.json"
NEEDED = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}  # Dynamo reads no GGUF


def card_folder(model: Path, tokenizer: Tokenizer, max_model_len: int) -> Path:
    """A folder with the files of a model but its weights, whatever format the model has.

    Workers of one model have the same folder: Dynamo's frontend rejects a worker whose folder has
    another name than that of the first one.
    """
    own = json_object(model / CONFIG) if (model / CONFIG).is_file() else dict[str, Any]()
    ends = {"bos_token_id": tokenizer.bos, "eos_token_id": list(tokenizer.eos)}
    config = {**NEEDED, **own, **ends, "max_position_embeddings": max_model_len}
    files = {
        **tokenizer.files(),
        CONFIG: json.dumps(config),
        "generation_config.json": json.dumps(ends),
    }
    folder = Path("dynamo") / sha256(json.dumps(files).encode()).hexdigest()[:16]
    (path, *_) = [stored(folder / name, partial(write, text)) for name, text in files.items()]
    return path.parent


def write(text: str, file: Path) -> None:
    file.write_text(text, encoding="utf-8")


MODES = {
    "both": DisaggregationMode.AGGREGATED,
    "prefill": DisaggregationMode.PREFILL,
    "decode": DisaggregationMode.DECODE,
}


def serve_dynamo(
    model: str = DEFAULT,
    dynamo: DynamoSettings | None = None,
    *,
    progress: Progress = silent,
    **settings: Any,
) -> None:
    """Serve a model to Dynamo's frontend until SIGINT or SIGTERM.

    Settings by name: those of `EngineSettings` and of the engine itself. Raises EngineFailed if the
    engine has died: an orchestrator starts another worker, and Dynamo moves its requests.
    """
    chosen = dynamo or DynamoSettings()
    configure_dynamo_logging()
    begin_files(settings)
    with TemporaryDirectory(prefix="paceline-") as folder:
        settings = with_events(as_json(settings), Path(folder))
        load = part_of(LoadConfig, settings)
        most = settings.get("max_num_batched_tokens")
        with exit_on_sigterm():  # until Dynamo's runtime handles signals
            path = model if load.load_format == "dummy" else str(download(model, progress))
            found = loaded(path, progress, {**settings, "on_core_crash": "exit"})
        capacity = found.core.ready()
        card = card_folder(Path(path).expanduser(), found.tokenizer, capacity.max_model_len)
        name = chosen.served_model_name or model
        registered = EngineConfig(str(card), name, llm=registration(capacity, most))
        part = DynamoPart(
            model=name,
            registered=registered,
            events=kv_events_in(load.kv_events_config),
            prefill=load.role == "prefill",
            drain_s=chosen.drain_s,
        )
        config = worker_config(chosen, registered, load, bool(found.tokenizer.chat_template))
        uvloop.run(run_worker(found, load, part, config))


def with_events(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same settings, with KV events for the router by default."""
    if settings.get(EVENTS) or not part_of(CacheConfig, settings).enable_prefix_caching:
        return settings
    events = {"enable_kv_cache_events": True, "endpoint": f"ipc://{folder}/events"}
    return {**settings, EVENTS: json.dumps(events)}


def registration(capacity: Capacity, max_num_batched_tokens: int | None) -> LlmRegistration:
    """What Dynamo's router reckons with."""
    return LlmRegistration(
        context_length=capacity.max_model_len,
        kv_cache_block_size=capacity.block_size,
        total_kv_blocks=capacity.num_blocks,
        max_num_seqs=capacity.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def worker_config(
    dynamo: DynamoSettings, registered: EngineConfig, load: LoadConfig, chats: bool
) -> WorkerConfig:
    """How Dynamo's runtime announces the worker."""
    return WorkerConfig(
        namespace=dynamo.namespace,
        component=dynamo.component or ("prefill" if load.role == "prefill" else "backend"),
        endpoint=dynamo.endpoint,
        model_name=registered.model,
        served_model_name=registered.served_model_name,
        endpoint_types="chat,completions" if chats else "completions",
        discovery_backend=dynamo.discovery_backend,
        request_plane=dynamo.request_plane,
        event_plane=dynamo.event_plane,
        tool_call_parser=dynamo.tool_call_parser or None,
        reasoning_parser=dynamo.reasoning_parser or None,
        disaggregation_mode=MODES[load.role],
    )


async def run_worker(
    found: ServedModel, load: LoadConfig, part: DynamoPart, config: WorkerConfig
) -> None:
    """Until a signal. EngineFailed if the engine has died."""
    rules = sampling_rules(found.tokenizer, load)
    frontend = Frontend(found.tokenizer, ChatTemplate.of(found.tokenizer), monotonic, rules)
    engine = StreamingEngine(found.core, frontend)
    served = DynamoEngine(engine, part)
    try:
        await Worker(served, config).run()
    finally:
        await engine.shutdown()
    if served.failure:
        raise EngineFailed(served.failure)
