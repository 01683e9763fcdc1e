"""Reads recon's snapshots and push logs by what common/snapshot/FORMAT.md and server/durability/LOG.md say, and by
nothing else: a second implementation that shows the two pages are enough to write one."""

import pathlib
import struct

import numpy
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


def packed(message, field):
    """A packed repeated field of numbers."""
    data, at, out = b"".join(message.get(field, [])), 0, []
    while at < len(data):
        value, at = varint(data, at)
        out.append(value)
    return out


def number(message, field):
    return message.get(field, [0])[0]


def signed(value):
    return value >> 1 ^ -(value & 1)


class Snapshot:
    """One generation: manifest fields, and the raw bytes of every (shard, role) in `chunks`."""

    def __init__(self, directory, generation):
        directory = pathlib.Path(directory)
        data = (directory / f"manifests/MANIFEST-{generation:016x}").read_bytes()
        magic, version, length = struct.unpack_from("<8sIQ", data)
        assert magic == b"RCNMANIF" and version == 5 and length == len(data) - 28
        assert struct.unpack_from("<Q", data, len(data) - 8)[0] == xxh3(data[:-8])
        manifest = fields(data[20:-8])
        self.sequence, self.root = number(manifest, 3), number(manifest, 12)
        self.log_from = number(manifest, 14) or self.sequence + 1
        self.control = fields(number(manifest, 16)) if 16 in manifest else {}
        names = [fields(pack)[1][0].decode() for pack in manifest[9]]
        packs = [(directory / name).read_bytes() for name in names]
        self.chunks, roots = {}, b""
        for entry in map(fields, manifest[11]):
            shard, role, raw = number(entry, 1), number(entry, 2), b""
            places = zip(entry[4], packed(entry, 5), packed(entry, 6), packed(entry, 7))
            for page, (expected, pack, offset, size) in enumerate(places):
                written = int(names[pack].split("-")[1], 16)
                left = number(entry, 3) - len(raw)
                values = self.page(packs[pack][offset:offset + size], (shard, role, page), written, min(left, PAGE))
                digest = xxhash.xxh3_128(values).digest()
                assert digest == expected, f"shard {shard} role {role} page {page}"
                roots += struct.pack("<III", shard, role, page) + digest
                raw += values
            assert len(raw) == number(entry, 3)
            self.chunks[shard, role] = raw
        assert xxhash.xxh3_128(roots).digest() == self.root

    @staticmethod
    def page(data, place, generation, raw_bytes):
        head = struct.unpack_from("<4sBBHIIIIIIQQ", data)
        assert head[:2] == (b"RCNP", 2) and head[3] == head[9] == 0
        assert head[4:7] == place and head[7] == raw_bytes and head[10] == generation
        payload = data[48:]
        assert len(payload) == head[8]
        assert head[11] == xxh3(struct.pack("<QQ", xxh3(data[:40] + bytes(8)), xxh3(payload)))
        if head[2] == 0:
            return payload
        words, at = 0, 32
        for plane in range(4):
            size, code = struct.unpack_from("<IB", payload, 8 * plane)
            stored = payload[at:at + size]
            at += size
            if code == 1:
                stored = zstandard.ZstdDecompressor().decompress(stored, max_output_size=raw_bytes // 4)
            words = words | numpy.frombuffer(stored, numpy.uint8).astype(numpy.uint32) << 8 * plane
        assert at == len(payload)
        return (words >> 1 | words << 31).astype("<u4").tobytes()


def control_state(snapshot, records):
    """Workers' numbers, and (kind, data epoch, split) -> (begin, end, worker, ms) of completed splits: those of the
    snapshot, then those of the log's records."""
    control, splits = snapshot.control, {}
    workers = {w[1][0].decode(): number(w, 2) for w in map(fields, control.get(2, []))}
    processes = [number(fields(process), 1).decode() for process in control.get(3, [])]
    for entry in map(fields, control.get(4, [])):
        split, end, ms = -1, 0, 0
        columns = [packed(entry, field) for field in (3, 4, 5, 6, 7)]
        assert len(set(map(len, columns))) == 1
        for gap, begin_gap, samples, process, ms_gap in zip(*columns):
            split, begin, ms = split + 1 + gap, end + signed(begin_gap), ms + signed(ms_gap)
            end = begin + samples
            splits[number(entry, 1), number(entry, 2), split] = (begin, end, processes[process], ms)
    for _, kind, payload in records:
        if kind != 3:
            continue
        record = fields(payload)
        if 1 in record:
            worker = fields(record[1][0])
            workers[worker[1][0].decode()] = number(worker, 2)
        elif 2 in record:
            done = fields(record[2][0])
            key = number(done, 1), number(done, 2), number(done, 3)
            assert key not in splits
            splits[key] = number(done, 4), number(done, 5), done[6][0].decode(), number(done, 8)
    return {"workers": workers, "splits": splits}


def log_records(directory, first):
    """(sequence, kind, payload) from record `first` on, to the end of the log."""
    segments = sorted(pathlib.Path(directory).glob("LOG-" + "[0-9a-f]" * 16))
    expected = None
    for segment in segments:
        data, begins = segment.read_bytes(), int(segment.name[4:], 16)
        if expected is not None and begins != expected:
            return
        magic, version, length = struct.unpack_from("<8sII", data)
        assert magic == b"RCNPLOG\0" and version == 3
        assert struct.unpack_from("<Q", data, 16 + length)[0] == xxh3(data[:16 + length])
        at, expected = (16 + length + 8 + 7) // 8 * 8, begins
        while at + 32 <= len(data):
            size, kind, zero, sequence, acknowledged, checksum = struct.unpack_from("<IB3sQQQ", data, at)
            payload = data[at + 32:at + 32 + size]
            if size == 0 or sequence != expected or checksum != xxh3(data[at:at + 24], payload):
                break
            assert zero == bytes(3) and kind in (1, 2, 3, 4) and acknowledged < sequence
            if sequence >= first:
                yield sequence, kind, payload
            at, expected = at + (32 + size + 7) // 8 * 8, sequence + 1
