"""KV events of what a connector keeps."""

from paceline.core.events import AllBlocksCleared, BlockRemoved, BlockStored
from tests.sched.scripted_connector import ScriptedConnector
from tests.sched.support import PROMPT, ask, small, step


def test_blocks_come_and_go_once_each() -> None:
    scheduler, connector = small(enable_kv_cache_events=True), ScriptedConnector(0)
    connector.medium = "CPU"
    scheduler.connect(connector)
    scheduler.submit(ask("a", PROMPT, 1), 0.0)
    step(scheduler)
    on_device = [one for one in scheduler.cache_events() if isinstance(one, BlockStored)]
    (stored,) = connector.stored
    for _ in range(2):
        connector.changed(stored.keys, True)
    elsewhere = scheduler.cache_events()
    assert [one.medium for one in on_device] == ["GPU"] * 3
    assert elsewhere == [
        BlockStored(one.key, one.parent, one.tokens, one.adapter, medium="CPU") for one in on_device
    ]
    for _ in range(2):
        connector.changed(stored.keys[2:], False)
    assert scheduler.cache_events() == [BlockRemoved(stored.keys[2], "CPU")]
    connector.changed([b"unknown"], True)
    connector.changed([b"unknown"], False)
    connector.end_all()
    assert scheduler.reset_prefix_cache()
    connector.changed(stored.keys, False)
    assert scheduler.cache_events() == [AllBlocksCleared()]
