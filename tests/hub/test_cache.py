import select
import subprocess
import sys
from pathlib import Path

from paceline.hub.wheel import beside, locked

HOLD = """
import sys
from pathlib import Path
from paceline.hub.wheel import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_neighbour_keeps_the_whole_name() -> None:
    assert beside(Path("/a/b.gguf"), ".part") == Path("/a/b.gguf.part")


def test_a_lock_is_held_by_one_process_and_dies_with_it(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    command = [sys.executable, "-c", HOLD, str(target)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:
        assert first.stdout is not None
        assert second.stdout is not None
        assert {first.poll(), second.poll()} == {None}
        holders = [first, second]
        # Whoever got it says so; the other stays silent until the first is gone.
        ready, _, _ = select.select([first.stdout, second.stdout], [], [], 30)
        assert len(ready) == 1
        holder = next(one for one in holders if one.stdout in ready)
        waiter = next(one for one in holders if one is not holder)
        assert waiter.stdout is not None
        assert select.select([waiter.stdout], [], [], 0.3)[0] == []
        holder.kill()
        assert waiter.stdout.readline() == b"held\n"
        waiter.communicate()
    with locked(target):
        assert target.parent.is_dir()
