import gc

import pytest

from paceline.core.system.host import THRESHOLDS, collection_paused, keep_heap


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


def test_what_is_loaded_is_never_searched_again() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    held = [[one] for one in range(100)]
    try:
        keep_heap()
        assert gc.get_freeze_count() > frozen + len(held)
        assert gc.get_threshold() == THRESHOLDS
        assert not any(one is held for one in gc.get_objects())
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
