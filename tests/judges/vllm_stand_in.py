"""Runs vLLM's tests of its server against paceline: stands in for `vllm` and `tests.utils`.

Loaded by pytest in a process of its own. Of vLLM, nothing runs but the tests; whatever else they
import is a placeholder. A test counts as one of the server only if it sent a request to it.
"""

import base64
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest.mock import MagicMock

import anthropic
import openai
import pytest
from outcomes import unlimited
from served import PORT, Served, adapter

SERVED: list[Served] = []


class Placeholder(ModuleType):
    """A module of vLLM of which every name exists and does nothing."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made: Any = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes a placeholder of each module of vLLM and of packages that its tests want."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.partition(".")[0] in ("vllm", "model_hosting_container_standards", "tblib"):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Placeholder(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class RemoteOpenAIServer:
    """Clients of a server of paceline, by the interface that vLLM's tests use."""

    DUMMY_API_KEY = "token-abc123"
    show_hidden_metrics = False

    def __init__(
        self,
        model: str,
        vllm_serve_args: list[str],
        env_dict: dict[str, str] | None = None,
        **_: Any,
    ) -> None:
        arguments = [str(argument) for argument in vllm_serve_args]
        if "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in (env_dict or {}):
            arguments.append("--allow-runtime-lora-updating")
        if key := (env_dict or {}).get("VLLM_API_KEY"):
            arguments += ["--api-key", key]
        self.root_path = ""
        if "--root-path" in arguments:
            self.root_path = arguments[arguments.index("--root-path") + 1]
        self.host, self.port, self.uds = "127.0.0.1", PORT, None
        if not SERVED:
            SERVED.append(Served())
        with unlimited():
            SERVED[0].start(model, arguments)

    def __enter__(self) -> "RemoteOpenAIServer":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def url_root(self) -> str:
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *parts])

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._openai(options))

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._openai(options))

    def get_client_anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(**self._anthropic(options))

    def get_async_client_anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(**self._anthropic(options))

    def _openai(self, options: dict[str, Any]) -> dict[str, Any]:
        url = {"base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0}
        return {"timeout": 600, **url, **options}

    def _anthropic(self, options: dict[str, Any]) -> dict[str, Any]:
        url = {"base_url": self.url_for(), "api_key": self.DUMMY_API_KEY, "max_retries": 0}
        return {"timeout": 600, **url, **options}


def tokenizer_of_the_model(*_: Any, **__: Any) -> Any:
    """The tokenizer of the served model as transformers reads it, whatever name is asked for."""
    from transformers import AutoTokenizer

    file = Path(os.environ["JUDGE_GGUF"])
    return ORIGINAL_TOKENIZER(AutoTokenizer, str(file.parent), gguf_file=file.name)


def stand_in() -> None:
    sys.meta_path.insert(0, Finder())
    platform: Any = sys.modules.setdefault("vllm.platforms", Placeholder("vllm.platforms"))
    platform.current_platform = MagicMock(
        **{
            f"is_{kind}.return_value": kind == "cuda"
            for kind in ("cuda", "rocm", "cpu", "xpu", "tpu", "cuda_alike", "out_of_tree")
        }
    )
    tokenizers: Any = sys.modules.setdefault("vllm.tokenizers", Placeholder("vllm.tokenizers"))
    tokenizers.get_tokenizer = tokenizer_of_the_model
    hub: Any = Placeholder("vllm.transformers_utils.repo_utils")
    hub.hf_api = lambda: MagicMock(**{"snapshot_download.side_effect": lambda **_: adapter()})
    sys.modules[hub.__name__] = hub
    config: Any = sys.modules.setdefault("vllm.config", Placeholder("vllm.config"))
    config.ModelConfig.return_value.get_vocab_size.return_value = len(tokenizer_of_the_model())
    version: Any = Placeholder("vllm.version")
    version.__version__ = metadata.version("paceline")
    sys.modules[version.__name__] = version
    sys.modules["pybase64"] = base64
    utils: Any = ModuleType("tests.utils")
    utils.RemoteOpenAIServer = RemoteOpenAIServer
    utils.RemoteVLLMServer = RemoteOpenAIServer
    utils.ROCM_EXTRA_ARGS, utils.VLLM_PATH = [], Path.cwd()
    utils.large_gpu_mark = lambda **_: pytest.mark.skip(reason="needs a large GPU")
    for name in ("multi_gpu_only", "requires_fp8", "create_new_process_for_each_test"):
        setattr(utils, name, lambda *_, **__: lambda test: test)
    sys.modules["tests.utils"] = utils
    assets: Any = ModuleType("tests.conftest")
    assets.LocalAssetServer = MagicMock()
    sys.modules["tests.conftest"] = assets
    inner = "tests.entrypoints.openai.chat_completion.test_serving_chat"
    sys.modules[inner] = Placeholder(inner)
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained = staticmethod(tokenizer_of_the_model)  # type: ignore[method-assign]


def _original() -> Callable[..., Any]:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained.__func__


ORIGINAL_TOKENIZER = _original()
stand_in()
