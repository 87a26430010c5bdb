"""What the tests on a card have in common."""

import pytest
import torch

ON_A_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card"),
]
