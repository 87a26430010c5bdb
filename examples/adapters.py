"""Run a LoRA adapter beside the plain model in one batch.

No trained adapter of SmolLM2 is at hand, so the script writes one with random weights, in the
format of PEFT. `llm.generate(prompts, lora_request=…)` is the same for a trained one.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.numpy import save_file

from paceline import LLM, LoRARequest, SamplingParams

LAYERS, WIDTH, RANK = 30, 576, 8


def write_adapter(folder: Path) -> Path:
    """Factors for the query projection of each layer."""
    random = np.random.default_rng(0)
    module = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    tensors = {
        module.format(layer, factor): random.normal(0, 0.5, shape).astype(np.float32)
        for layer in range(LAYERS)
        for factor, shape in (("A", (RANK, WIDTH)), ("B", (WIDTH, RANK)))
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def main() -> None:
    with TemporaryDirectory() as folder:
        adapter = LoRARequest("random", 1, str(write_adapter(Path(folder))))
        with LLM("smollm2", enable_lora=True, max_lora_rank=RANK) as llm:
            prompts = ["The capital of France is"] * 2
            outputs = llm.generate(
                prompts, SamplingParams(temperature=0, max_tokens=8), lora_request=[None, adapter]
            )
            for name, output in zip(("plain", "adapter"), outputs, strict=True):
                print(f"{name}: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
