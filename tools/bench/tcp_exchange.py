#!/usr/bin/env python3
"""What links allow when gradients go one way and parameters the other: plain TCP connections, one from each worker to
each server, that carry their bytes both ways at once, and nobody waits for anybody before the step's end. Used by
scale_out.py. A worker prints the seconds of its steps, a JSON array."""

import argparse
import json
import socket
import threading
import time

PORT = 9000


def receive(connection, size):
    buffer = memoryview(bytearray(1 << 20))
    while size > 0:
        got = connection.recv_into(buffer[:min(len(buffer), size)])
        if got == 0:
            raise SystemExit("bench: a connection ended")
        size -= got


def exchange(connections, data):
    """All connections, both ways; then a byte each way, so that none begins the next step before all are done."""
    threads = [threading.Thread(target=target, args=arguments) for connection in connections
               for target, arguments in ((connection.sendall, (data,)), (receive, (connection, len(data))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.sendall(b".")
    for connection in connections:
        receive(connection, 1)


def connect(address):
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", help="address of a server; without it, a worker")
    parser.add_argument("--workers", type=int, help="how many connect to a server")
    parser.add_argument("--servers", help="comma-separated addresses that a worker connects to")
    parser.add_argument("--bytes", required=True, type=int, help="of each connection in each direction and step")
    parser.add_argument("--steps", required=True, type=int)
    options = parser.parse_args()
    if options.listen is not None:
        with socket.create_server((options.listen, PORT)) as listener:
            connections = [listener.accept()[0] for _ in range(options.workers)]
    else:
        connections = [connect(address) for address in options.servers.split(",")]
    data = bytes(options.bytes)
    seconds = []
    for _ in range(options.steps):
        start = time.perf_counter()
        exchange(connections, data)
        seconds.append(time.perf_counter() - start)
    if options.listen is None:
        print(json.dumps(seconds))


if __name__ == "__main__":
    main()
