"""A child process that sends back what it receives, and exits on request."""

import sys

import zmq

if __name__ == "__main__":
    context = zmq.Context()
    commands, out = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    commands.bind(f"{sys.argv[1]}/in")
    out.bind(f"{sys.argv[1]}/out")
    word = b""
    while word != b"exit":
        word = commands.recv()
        out.send(word)
    context.destroy(linger=1000)
