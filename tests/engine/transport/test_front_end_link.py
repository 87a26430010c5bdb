"""The link to a front end: whatever its process sends, its end is reported once."""

from queue import SimpleQueue

import pytest

from paceline.engine.loop.messages import Abort, Capacity, EngineFailed
from paceline.engine.transport import wire
from paceline.engine.transport.child_process import ChildProcess
from paceline.engine.transport.front_end_link import FromFrontEnd, FrontEndBuild, FrontEndLink

ECHO = "tests.engine.loop.echo"  # it sends back its settings, which are no message of a front end


@pytest.mark.parametrize("broken", ["message", "serve"])
def test_a_front_end_whose_messages_cannot_be_served_is_killed(broken: str) -> None:
    left: SimpleQueue[FrontEndLink] = SimpleQueue()

    def serve(_link: FrontEndLink, _message: FromFrontEnd) -> None:
        raise ZeroDivisionError

    build = FrontEndBuild(3, Capacity(256, 4, 96, 8, 64), {})
    child = ChildProcess(ECHO)
    if broken == "serve":
        child.send(wire.encoder.encode(wire.AbortMessage(Abort("a"))))
    link = FrontEndLink(child, build, serve, left.put)
    link.start()
    assert left.get(timeout=20.0) is link
    with pytest.raises(EngineFailed, match="has ended with code -9"):
        link.ready.result()
    link.close()
    assert left.empty()
