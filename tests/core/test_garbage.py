import gc

import pytest

from paceline.core.garbage import collection_paused


def test_collection_goes_on_afterwards() -> None:
    def fail() -> None:
        assert not gc.isenabled()
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"), collection_paused():
        fail()
    assert gc.isenabled()


def test_a_program_that_has_paused_it_keeps_it_paused() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
