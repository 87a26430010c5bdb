#!/usr/bin/env bash
# setup.sh VENV: an environment in which vLLM 0.13.0's scheduler imports and runs without a GPU.
# The wheel's CUDA parts do not load; the scheduler is pure Python and needs none of them, which is
# why vLLM comes without its dependencies and only what the imports touch is added by hand.
# Its whole engine, which `tests/integrations/vllm/inside` runs without a model, takes some more.
set -euo pipefail

venv=${1:?usage: setup.sh VENV}
here=$(cd "$(dirname "$0")" && pwd)

install() { "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }

"${PYTHON:-python3}" -m venv "$venv"
install torch==2.13.0 numpy setuptools
install --no-deps vllm==0.13.0 xgrammar==0.1.27
install 'transformers<5' msgspec pydantic cachetools psutil regex cloudpickle requests tqdm pyyaml \
    pyzmq cbor2 pillow py-cpuinfo blake3 gguf aiohttp pybase64 prometheus_client openai_harmony \
    openai llguidance fastapi diskcache==5.6.3 einops mistral_common
install pytest lm-format-enforcer==0.11.3 outlines_core==0.2.11 lark partial-json-parser ijson \
    setproctitle python-json-logger watchfiles prometheus-fastapi-instrumentator mcp \
    model-hosting-container-standards sentencepiece protobuf scipy ninja anthropic==0.71.0 \
    python-multipart uvicorn

# Built from a copy, so that the checkout stays free of build output.
rm -rf "$venv/plugin"
cp -r "$here/plugin" "$venv/plugin"
install --no-build-isolation "$venv/plugin"

"$venv/bin/python" -c \
    'from vllm.v1.core.sched.scheduler import Scheduler; print("ready:", Scheduler.__module__)'
