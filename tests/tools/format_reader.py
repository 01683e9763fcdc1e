"""Reads recon's snapshots and push logs by what common/snapshot/FORMAT.md and server/durability/LOG.md say, and by
nothing else: a second implementation that shows the two pages are enough to write one."""

import pathlib
import struct

import xxhash
import zstandard

PAGE = 65_536 * 4


def xxh3(*parts):
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.intdigest()


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """A protobuf message as {field number: [values]}: numbers, or bytes for strings and messages."""
    out, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = {1: (8, at), 5: (4, at)}.get(key & 7) or varint(data, at)
            value, at = data[at:at + size], at + size
        out.setdefault(key >> 3, []).append(value)
    return out


def number(message, field):
    return message.get(field, [0])[0]


class Snapshot:
    """One generation: manifest fields, and the raw bytes of every (shard, role) in `chunks`."""

    def __init__(self, directory, generation):
        directory = pathlib.Path(directory)
        data = (directory / f"manifests/MANIFEST-{generation:016x}").read_bytes()
        magic, version, length = struct.unpack_from("<8sIQ", data)
        assert magic == b"RCNMANIF" and version == 1 and length == len(data) - 28
        assert struct.unpack_from("<Q", data, len(data) - 8)[0] == xxh3(data[:-8])
        manifest = fields(data[20:-8])
        self.sequence, self.root = number(manifest, 3), number(manifest, 12)
        self.log_from = number(manifest, 14) or self.sequence + 1
        packs = [(directory / fields(pack)[1][0].decode()).read_bytes() for pack in manifest[9]]
        self.chunks, roots = {}, b""
        for entry in map(fields, manifest[11]):
            shard, role, offset = number(entry, 1), number(entry, 2), number(entry, 4)
            raw = self.chunk(packs[number(entry, 3)][offset:offset + number(entry, 5)], shard, role, number(entry, 6))
            for page, expected in enumerate(entry[7]):
                digest = xxhash.xxh3_128(raw[page * PAGE:(page + 1) * PAGE]).digest()
                assert digest == expected, f"shard {shard} role {role} page {page}"
                roots += struct.pack("<III", shard, role, page) + digest
            self.chunks[shard, role] = raw
        assert xxhash.xxh3_128(roots).digest() == self.root

    @staticmethod
    def chunk(data, shard, role, raw_bytes):
        head = struct.unpack_from("<4sHHIIQQQQ", data)
        assert head[0] == b"RCNK" and head[1] == 1 and head[3:5] == (shard, role) and head[6] == raw_bytes
        payload = data[48:]
        assert len(payload) == head[7]
        zeroed = data[:40] + bytes(8)
        assert head[8] == xxh3(struct.pack("<QQ", xxh3(zeroed), xxh3(payload)))
        if head[2] == 0:
            return payload
        planes = zstandard.ZstdDecompressor().decompress(payload, max_output_size=raw_bytes)
        raw = bytearray(raw_bytes)
        for plane in range(4):
            raw[plane::4] = planes[plane * raw_bytes // 4:(plane + 1) * raw_bytes // 4]
        return bytes(raw)


def log_records(directory, first):
    """(sequence, kind, payload) from record `first` on, to the end of the log."""
    segments = sorted(pathlib.Path(directory).glob("LOG-" + "[0-9a-f]" * 16))
    expected = None
    for segment in segments:
        data, begins = segment.read_bytes(), int(segment.name[4:], 16)
        if expected is not None and begins != expected:
            return
        magic, version, length = struct.unpack_from("<8sII", data)
        assert magic == b"RCNPLOG\0" and version == 1
        assert struct.unpack_from("<Q", data, 16 + length)[0] == xxh3(data[:16 + length])
        at, expected = (16 + length + 8 + 7) // 8 * 8, begins
        while at + 32 <= len(data):
            size, kind, zero, sequence, acknowledged, checksum = struct.unpack_from("<IB3sQQQ", data, at)
            payload = data[at + 32:at + 32 + size]
            if size == 0 or sequence != expected or checksum != xxh3(data[at:at + 24], payload):
                break
            assert zero == bytes(3) and kind in (1, 2) and acknowledged < sequence
            if sequence >= first:
                yield sequence, kind, payload
            at, expected = at + (32 + size + 7) // 8 * 8, sequence + 1
