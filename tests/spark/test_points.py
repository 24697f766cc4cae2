"""What the tests of crashes rely on: whoever is killed is the one that is meant."""

import os
import socket
import subprocess
import sys

from support.faults.spark_points import connected

CONNECT = """
import socket, sys
each = socket.socket()
each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
each.bind(("127.0.0.1", int(sys.argv[1])))
each.connect(("127.0.0.1", int(sys.argv[2])))
print("connected", flush=True)
sys.stdin.read()
"""


def test_a_process_is_found_by_both_ends_of_its_connection() -> None:
    """Linux gives the same port to connections to different peers, also of different processes."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ours = socket.socket()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("127.0.0.1", 0))
        ours.connect(one.getsockname())
        port, to_one, to_other = (each.getsockname()[1] for each in (ours, one, other))
        command = [sys.executable, "-c", CONNECT, str(port), str(to_other)]
        with (
            ours,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as theirs,
        ):
            assert theirs.stdout is not None
            assert theirs.stdout.readline() == "connected\n"
            assert connected(port, to_one).pid == os.getpid()
            assert connected(port, to_other).pid == theirs.pid
            theirs.communicate("")
