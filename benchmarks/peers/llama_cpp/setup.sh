#!/usr/bin/env bash
# setup.sh FOLDER MODEL.gguf: llama.cpp with the instructions of this processor, and the model as
# Q8_0, which is the form it is fastest with. The source is that of llama-cpp-python's sdist.
set -euo pipefail

folder=${1:?usage: setup.sh FOLDER MODEL.gguf}
model=${2:?usage: setup.sh FOLDER MODEL.gguf}
version=0.3.36

mkdir -p "$folder"
"${PYTHON:-python3}" -m pip download --quiet --no-deps --no-binary llama-cpp-python \
    --dest "$folder" "llama-cpp-python==$version"
tar -xzf "$folder/llama_cpp_python-$version.tar.gz" -C "$folder"
cmake -G Ninja -S "$folder/llama_cpp_python-$version/vendor/llama.cpp" -B "$folder/build" \
    -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
ninja -C "$folder/build" llama-quantize llama-batched-bench llama-server
"$folder/build/bin/llama-quantize" --allow-requantize "$model" "$folder/model-q8_0.gguf" Q8_0
