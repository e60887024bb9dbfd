"""A stand-in hub on loopback: serves a directory as a model repository, misbehaves on request, logs every request.

It speaks what huggingface_hub needs: the model's description with its files' metadata, and ``resolve``, which answers
small files itself and redirects LFS files to a store, as the real hub does (headers that offer Xet included).
"""

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, Self
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Route = Literal["info", "resolve", "body"]


@dataclass
class Fault:
    """One way to misbehave, the next ``times`` times that ``route`` is asked for ``file`` ("" is any).

    ``status`` answers with an error. For a body: ``truncate`` declares and sends only ``at`` bytes, ``cut`` declares
    all and closes after ``at``, ``reset`` does so with a TCP reset, ``stall`` waits there for the hub to close, and
    ``flip`` sends all with the byte ``at`` changed.
    """

    route: Route
    file: str = ""
    times: int = 1
    status: int = 0
    code: str = ""
    retry_after: str = ""
    body: Literal["", "truncate", "cut", "reset", "stall", "flip"] = ""
    at: int = 0


@dataclass
class Request:
    """What was asked: ``range`` is the Range header or empty."""

    method: str
    route: str
    file: str
    range: str = ""


@dataclass
class StandinHub:
    """The repository ``repository`` at ``COMMIT``, also named by the branch ``main``, made of a directory's files."""

    directory: Path
    repository: str = "someone/tiny"
    faults: list[Fault] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)
    is_lfs: Callable[[str], bool] = lambda name: name.endswith(".safetensors") or name == "tokenizer.json"
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> Self:
        hub = self

        class Handler(_Handler):
            standin = hub

        self.guard, self.closing = threading.Lock(), threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def files(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.name not in self.hidden)

    def fault(self, route: Route, file: str, kinds: Literal["status", "body"]) -> Fault | None:
        """The first fault that applies, counted down."""
        with self.guard:
            for fault in self.faults:
                is_kind = bool(fault.status) == (kinds == "status")
                if is_kind and fault.route == route and fault.file in ("", file) and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def asked(self, route: str, file: str | None = None, method: str = "GET") -> list[Request]:
        """The logged requests of a route (for a file)."""
        return [r for r in self.requests if (r.route, r.method) == (route, method) and file in (None, r.file)]

    def bodies(self, file: str) -> list[Request]:
        """The requests for a file's content, wherever it is served."""
        return self.asked("body" if self.is_lfs(file) else "resolve", file)


class _Handler(BaseHTTPRequestHandler):
    standin: StandinHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Keep stderr for the tests."""

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def _route(self) -> None:
        path, repository = unquote(urlsplit(self.path).path), re.escape(self.standin.repository)
        if found := re.fullmatch(rf"/api/models/{repository}(?:/revision/(.+))?", path):
            self._info(found[1] or "main")
        elif found := re.fullmatch(rf"/{repository}/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2])
        elif found := re.fullmatch(r"/store/(.+)", path):
            self._log("body", found[1])
            if not self._failed("body", found[1]):
                self._body("body", found[1], {})
        else:
            self._log("unknown", path)
            self._error(404, "RepoNotFound")

    def _log(self, route: str, file: str) -> None:
        with self.standin.guard:
            self.standin.requests.append(Request(self.command, route, file, self.headers.get("Range", "")))

    def _failed(self, route: Route, file: str) -> bool:
        fault = self.standin.fault(route, file, "status")
        if fault:
            self._error(fault.status, fault.code, fault.retry_after)
        return fault is not None

    def _error(self, status: int, code: str = "", retry_after: str = "") -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": f"stand-in: {code or status}", "Retry-After": retry_after}
        self._start(status, {name: value for name, value in headers.items() if value}, 0)

    def _start(self, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def _info(self, revision: str) -> None:
        self._log("info", revision)
        if self._failed("info", revision):
            return
        if revision not in (COMMIT, "main"):
            self._error(404, "RevisionNotFound")
            return
        siblings = [self._sibling(name) for name in self.standin.files()]
        answer = json.dumps({"id": self.standin.repository, "sha": COMMIT, "siblings": siblings}).encode()
        self._start(200, {"Content-Type": "application/json"}, len(answer))
        self.wfile.write(answer)

    def _sibling(self, name: str) -> dict[str, object]:
        content = (self.standin.directory / name).read_bytes()
        sibling: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": _oid(content)}
        if self.standin.is_lfs(name):
            sha256 = hashlib.sha256(content).hexdigest()
            sibling["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 135}
        return sibling

    def _resolve(self, revision: str, name: str) -> None:
        self._log("resolve", name)
        if self._failed("resolve", name):
            return
        if revision not in (COMMIT, "main"):
            self._error(404, "RevisionNotFound")
        elif name not in self.standin.files():
            self._error(404, "EntryNotFound")
        elif self.standin.is_lfs(name):
            content = (self.standin.directory / name).read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            xet = {"X-Xet-Hash": sha256, "X-Xet-Refresh-Route": "/api/xet-read-token"}
            linked = {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
            self._start(302, {"Location": f"/store/{name}", "X-Repo-Commit": COMMIT, **linked, **xet}, 0)
        else:
            oid = _oid((self.standin.directory / name).read_bytes())
            self._body("resolve", name, {"ETag": f'"{oid}"', "X-Repo-Commit": COMMIT})

    def _body(self, route: Route, name: str, headers: dict[str, str]) -> None:
        content = (self.standin.directory / name).read_bytes()
        fault = self.standin.fault(route, name, "body") if self.command == "GET" else None
        if fault and fault.body == "flip":
            content = content[: fault.at] + bytes([content[fault.at] ^ 1]) + content[fault.at + 1 :]
        total, start = len(content), 0
        if fault and fault.body == "truncate":
            content = content[: fault.at]
        if found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(found[1])
            if start >= total:
                self._error(416)
                return
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{total}"
        part = memoryview(content)[start:]
        self._start(206 if found else 200, headers, len(part))
        if self.command == "HEAD":
            return
        if fault and fault.body in ("cut", "reset", "stall"):
            self._break(part[: fault.at - start], fault.body)
        else:
            with contextlib.suppress(ConnectionError):
                self.wfile.write(part)

    def _break(self, part: memoryview, how: str) -> None:
        self.close_connection = True
        with contextlib.suppress(ConnectionError):
            self.wfile.write(part)
        if how == "stall":
            self.standin.closing.wait(30)
        if how == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
