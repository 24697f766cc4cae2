"""Frames come as they were sent, however the socket cuts them; the room of a large one is used again."""

import random
import socket
import struct
import threading

import pytest

from semel.client.net import connection
from semel.client.net.connection import LARGE_BYTES, ROOM_BYTES_MAX, FrameReceiver
from semel.wire.errors import ProtocolError

LARGE = LARGE_BYTES + connection.PIECE_BYTES


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class Sent:
    """A socket that gives what was sent, in pieces of any size."""

    def __init__(self, data: bytes, largest: int, seed: int = 0) -> None:
        self._data = memoryview(data)
        self._largest = largest
        self._random = random.Random(seed)
        self.in_place = 0

    def recv(self, size: int) -> bytes:
        count = self._random.randint(1, min(size, self._largest))
        piece, self._data = self._data[:count], self._data[count:]
        return bytes(piece)

    def recv_into(self, buffer: memoryview) -> int:
        piece = self.recv(len(buffer))
        buffer[: len(piece)] = piece
        self.in_place += len(piece)
        return len(piece)


def received(receiver: FrameReceiver, source: Sent) -> list[bytes]:
    found: list[bytes] = []
    while (frames := receiver.receive(source)) is not None:  # type: ignore[arg-type]
        found += map(bytes, frames)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_frames_of_every_size_in_pieces_of_any(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((0, 1, 5, 1000, LARGE_BYTES - 1, LARGE, 2 * LARGE)) for _ in range(12)]
    payloads = [chance.randbytes(size) for size in sizes]
    source = Sent(b"".join(map(frame, payloads)), chance.choice((70_000, 300_000, 2**22)), seed)
    assert received(FrameReceiver(2**22), source) == payloads


def test_a_large_frame_is_received_in_place() -> None:
    payload = random.Random(1).randbytes(10 * LARGE)
    source = Sent(frame(payload), connection.PIECE_BYTES)
    assert received(FrameReceiver(2**24), source) == [payload]
    assert source.in_place >= 9 * LARGE


def _one(receiver: FrameReceiver, payload: bytes) -> memoryview:
    source = Sent(frame(payload), 2**30)
    while True:
        frames = receiver.receive(source)  # type: ignore[arg-type]
        assert frames is not None
        if frames:
            return frames[0]


def test_what_somebody_still_reads_is_not_overwritten() -> None:
    receiver = FrameReceiver(2**24)
    first, second = random.Random(2).randbytes(LARGE), random.Random(3).randbytes(LARGE)
    part = _one(receiver, first)[10:1000]
    again = _one(receiver, second)
    assert part == first[10:1000]
    assert again == second
    with pytest.raises(TypeError):
        again[0] = 1


def test_room_that_nobody_reads_is_used_again_also_for_less() -> None:
    receiver = FrameReceiver(2**24)
    _one(receiver, bytes(3 * LARGE))
    room = receiver._kept
    payload = random.Random(4).randbytes(LARGE)
    assert bytes(_one(receiver, payload)) == payload
    assert receiver._kept is room


def test_no_room_is_made_for_more_than_is_likely() -> None:
    receiver = FrameReceiver(2**28)
    source = Sent(struct.pack(">i", ROOM_BYTES_MAX + 2**20) + bytes(100), 2**30)
    while receiver.receive(source) is not None:  # type: ignore[arg-type]
        pass
    assert len(receiver._kept) == 0


def test_a_frame_that_is_too_large_is_refused() -> None:
    with pytest.raises(ProtocolError, match="1000"):
        FrameReceiver(1000).receive(Sent(frame(bytes(LARGE)), 2**30))  # type: ignore[arg-type]


def test_a_real_socket() -> None:
    here, there = socket.socketpair()
    payloads = [random.Random(each).randbytes(each * 200_000) for each in range(8)]
    with here, there:
        sender = threading.Thread(target=there.sendall, args=(b"".join(map(frame, payloads)),))
        sender.start()
        receiver = FrameReceiver(2**24)
        found: list[bytes] = []
        while len(found) < len(payloads):
            frames = receiver.receive(here)
            assert frames is not None
            found += map(bytes, frames)
        sender.join()
        assert found == payloads
        there.close()
        assert receiver.receive(here) is None
