"""A web server that gives every request the same response, which the test may change."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs


class WebServer:
    """Gives every request the same response."""

    def __init__(self, path: str = "/") -> None:
        self.status = 200
        self.answer: Any = b""
        """Bytes, or a value that is sent as JSON."""
        self.headers: dict[str, str] = {}
        self.delay_s = 0.0
        self.asked: list[tuple[dict[str, str], dict[str, list[str]]]] = []
        """Headers and form of every request."""
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                form = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                web.asked.append((dict(self.headers), parse_qs(form)))
                time.sleep(web.delay_s)
                self.send_response(web.status)
                for name, value in web.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                answer = web.answer
                with contextlib.suppress(OSError):
                    self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}{path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
