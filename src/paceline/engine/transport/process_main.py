"""The step loop as a process: `python -m paceline.engine.transport.process_main ADDRESS`, and what
it will probably be asked to build an engine by."""

import logging
import os
import signal
import sys
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from math import ceil
from threading import Lock, Thread
from typing import Any

import zmq

from paceline.core.errors import PacelineError, QueueFull
from paceline.core.system.host import keep_heap
from paceline.core.system.start import START, begin_early, load_libraries, process_age_s
from paceline.engine.components import factory_named
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import PendingQuestion, Submit
from paceline.engine.transport import wire
from paceline.engine.transport.child_process import Alarm

log = logging.getLogger("paceline.engine.transport.process_main")  # its name is __main__ here


def main(address: str, factory: str = "") -> None:
    """Read commands from `address`/in and send messages to `address`/out. If it is known what will
    build the engine, it is imported before the first command."""
    if factory:
        Thread(target=load_libraries, daemon=True).start()
        Thread(target=factory_named, args=(factory,), daemon=True).start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    commands, outbox = bound_to_parent(context, address)
    status = 1
    try:
        engine = built(wire.to_core.decode(commands.recv()))
        keep_heap()
        outbox.send(wire.Ready(engine.capacity))
        broken = CoreLoop(engine, commands, outbox).run()
        if broken:
            outbox.send(wire.Died(broken))  # a device that is lost may take long to close
        engine.close()
        status = int(bool(broken))
    except PacelineError as error:
        outbox.send(wire.Ready(fault=wire.EncodedError.of(error)))
    except Exception as error:
        log.exception("the engine has died")
        outbox.send(wire.Died(f"the engine has died: {type(error).__name__}: {error}"))
    context.destroy(linger=1000)
    sys.exit(status)


class Outbox(logging.Handler):
    """Sends messages and log records of a core, from any thread."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        super().__init__()
        self._socket, self._sending = socket, Lock()

    def send(self, message: wire.FromCore) -> None:
        with self._sending:
            self._socket.send(wire.encoder.encode(message))

    def emit(self, record: logging.LogRecord) -> None:
        self.send(wire.LogMessage(record.name, record.levelno, self.format(record)))


def bound_to_parent(
    context: zmq.Context[zmq.Socket[bytes]], address: str
) -> tuple[zmq.Socket[bytes], Outbox]:
    """Begin a child process: its sockets to the parent, which gets its log too. The parent decides
    when it ends, and it ends with the parent."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    Thread(target=die_with_parent, daemon=True).start()
    commands, out = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket, end in ((commands, "in"), (out, "out")):
        socket.set_hwm(0)  # sending never blocks; incoming requests are bounded by inbox_requests
        socket.bind(f"{address}/{end}")
    outbox = Outbox(out)
    logging.basicConfig(level=logging.INFO, handlers=[outbox], format="%(message)s")
    return commands, outbox


def die_with_parent() -> None:
    """Exit when stdin closes: the parent holds its other end until it exits or dies.

    Reads the file descriptor, because a lock on `sys.stdin` would block a regular exit.
    """
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def built(message: wire.ToCore) -> Engine:
    assert isinstance(message, wire.Build)
    log.info("importing %s, which takes some seconds", message.factory.partition(":")[0])
    START.add("python", process_age_s())
    settings = wire.as_declared(message.settings)
    begin_early(message.model, settings)
    with START.phase("imports"):
        factory = factory_named(message.factory)
    engine = replace(factory(message.model, **settings), settings=message.engine).engine()
    log.info("started in %s", START)
    return engine


class CoreLoop:
    """Runs the engine on the main thread: reads the socket, takes a turn, sends the delivery.

    Every message leaves the socket before a turn, so that requests beyond `inbox_requests` are
    refused. While requests run, those of a burst wait in the engine's inbox, still encoded.
    """

    def __init__(self, engine: Engine, commands: zmq.Socket[bytes], outbox: Outbox) -> None:
        self._engine, self._commands, self._send = engine, commands, outbox.send
        self._closing = False
        self._alarm = Alarm()  # rung when another thread has a message for the engine
        engine.call_for_messages(self._alarm.ring)
        self._poller = zmq.Poller()
        self._poller.register(commands, zmq.POLLIN)
        self._poller.register(self._alarm.fileno(), zmq.POLLIN)

    def run(self) -> str:
        """Until the parent closes it or the engine stops; returns why the engine stopped."""
        while not self._closing and not (self._engine.broken and self._engine.idle):
            self.turn()
        return "" if self._closing else self._engine.broken

    def turn(self) -> None:
        self._receive()
        delivery = self._engine.turn()
        if delivery is not None:
            self._send(wire.encode_delivery(delivery))

    def _receive(self) -> None:
        """Take every message out of the socket; wait for one if nothing else is due."""
        patience_s = self._engine.patience_s
        found = self._poller.poll(None if patience_s is None else ceil(patience_s * 1000))
        if any(one == self._alarm.fileno() for one, _ in found):
            self._alarm.clear()
        while (frame := received(self._commands)) is not None:
            self._put(wire.to_core.decode(frame))

    def _put(self, message: wire.ToCore) -> None:
        match message:
            case wire.EncodedRequest():
                try:
                    self._engine.put(Submit(message.request, message.parked))
                except QueueFull as error:
                    self._engine.refuse(message.id, error)
            case wire.AbortMessage(command) | wire.ParkMessage(command) | wire.WakeMessage(command):
                self._engine.put(command)
            case wire.NumberedQuestion(number, question):
                answer: Future[Any] = Future()
                answer.add_done_callback(partial(self._send_answer, number))
                self._engine.put(PendingQuestion(question, answer))
            case wire.Close():
                self._closing = True
            case _:
                raise AssertionError(f"{type(message).__name__} is no command to a running core")

    def _send_answer(self, number: int, answer: Future[Any]) -> None:
        self._send(wire.NumberedAnswer.of(number, answer))


def received(socket: zmq.Socket[bytes]) -> bytes | None:
    """The next message, or None if there is none yet."""
    try:
        return socket.recv(zmq.NOBLOCK)
    except zmq.Again:
        return None


if __name__ == "__main__":
    main(*sys.argv[1:])
