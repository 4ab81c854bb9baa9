"""A Hub on loopback, as small as an upload needs: accounts, repositories, commits, large files."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MiniHub:
    """Holds repositories in memory; `files["user/name"]` maps paths to contents, `calls` lists what was asked.

    A path in `refuse` is answered with 400 when it is committed.
    """

    def __init__(self, token, refuse=()):
        self.token, self.refuse = token, set(refuse)
        self.files, self.blobs, self.calls, self.commits = {}, {}, [], 0
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, code, value, content_type="application/json"):
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def handle_request(self):
        path, data = self.path.partition("?")[0], self.body()
        self.hub.calls.append(f"{self.command} {path}")
        if path == "/api/validate-yaml":
            # The client asks without a token before it uploads a card.
            return self.answer(200, {"errors": [], "warnings": []})
        if not path.startswith("/_lfs/") and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self.answer(401, {"error": "Invalid username or password."})
        for pattern, action in (
            (r"/api/whoami-v2", self.whoami),
            (r"/api/repos/create", self.create),
            (r"/api/models/([^/]+/[^/]+)/preupload/main", self.preupload),
            (r"/api/models/([^/]+/[^/]+)/commit/main", self.commit),
            (r"/api/models/([^/]+/[^/]+)(?:/revision/main)?", self.info),
            (r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", self.large_files),
            (r"/_lfs/([0-9a-f]{64})", self.store),
        ):
            match = re.fullmatch(pattern, path)
            if match:
                return action(data, *match.groups())
        return self.answer(404, {"error": f"no route {path}"})

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def whoami(self, data):
        self.answer(200, {"type": "user", "name": "tester", "orgs": []})

    def create(self, data):
        wanted = json.loads(data)
        name = f"{wanted.get('organization') or 'tester'}/{wanted['name']}"
        if name in self.hub.files:
            return self.answer(409, {"error": "exists", "url": f"{self.hub.url}/{name}"})
        self.hub.files[name] = {}
        return self.answer(200, {"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def info(self, data, name):
        self.answer(200, {"id": name, "sha": f"{self.hub.commits:040x}", "siblings": [], "private": False})

    def preupload(self, data, name):
        files = json.loads(data)["files"]
        mode = {True: "lfs", False: "regular"}
        self.answer(
            200,
            {
                "files": [
                    {"path": f["path"], "uploadMode": mode[f["path"].endswith(".safetensors")], "shouldIgnore": False}
                    for f in files
                ]
            },
        )

    def large_files(self, data, name):
        objects = [
            {**item, "actions": {"upload": {"href": f"{self.hub.url}/_lfs/{item['oid']}", "header": {}}}}
            for item in json.loads(data)["objects"]
        ]
        self.answer(200, {"transfer": "basic", "objects": objects}, "application/vnd.git-lfs+json")

    def store(self, data, oid):
        assert hashlib.sha256(data).hexdigest() == oid
        self.hub.blobs[oid] = data
        self.answer(200, {})

    def commit(self, data, name):
        changes = {}
        for line in data.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                changes[value["path"]] = self.hub.blobs[value["oid"]]
        if self.hub.refuse & set(changes):
            return self.answer(400, {"error": "Invalid metadata in README.md."})
        self.hub.files[name].update(changes)
        self.hub.commits += 1
        oid = f"{self.hub.commits:040x}"
        return self.answer(
            200, {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}"}
        )
