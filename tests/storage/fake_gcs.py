"""A server that TensorFlow's own gs:// client takes for Google Cloud Storage.

It is reached as a proxy: the client asks for a tunnel to www.googleapis.com and finds this server
at its end, with a certificate that the environment makes it trust. Objects are files below a
folder, so that a test can look at them; one is there when its upload has ended, never in part.
"""

import contextlib
import email.utils
import json
import os
import pathlib
import random
import socketserver
import ssl
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

HOSTS = ("www.googleapis.com", "storage.googleapis.com")


class FakeGcs:
    """The objects, and how often the server is busy.

    Attributes:
      folder: `<folder>/<bucket>/<object>`; a bucket is a folder that is there.
      busy: The share of requests that are answered with 503, of which TensorFlow tries again.
      requests: The requests so far, "GET /storage/v1/..." each.
      environment: What a process needs to come here.
    """

    def __init__(self, folder: pathlib.Path, busy: float = 0.0):
        self.folder, self.busy = folder, busy
        self.requests: list[str] = []
        self.environment: dict[str, str] = {}
        self.uploads: dict[str, tuple[str, pathlib.Path]] = {}
        self.lock = threading.Lock()
        self.rng = random.Random(0)

    def place(self, bucket: str, name: str) -> pathlib.Path:
        return self.folder / bucket / name

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """Makes an object, which nobody sees half."""
        path = self.place(bucket, name)
        with self.lock:
            number = len(self.requests)
            part = self.folder / f".upload-{threading.get_ident()}-{number}"
            part.write_bytes(content)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, path)

    def names(self, bucket: str, prefix: str) -> list[str]:
        root = self.folder / bucket
        names = (p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
        return sorted(name for name in names if name.startswith(prefix))


def _handler(store: FakeGcs) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            return

        def _begin(self) -> bool:
            """Takes the body; returns whether to answer."""
            if self.headers.get("Transfer-Encoding") == "chunked":  # whatever Content-Length says
                self.body = b""
                while size := int(self.rfile.readline(), 16):
                    self.body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            store.requests.append(f"{self.command} {self.path}")
            if store.rng.random() < store.busy:
                self._answer(503, {"error": "busy"})
                return False
            return True

        def _answer(self, status, content=b"", headers=()):
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in dict(headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _object(self):
            """Bucket, object or None, and the arguments of the address."""
            address = urllib.parse.urlsplit(self.path)
            arguments = dict(urllib.parse.parse_qsl(address.query))
            parts = address.path.split("/")
            if parts[1] in ("storage", "upload", "session"):  # .../b/<bucket>/o/<object>
                parts = parts[parts.index("b") + 1 :]
                name = urllib.parse.unquote("/".join(parts[2:])) or None
                return parts[0], name, arguments
            return parts[1], urllib.parse.unquote("/".join(parts[2:])), arguments

        def do_GET(self):
            if not self._begin():
                return
            bucket, name, arguments = self._object()
            if not (store.folder / bucket).is_dir():
                self._answer(404, {"error": "no such bucket"})
            elif name is None and urllib.parse.urlsplit(self.path).path.endswith(f"/b/{bucket}"):
                self._answer(200, {"name": bucket})
            elif name is None:
                self._list(bucket, arguments)
            else:
                self._read(bucket, name)

        def _list(self, bucket, arguments):
            prefix, delimiter = arguments.get("prefix", ""), arguments.get("delimiter")
            items, prefixes = [], set()
            for name in store.names(bucket, prefix):
                rest = name[len(prefix) :]
                if delimiter and delimiter in rest:
                    prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
                else:
                    items.append({"name": name, "size": "0", "updated": "2020-01-01T00:00:00.0Z"})
            limit = int(arguments.get("maxResults", 1000))
            self._answer(200, {"items": items[:limit], "prefixes": sorted(prefixes)[:limit]})

        def _read(self, bucket, name):
            try:
                content = store.place(bucket, name).read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                self._answer(404, {"error": "no such object"})
                return
            if "/storage/v1/" in self.path:
                now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
                about = {"name": name, "size": str(len(content)), "generation": "1", "updated": now}
                self._answer(200, about)
                return
            wanted = self.headers.get("Range", "").removeprefix("bytes=")
            if not wanted:
                self._answer(200, content)
                return
            start, _, end = wanted.partition("-")
            part = content[int(start) : int(end) + 1 if end else None]
            if not part:
                self._answer(416)
                return
            which = f"bytes {start}-{int(start) + len(part) - 1}/{len(content)}"
            self._answer(206, part, {"Content-Range": which, "Date": email.utils.formatdate()})

        def do_POST(self):
            if not self._begin():
                return
            bucket, _, arguments = self._object()
            if not (store.folder / bucket).is_dir():
                self._answer(404, {"error": "no such bucket"})
                return
            if arguments.get("uploadType") == "resumable":
                session = f"/session/b/{bucket}/o/{urllib.parse.quote(arguments['name'], safe='')}"
                self._answer(200, headers={"Location": f"https://{HOSTS[0]}{session}"})
                return
            store.put(bucket, arguments["name"], self.body)
            self._answer(200, {"name": arguments["name"]})

        def do_PUT(self):
            if not self._begin():
                return
            bucket, name, _ = self._object()
            if self.headers.get("Content-Range", "").startswith("bytes */") and not self.body:
                if not self.headers["Content-Range"].endswith("/0"):
                    self._answer(308)  # how far is it? nothing was kept
                    return
            store.put(bucket, name, self.body)
            self._answer(200, {"name": name})

        def do_DELETE(self):
            if not self._begin():
                return
            bucket, name, _ = self._object()
            try:
                store.place(bucket, name).unlink()
                self._answer(204)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                self._answer(404, {"error": "no such object"})

    return Handler


@contextlib.contextmanager
def serve(folder: pathlib.Path, busy: float = 0.0) -> Iterator[FakeGcs]:
    """Runs the server; see `FakeGcs`."""
    store = FakeGcs(folder / "objects", busy)
    store.folder.mkdir(parents=True)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    names = ",".join(f"DNS:{host}" for host in HOSTS)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        + ["-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2"]
        + ["-subj", f"/CN={HOSTS[0]}", "-addext", f"subjectAltName={names}"],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    handler = _handler(store)

    class Tunnel(socketserver.StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass  # CONNECT www.googleapis.com:443 and its headers
            self.connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            # A killed client goes away in the middle of whatever it does.
            with contextlib.suppress(OSError):
                with context.wrap_socket(self.connection, server_side=True) as secure:
                    handler(secure, self.client_address, self.server)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, allow_reuse_address = True, True

    with Server(("127.0.0.1", 0), Tunnel) as server:
        store.environment = {
            "https_proxy": f"http://127.0.0.1:{server.server_address[1]}",
            "no_proxy": "",
            "CURL_CA_BUNDLE": str(certificate),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000",
            "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "20000",
        }
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()
