"""Every architecture on the kernels for GPUs, in Triton's interpreter, compared with torch.

These are checks of the conformance suite, which runs as a whole on a GPU. The interpreter takes
some 20 ms for each program, so programs are few and large here, and steps are short.
"""

from typing import Any

import pytest

from paceline.runner.cuda.model import CUDA
from tests.conformance.architectures import Case, few_cases
from tests.conformance.model_backends import (
    Step,
    check_refusals,
    compare_wanted,
    every_case,
    follow,
)
from tests.gpu.cuda_backend import INTERPRETED
from tests.interpreted.host_device import large_programs
from tests.runner.support import Piece


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    large_programs(monkeypatch)
    monkeypatch.setattr("paceline.runner.attention.triton.BUSY", 8)


@pytest.mark.parametrize("pair", every_case([INTERPRETED]))
def test_prompts_and_decodes(pair: tuple[Any, Case]) -> None:
    """The context of `a` is longer than any window."""
    backend, case = pair
    follow(backend.compared(case), {"a": 9, "b": 3}, [{"a": 8, "b": 2}, {"a": 1, "b": 1}])


def test_a_model_that_they_do_not_compute_is_refused() -> None:
    check_refusals(INTERPRETED, few_cases(support=CUDA))


NORMS = ["llama", "gemma3"]  # without and with norms of what is added to the residual stream


@pytest.mark.parametrize("architecture", NORMS)
def test_decodes_of_many_rows(architecture: str) -> None:
    """From five rows on, products and rotations are kernels of their own."""
    first = {"a": 4, "b": 1, "c": 1, "d": 1, "e": 1}
    lengths = {name: length + 1 for name, length in first.items()}
    follow(INTERPRETED.compared(Case(architecture)), lengths, [first, dict.fromkeys(first, 1)])


@pytest.mark.parametrize("architecture", NORMS)
def test_sequences_that_are_preempted_and_swapped(architecture: str) -> None:
    """A step of few positions, some of which belong to one row, has kernels of its own."""
    steps: list[Step] = [{"a": 2, "b": 1}, ("preempt", "b"), ("swap", "a"), {"b": 2, "a": 1}]
    follow(INTERPRETED.compared(Case(architecture)), {"a": 3, "b": 2}, steps)


@pytest.mark.parametrize("architecture", NORMS)
def test_positions_that_are_not_wanted_are_left_out(architecture: str) -> None:
    model = INTERPRETED.compared(Case(architecture)).model
    compare_wanted(model, [Piece([3, 4, 5, 6, 7], 0, [7, 2])], [[4, 1, 1], []])


@pytest.mark.parametrize("variant", ["ungated experts", "latent experts"])
def test_experts_without_gates(variant: str) -> None:
    case = Case("nemotronh", variant)
    follow(INTERPRETED.compared(case), {"a": 9}, [{"a": 8}, {"a": 1}])
