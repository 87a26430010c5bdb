"""The step loop as a process of its own: `python -m paceline.engine.core.process_main ADDRESS`."""

import logging
import os
import signal
import sys
from concurrent.futures import Future
from dataclasses import replace
from math import ceil
from threading import Lock, Thread
from typing import Any

import zmq

from paceline.core.errors import PacelineError
from paceline.engine.core import wire
from paceline.engine.core.components import factory_named
from paceline.engine.core.engine import Engine
from paceline.engine.core.messages import Asked
from paceline.engine.settings import EngineSettings

log = logging.getLogger("paceline.engine.core.process_main")  # its name is __main__ here


def main(address: str) -> None:
    """Commands come in at one end of `address`, everything else goes out at the other."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)  # the parent decides when this process ends
    Thread(target=die_with_parent, daemon=True).start()
    context = zmq.Context()
    commands, out = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket, end in ((commands, "in"), (out, "out")):
        socket.set_hwm(0)  # the engine waits for nobody; what it takes is bounded in its inbox
        socket.bind(f"{address}/{end}")
    outbox = Outbox(out)
    logging.basicConfig(level=logging.INFO, handlers=[outbox], format="%(message)s")
    status = 1
    try:
        engine = built(wire.to_core.decode(commands.recv()))
        outbox.send(wire.Ready(engine.capacity))
        broken = CoreLoop(engine, commands, outbox).run()
        engine.close()
        if broken:
            outbox.send(wire.Died(broken))
        else:
            status = 0
    except PacelineError as error:
        outbox.send(wire.Ready(fault=wire.Fault.of(error)))
    except Exception as error:
        log.exception("the engine has died")
        outbox.send(wire.Died(f"the engine has died: {type(error).__name__}: {error}"))
    context.destroy(linger=1000)
    sys.exit(status)


class Outbox(logging.Handler):
    """What a core has to tell, and what it writes to its log, from any thread."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        super().__init__()
        self._socket, self._sending = socket, Lock()

    def send(self, message: wire.FromCore) -> None:
        with self._sending:
            self._socket.send(wire.encoder.encode(message))

    def emit(self, record: logging.LogRecord) -> None:
        self.send(wire.Logged(record.name, record.levelno, self.format(record)))


def die_with_parent() -> None:
    """The parent holds the other end of stdin, and lets go of it however it ends.

    The file itself is read, since a lock on `sys.stdin` would be in the way of a regular end.
    """
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def built(message: wire.ToCore) -> Engine:
    assert isinstance(message, wire.Build)
    parts = factory_named(message.factory)(message.model, **message.settings)
    return replace(parts, settings=EngineSettings(**message.engine)).engine()


class CoreLoop:
    """Turns the engine on the only thread there is, and sends what it tells."""

    def __init__(self, engine: Engine, commands: zmq.Socket[bytes], outbox: Outbox) -> None:
        self._engine, self._commands, self._send = engine, commands, outbox.send
        self._asked: dict[int, Future[Any]] = {}
        self._closing = False

    def run(self) -> str:
        """Until it is told to end, or the engine has stopped for good; returns why it has."""
        while not self._closing and not (self._engine.broken and self._engine.idle):
            self._listen()
            delivery = self._engine.turn()
            if delivery is not None:
                self._send(wire.delivered(delivery))
            for number in [number for number, answer in self._asked.items() if answer.done()]:
                self._answer(number, self._asked.pop(number))
        return "" if self._closing else self._engine.broken

    def _listen(self) -> None:
        """Take everything that came; wait for something if there is nothing else to do."""
        patience_s = self._engine.patience_s
        patience_ms = None if patience_s is None else ceil(patience_s * 1000)
        while self._commands.poll(patience_ms):
            self._heed(wire.to_core.decode(self._commands.recv()))
            patience_ms = 0

    def _heed(self, message: wire.ToCore) -> None:
        match message:
            case wire.Submitted():
                self._submit(message)
            case wire.Aborted(request_id, child):
                self._engine.abort(request_id, child)
            case wire.Parked(request_id, reason):
                self._engine.park(request_id, reason)
            case wire.Woken(request_id):
                self._engine.wake(request_id)
            case wire.Questioned(number, question):
                answer = self._asked[number] = Future[Any]()
                self._engine.ask(Asked(question, answer))
            case wire.Close():
                self._closing = True
            case wire.Build():
                raise AssertionError("a core is built once")

    def _submit(self, message: wire.Submitted) -> None:
        try:
            self._engine.submit(wire.request_of(message), message.parked)
        except PacelineError as error:
            refused = wire.Refusal(message.settings["id"], wire.Fault.of(error))
            nothing = wire.Table(0, 1, b"")
            self._send(
                wire.Delivered(
                    self._engine.clock(), [], b"", nothing, b"", None, None, (), (refused,)
                )
            )

    def _answer(self, number: int, answer: Future[Any]) -> None:
        error = answer.exception()
        if error is None:
            self._send(wire.Answered(number, answer.result()))
        else:
            assert isinstance(error, Exception)
            self._send(wire.Answered(number, fault=wire.Fault.of(error)))


if __name__ == "__main__":
    main(sys.argv[1])
