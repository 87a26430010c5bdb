"""Embeddings on a GPU: those of the CPU, however they are scheduled."""

import numpy as np
import pytest

from tests.gpu.support import ON_GPU
from tests.gpu.test_runner import both, gpu_runner
from tests.runner.pooling_ways import WAYS, embeddings
from tests.runner.test_runner import runner_for as cpu_runner

pytestmark = ON_GPU


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_they_are_those_of_the_cpu_on_every_schedule(family: str, way: str) -> None:
    gpu, cpu = both(family)
    due = embeddings(cpu_runner, cpu)
    found = embeddings(gpu_runner, gpu, **WAYS[way])
    assert found.keys() == due.keys()
    for name, vector in due.items():
        np.testing.assert_allclose(found[name], vector, atol=2e-3, err_msg=name)
