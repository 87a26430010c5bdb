"""Steps with drafts: kernels by themselves, and the runner under the scheduler at any depth."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline import Request, Scheduler
from paceline.core.constraint import Constraint
from paceline.core.sampling import Sampling
from paceline.engine.grammar import constrained_requests as constrained_requests_module
from paceline.runner.attention_backend import load
from paceline.runner.cuda.drafting.draft_model import CudaDraftModel
from paceline.runner.cuda.kernels.drafts import accept, put_drafts
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.cuda.state import CudaState
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.proposer import Drafter, DraftingFor, DraftInput, Drafts
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.runner import TorchRunner
from paceline.runner.sampling.rejection import draw_drafts
from paceline.runner.weights.dummy import Dummy
from tests.gpu.cuda_backend import SMALL
from tests.interpreted.host_device import large_programs, use_host
from tests.property.grammars import END, constrained_requests
from tests.runner.driving import SETTINGS, drive
from tests.runner.support import tiny


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes a while for each program, however large it is."""
    large_programs(monkeypatch)
    monkeypatch.setattr("paceline.runner.attention.triton.BUSY", 8)


def column(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def tokens_of(slots: int, width: int = 12) -> torch.Tensor:
    return torch.arange(slots * width, dtype=torch.int32).view(slots, width) + 100


def test_drafts_go_behind_the_known_tokens() -> None:
    tokens = tokens_of(4)
    expected = tokens.clone()
    drafts = torch.tensor([[1, 2, 3], [4, -1, -1], [5, 6, -1]])
    put_drafts(tokens, column(2, 0, 3), column(5, 0, 9), drafts, column(3, 2, 1))
    expected[2, 5:8] = column(1, 2, 3)
    expected[0, 0:2] = column(4, 0)  # a place without a draft is computed anyway
    expected[3, 9] = 5  # has one place
    assert torch.equal(tokens, expected)


@pytest.mark.parametrize(
    ("ids", "drafts", "kept"),
    [
        ([7, 8, 9], [1, 2], [7]),
        ([1, 8, 9], [1, 2], [1, 8]),
        ([1, 2, 9], [1, 2], [1, 2, 9]),
        ([1, 2, 9], [-1, -1], [1]),
        ([1, 2, 9], [1, -1], [1, 2]),
        ([7, 2, 9], [1, 2], [7]),  # what follows a wrong draft is wrong, even if it agrees
    ],
)
def test_ids_are_kept_up_to_the_first_that_was_not_drafted(
    ids: list[int], drafts: list[int], kept: list[int]
) -> None:
    tokens, position = tokens_of(3), column(3, 4, 5)
    before, found = tokens.clone(), torch.tensor([ids], dtype=torch.int32)
    accept((tokens, position), column(1), column(5), found, torch.tensor([drafts]))
    assert found.tolist() == [kept + [-1] * (3 - len(kept))]
    before[1, 5 : 5 + len(kept)] = column(*kept)
    assert torch.equal(tokens, before)
    assert position.tolist() == [3, 5 + len(kept) - 1, 5]


def test_a_row_whose_last_id_is_no_token_fails_as_a_whole() -> None:
    tokens, position = tokens_of(2), column(3, 4)
    ids, drafts = torch.tensor([[1, -1, 9]], dtype=torch.int32), torch.tensor([[1, 2]])
    accept((tokens, position), column(1), column(5), ids, drafts)
    assert ids.tolist() == [[-1, -1, -1]]


# -- under the scheduler -----------------------------------------------------

ASKED = [[4, 4, 8], [33] * 5]


class Circular(Ngram):
    """Proposes for every row, whether something was found or not."""

    def propose(self, tokens: Any, known: Any, number: Any, most: int) -> torch.Tensor:
        found = super().propose(tokens, known, number, most)
        places = torch.arange(most) < number[:, None]
        return torch.where(places & (found < 0), 5, found)


class Drawn(Drafter):
    """Draws drafts by the same probabilities everywhere."""

    draws = True

    def attach(self, runner: DraftingFor) -> None:
        self.columns, vocab = runner.columns, runner.model.config.vocab
        self.logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(1)) * 3

    def draft(self, rows: DraftInput) -> Drafts:
        slot, places = rows.slot.long(), torch.arange(rows.most)
        own = self.columns.temperature[slot], self.columns.key[slot]
        drawn = [
            draw_drafts(self.logits.repeat(len(slot), 1), *own, rows.known.long() + place)
            for place in range(rows.most)
        ]
        ids, probabilities = (torch.stack(each, 1) for each in zip(*drawn, strict=True))
        return Drafts(torch.where(places < rows.number[:, None], ids, -1), probabilities)


def requests(**fields: Any) -> list[Request]:
    return [
        Request(id=f"r{i}", prompt=prompt, max_tokens=3 + 2 * i, ignore_eos=True, **fields)
        for i, prompt in enumerate(ASKED)
    ]


def source(seed: int = 3) -> Dummy:
    return Dummy(tiny(architectures=["Qwen3ForCausalLM"], **SMALL), seed=seed)


