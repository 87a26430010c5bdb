"""Models with states: long prompts, and files of models that read images."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline import Request, Scheduler
from paceline.core.sampling import Sampling
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.model import Model
from paceline.runner.models.traits import architectures, find
from paceline.runner.proposer import Proposer
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.files import open_checkpoint
from tests.conformance.architectures import DELTA, SHARED, SIZES, Case, tokens_of
from tests.golden.support import is_greedy, same, saved, their_logits
from tests.runner.driving import SETTINGS, TIGHT, drive, for_states, requests
from tests.runner.sequences import OnCPU, Sequences, logits_of
from tests.runner.test_runner import runner_for

GREEDY = Sampling(temperature=0.0)
WITH_STATES = [name for name in architectures() if find(name).states is not None]


@pytest.mark.parametrize("architecture", WITH_STATES)
def test_prompts_of_several_chunks(architecture: str, tmp_path: Path) -> None:
    """Chunks of a recurrence, and steps that end within them."""
    theirs = saved(Case(architecture), tmp_path)
    tokens = tokens_of(150, seed=3)
    sequences = Sequences(OnCPU(Model.load(open_checkpoint(tmp_path)), "paged"))
    sequences.add("a", tokens)
    ours = [sequences.step(a=count)["a"] for count in (1, 3, 70, 1, 75)]
    same(torch.cat(ours), their_logits(theirs, tokens))


@pytest.mark.parametrize("architecture", ["bamba", "lfm2", "qwen3next"])  # one of each kind
def test_turns_of_a_chat_begin_with_snapshots(architecture: str, tmp_path: Path) -> None:
    """The second turn begins with the first, the third beside it, and two samples share theirs."""
    theirs = saved(Case(architecture), tmp_path)
    model = Model.load(open_checkpoint(tmp_path))
    scheduler = Scheduler.create(**for_states(SETTINGS, model.config))
    runner = runner_for(model, scheduler)

    def turn(name: str, prompt: list[int], **fields: Any) -> dict[str, list[int]]:
        asked = Request(id=name, prompt=prompt, max_tokens=6, sampling=GREEDY, **fields)
        return drive(scheduler, runner, [asked], depth=2)

    first = tokens_of(21, seed=5)
    answer = turn("first", first)["first"]
    second = [*first, *answer, *tokens_of(9, seed=6)]
    prompts = {"second": second, "beside": [*second[:-5], 1, 2, 3], "again": second}
    for name, prompt in prompts.items():
        assert is_greedy(theirs, prompt, turn(name, prompt)[name], 6), name
    both = turn("both", second, n=2)
    assert both["0_both"] == both["1_both"]
    assert is_greedy(theirs, second, both["0_both"], 6)
    assert scheduler.snapshot()["prefix_hits"] >= 4


class Foretold(Proposer):
    """Drafts what follows in known sequences, but for every third token, which is wrong."""

    def __init__(self, sequences: list[list[int]]) -> None:
        super().__init__(SpeculationConfig(num_speculative_tokens=3))
        self._sequences = sequences

    def propose(self, tokens: Tensor, known: Tensor, number: Tensor, most: int) -> Tensor:
        found = torch.full((len(tokens), most), -1)
        for row, (end, count) in enumerate(zip(known.tolist(), number.tolist(), strict=True)):
            prefix = tokens[row, :end].tolist()
            whole = next((one for one in self._sequences if one[:end] == prefix), prefix)
            drafts = [(one + (at % 3 == 0)) % 100 for at, one in enumerate(whole)][
                end : end + count
            ]
            found[row, : len(drafts)] = torch.tensor(drafts)
        return found


WAYS: dict[str, dict[str, Any]] = {
    "bamba": {"depth": 3},
    "lfm2": {"max_num_batched_tokens": 8},
    "qwen3_5": {**TIGHT, "depth": 2},
}


@pytest.mark.parametrize("architecture", WAYS)
def test_rejected_drafts_leave_states_as_they_were(architecture: str) -> None:
    """The second request begins with the turn of the first, whose state was kept."""
    model = Model.load(Dummy(Case(architecture).config(), seed=3))
    settings = {**SETTINGS, "num_blocks": 500, **WAYS[architecture]}
    depth, sequences = settings.pop("depth", 1), list[list[int]]()

    def turns(**drafting: Any) -> tuple[list[list[int]], Scheduler]:
        scheduler = Scheduler.create(**for_states({**settings, **drafting}, model.config))
        runner = runner_for(model, scheduler, drafter=Foretold(sequences))
        asked = requests(sampling=GREEDY)
        got = drive(scheduler, runner, asked, depth)
        found = [[*one.prompt.tolist(), *got[one.id]] for one in asked]
        second = [
            replace(one, id=f"again {one.id}", prompt=[*whole, 5, 9])
            for one, whole in zip(asked, found, strict=True)
        ]
        got = drive(scheduler, runner, second, depth)
        return found + [[*one.prompt.tolist(), *got[one.id]] for one in second], scheduler

    sequences, _ = turns()
    drafted, scheduler = turns(num_speculative_tokens=3, speculation="fixed")
    assert drafted == sequences
    assert 50 < scheduler.stats.accepted < scheduler.stats.drafted - 30
    assert scheduler.stats.preemptions or scheduler.snapshot()["prefix_hits"] > 20


VISION = {"depth": 1, "hidden_size": 32, "num_heads": 4, "intermediate_size": 24}
TOKENS = {"image_token_id": 97, "video_token_id": 98, "vision_start_token_id": 99}


def with_images(name: str, sizes: dict[str, Any]) -> Any:
    """A model of transformers that reads images."""
    text = {**SIZES, **sizes, "pad_token_id": None, "eos_token_id": None}
    del text["sliding_window"]
    kind: Any = getattr(transformers, f"{name}ForConditionalGeneration")
    vision = {**VISION, "out_hidden_size": 32, "num_position_embeddings": 16}
    config = kind.config_class(text_config=text, vision_config=vision, **TOKENS)
    config._attn_implementation = "eager"
    model = kind(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for tensor in model.parameters():
        tensor.normal_(0.0, 0.2, generator=generator)
    return model


def stack_experts(folder: Path) -> None:
    """Store experts as they are published: in one tensor for gates and ups, and one for downs."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    block = "model.language_model.layers.{}.mlp.experts"
    for layer in range(SIZES["num_hidden_layers"]):
        stem = block.format(layer)
        parts = [
            [tensors.pop(f"{stem}.{expert}.{name}_proj.weight") for name in ("gate", "up", "down")]
            for expert in range(SHARED["num_experts"])
        ]
        both = [torch.cat((gate, up)) for gate, up, _ in parts]
        tensors[f"{stem}.gate_up_proj"] = torch.stack(both)
        tensors[f"{stem}.down_proj"] = torch.stack([down for _, _, down in parts])
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("name", "is_stacked"), [("Qwen3_5", False), ("Qwen3_5Moe", False), ("Qwen3_5Moe", True)]
)
def test_the_text_part_of_a_model_with_images(name: str, is_stacked: bool, tmp_path: Path) -> None:
    theirs = with_images(name, DELTA if name == "Qwen3_5" else {**DELTA, **SHARED})
    theirs.save_pretrained(tmp_path)
    if is_stacked:
        stack_experts(tmp_path)
    tokens = [min(token, 90) for token in tokens_of(20, seed=1)]
    ours = OnCPU(Model.load(open_checkpoint(tmp_path)), "paged")
    same(logits_of(ours, tokens), their_logits(theirs, tokens))


def test_heads_that_draft_are_left_out(tmp_path: Path) -> None:
    saved(Case("qwen3next"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "mtp.fc.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    assert "mtp.fc.weight" not in open_checkpoint(tmp_path).shapes
    Model.load(open_checkpoint(tmp_path))


def test_every_fourth_layer_has_attention_unless_config_json_says_otherwise(tmp_path: Path) -> None:
    saved(Case("qwen3_5"), tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    del raw["layer_types"]
    raw["num_hidden_layers"] = 8
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert open_checkpoint(tmp_path).config.windows == (0, 0, 0, None) * 2


def test_letters_name_the_layers_of_nemotron() -> None:
    """Files that are older than the list have them, and a number of layers."""
    listed = Case("nemotronh", "latent experts").entries
    letters = {**listed, "layers_block_type": None, "hybrid_override_pattern": "EM*-"}
    found = ModelConfig.of_hf(letters)
    assert found == ModelConfig.of_hf(listed)
    assert found.experts is not None
    assert found.experts.layers == (True, False, False, False)
