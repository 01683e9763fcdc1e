"""A caller without any secret: HTTP/2 by hand, so that nothing keeps it from sending what no client would send; and a reader of
pages beside it, who must not notice."""

from __future__ import annotations

import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Sequence

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GO_AWAY, _CONTINUATION = 0, 1, 3, 4, 7, 9
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_FRAME_BYTES_MAX = 16384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _number(value: int) -> bytes:
    """HPACK's integer with a prefix of seven bits."""
    if value < 127:
        return bytes([value])
    coded, value = bytearray([127]), value - 127
    while value >= 128:
        coded.append(value % 128 + 128)
        value //= 128
    return bytes(coded) + bytes([value])


def headers(fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"\0" + _number(len(name)) + name + _number(len(value)) + value for name, value in fields)


def call(address: str, method: str, metadata: list[tuple[bytes, bytes]], messages: list[bytes], seconds: float = 2.0) -> bytes:
    """Makes a gRPC call, and returns all that comes as messages; empty where there are none."""
    host, port = address.rsplit(":", 1)
    block = headers([(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/" + method.encode()), (b":authority", host.encode()),
                     (b"te", b"trailers"), (b"content-type", b"application/grpc"), *metadata])
    sent = _PREFACE + frame(_SETTINGS, 0, 0)
    pieces = [block[at:at + _FRAME_BYTES_MAX] for at in range(0, len(block), _FRAME_BYTES_MAX)]
    for number, piece in enumerate(pieces):
        sent += frame(_CONTINUATION if number else _HEADERS, _END_HEADERS if number == len(pieces) - 1 else 0, 1, piece)
    for message in messages:
        whole = b"\0" + struct.pack(">I", len(message)) + message
        for at in range(0, len(whole), _FRAME_BYTES_MAX):
            sent += frame(_DATA, 0, 1, whole[at:at + _FRAME_BYTES_MAX])
    sent += frame(_DATA, _END_STREAM, 1)
    with socket.create_connection((host, int(port)), seconds) as connection:
        return _answer(connection, sent, seconds)


def _answer(connection: socket.socket, sent: bytes, seconds: float) -> bytes:
    connection.settimeout(seconds)
    answer, rest = b"", b""
    try:
        connection.sendall(sent)
        while True:
            while len(rest) >= 9 and len(rest) >= 9 + int.from_bytes(rest[:3], "big"):
                size, kind, flags = int.from_bytes(rest[:3], "big"), rest[3], rest[4]
                payload, rest = rest[9:9 + size], rest[9 + size:]
                if kind == _SETTINGS and not flags & _ACK:
                    connection.sendall(frame(_SETTINGS, _ACK, 0))
                if kind == _DATA:
                    answer += payload
                if kind in (_RESET, _GO_AWAY) or kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                    return answer
            more = connection.recv(1 << 16)
            if not more:
                return answer
            rest += more
    except OSError:  # It was cut off, or waits for more.
        return answer


def garbage(address: str, content: bytes, seconds: float = 1.0) -> None:
    """Sends bytes and looks at nothing."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), seconds) as connection:
        _answer(connection, content, seconds)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Reader(threading.Thread):
    """Asks for pages one after another, as those do who look at a job, until `stop`."""

    def __init__(self, pages: Sequence[str], seconds: float) -> None:
        super().__init__()
        self.took: dict[str, list[float]] = {page: [] for page in pages}
        self._seconds = seconds
        self._stopped = threading.Event()
        self._failure: OSError | None = None

    def ask(self) -> None:
        """OSError where one is not answered in time, or not well."""
        for page, took in self.took.items():
            begun = time.monotonic()
            with urllib.request.urlopen(page, timeout=self._seconds) as answer:
                answer.read()
            took.append(time.monotonic() - begun)

    def run(self) -> None:
        try:
            while not self._stopped.wait(0.02):  # Between looks.
                self.ask()
        except OSError as failure:
            self._failure = failure

    def stop(self) -> None:
        """OSError of the request that failed, if one has."""
        self._stopped.set()
        self.join()
        if self._failure is not None:
            raise self._failure