# Small steps: the interpreter computes the padding of a graph as well.
DRAFTING: dict[str, Any] = {
    "num_speculative_tokens": 2,
    "speculation": "fixed",
    "max_num_batched_tokens": 8,
}


def expected(asked: list[Request], kind: type[Drafter] = Ngram, **settings: Any) -> dict[str, Any]:
    """By the CPU runner; without drafts, unless settings say otherwise."""
    scheduler, model = Scheduler.create(**{**SETTINGS, **settings}), Model.load(source())
    kv = KVStore(model.config, SETTINGS["num_blocks"], SETTINGS["block_size"])
    sizes = SETTINGS["max_num_seqs"], SETTINGS["max_model_len"]
    proposer = kind(scheduler.config.speculation)
    masks = constrained_requests(model.config.vocab)
    runner = TorchRunner(model, kv, load("sdpa"), proposer, *sizes, masks)
    return drive(scheduler, runner, asked, constrained=masks)


def interpreted(
    asked: list[Request],
    depth: int,
    patch: pytest.MonkeyPatch,
    draft_seed: int | None = None,
    drafts: int = 2,
    kind: type[Drafter] = Circular,
) -> tuple[dict[str, Any], Scheduler]:
    """By the runner for a GPU; with a seed, drafts come from a draft model."""
    use_host(patch)
    drafting = {**DRAFTING, "num_speculative_tokens": drafts}
    scheduler = Scheduler.create(**{**SETTINGS, **drafting})
    config = scheduler.config
    model = CudaModel.load(source(), 64, torch.float32, device="cpu")
    kv = KVStore(model.config, config.cache.num_blocks + 1, config.cache.block_size)
    step = config.step
    sizes = RunnerSizes(step.max_num_seqs, step.max_model_len, step.max_num_batched_tokens)
    drafter = kind(config.speculation)
    if draft_seed is not None:
        draft = CudaModel.load(source(draft_seed), 64, torch.float32, device="cpu")
        drafter = CudaDraftModel(config.speculation, draft, torch.float32)
    masks = constrained_requests(model.config.vocab)
    runner = CudaRunner(model, kv, load("triton"), drafter, sizes, masks)
    return drive(scheduler, runner, asked, depth, masks), scheduler


@pytest.mark.parametrize("depth", [3])
def test_tokens_are_those_of_a_run_without_drafts(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no step is waited for: that the host reads where slots stand is an error here."""

    def refused(self: CudaState, slot: Any) -> Any:
        raise AssertionError("the host waits for a step")

    asked = requests()
    due = expected(asked)
    monkeypatch.setattr(CudaState, "stands", refused)
    got, scheduler = interpreted(asked, depth, monkeypatch)
    assert got == due
    assert 0 < scheduler.stats.accepted < scheduler.stats.drafted


def test_rows_that_want_more_than_a_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(sampling=Sampling(temperature=0.8, top_k=5, repetition_penalty=1.2), seed=4)[
        1:
    ]
    due = expected(asked)
    got, scheduler = interpreted(asked, 2, monkeypatch)
    assert got == due
    assert scheduler.stats.drafted


def test_drafts_that_were_drawn_are_accepted_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(sampling=Sampling(temperature=1.5), seed=4)[1:]
    due = expected(asked, Drawn, **DRAFTING)
    got, scheduler = interpreted(asked, 1, monkeypatch, kind=Drawn)
    assert got == due
    assert got != expected(asked), "no draft was accepted that the model would not have drawn"
    assert scheduler.stats.drafted


def test_drafts_of_a_model_for_itself_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [Request(id="a", prompt=[4, 4, 8], max_tokens=5, ignore_eos=True)]  # pyright: ignore[reportArgumentType]
    due = expected(asked)
    got, scheduler = interpreted(asked, 2, monkeypatch, draft_seed=3)
    assert got == due
    assert scheduler.stats.accepted == scheduler.stats.drafted > 0


@pytest.mark.parametrize("drafts", [0, 2])
def test_rows_with_masks_beside_others(drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of drafts that the constraint does not allow, none is accepted."""
    held = {"constraint": Constraint.regex("[0-4]{4}(5|67)*"), "eos_token_ids": (END,)}
    first, second = requests()
    asked = [replace(first, **held), replace(second, max_tokens=3)]
    asked.append(replace(asked[0], id="hot", sampling=Sampling(top_k=9), seed=3))
    one_way = {"constraint": Constraint.regex("[01]333"), "max_tokens": 6}
    asked.append(replace(asked[0], id="one way", **one_way))
    with monkeypatch.context() as patch:
        patch.setattr(constrained_requests_module, "may_jump", lambda _: False)
        due = expected(asked)
    assert all(token in range(5) for token in due["r0"])
    assert due["one way"][1:] == [3, 3, 3, END]
    got, scheduler = interpreted(asked, 2, monkeypatch, drafts=drafts)
    assert got == due
    assert bool(scheduler.stats.drafted) == bool(drafts)
