"""What the programs that watch a node share: a daemon with its servers, programs, a browser.

A program that imports this has the arguments WEFT CASE DIRECTORY.
"""

import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import time

WEFT, CASE, PLACE = sys.argv[1:4]
PATIENCE = 30
BYTES = 3_000_000

SERVER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
while True:
    one, _ = listener.accept()
    while data := one.recv(65536):
        one.sendall(data)
    one.close()
"""

# Sends turn by turn until it is told to end, and says how many bytes went each way.
CLIENT = """
import os, socket, sys
one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
least, moved = int(sys.argv[2]), 0
while moved < least or sys.argv[3] != "-" and not os.path.exists(sys.argv[3]):
    one.sendall(b"x" * 10000)
    left = 10000
    while left:
        left -= len(one.recv(left))
    moved += 10000
one.close()
print(moved, flush=True)
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def weft(*words, check=True):
    done = subprocess.run([WEFT, *words], capture_output=True, text=True, timeout=60)
    assert not check or done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
    return done


def await_that(what, looks):
    start = time.monotonic()
    while True:
        seen = looks()
        if seen:
            return seen
        assert time.monotonic() - start < PATIENCE, f"not {what}"
        time.sleep(0.05)


class Servers:
    """The metrics and the dashboard of a daemon."""

    def __init__(self):
        self.metrics, self.dash = free_port(), free_port()

    def options(self):
        return {"metrics-listen": f"127.0.0.1:{self.metrics}",
                "dash-listen": f"127.0.0.1:{self.dash}"}

    def get(self, path, port=None, host=None, method="GET", headers=(), body=None):
        one = http.client.HTTPConnection("127.0.0.1", port or self.metrics, timeout=PATIENCE)
        one.putrequest(method, path, skip_host=host is not None)
        if host is not None:
            one.putheader("Host", host)
        for name, value in headers:
            one.putheader(name, value)
        if body is not None:
            one.putheader("Content-Length", str(len(body)))
        one.endheaders(body)
        answer = one.getresponse()
        return answer.status, answer.read().decode()

    def values(self):
        """The metrics: name and labels to value."""
        status, text = self.get("/metrics")
        assert status == 200 and text.endswith("# EOF\n"), text[:200]
        found = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found


class Daemon(Servers):
    """A daemon with both servers."""

    def __init__(self, *words):
        told = "cannot listen"
        # Another case may have taken a port since it was free.
        while "cannot listen" in told:
            super().__init__()
            listen = [word for name, value in self.options().items()
                      for word in (f"--{name}", value)]
            self.process = subprocess.Popen([WEFT, "daemon", *listen, *words],
                                            stderr=subprocess.PIPE, text=True)
            told = ""
            for line in self.process.stderr:
                if "ready at" in line:
                    return
                told += line
        raise AssertionError(f"the daemon ended: {told}")


class Programs:
    """An echo server under weft or not, and clients under weft."""

    def __init__(self, under):
        self.port = free_port()
        before = [WEFT, "run", "--"] if under else []
        self.server = subprocess.Popen(
            [*before, sys.executable, "-c", SERVER, str(self.port)],
            stdout=subprocess.PIPE, text=True)
        self.server.stdout.readline()

    def client(self, least, until="-"):
        return subprocess.Popen(
            [WEFT, "run", "--", sys.executable, "-c", CLIENT, str(self.port), str(least), until],
            stdout=subprocess.PIPE, text=True)

    def end(self):
        self.server.kill()
        self.server.wait()


def summed(values, name, **labels):
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(value for key, value in values.items()
               if key.startswith(name + "{") and all(one in key for one in wanted))


def of_totals(status, field):
    return sum(total["streams"][field] for total in status["totals"])


class Browser:
    """A browser without a screen, told what to do by a pipe."""

    def __init__(self):
        read_in, self.to = os.pipe()
        self.of, write_out = os.pipe()

        def take():
            os.dup2(read_in, 3)
            os.dup2(write_out, 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={PLACE}/profile",
             "--remote-debugging-pipe", "about:blank"],
            preexec_fn=take, pass_fds=(3, 4), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, "HOME": PLACE})
        os.close(read_in)
        os.close(write_out)
        self.messages, self.rest, self.number, self.session = [], b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def receive(self):
        while b"\0" not in self.rest:
            more = os.read(self.of, 1 << 20)
            assert more, "the browser ended"
            self.rest += more
        one, _, self.rest = self.rest.partition(b"\0")
        return json.loads(one)

    def call(self, method, **params):
        self.number += 1
        said = {"id": self.number, "method": method, "params": params}
        if self.session:
            said["sessionId"] = self.session
        os.write(self.to, json.dumps(said).encode() + b"\0")
        while True:
            message = self.receive()
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self.messages.append(message)

    def size(self, width, height, phone):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=phone)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def value(self, script):
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return told["result"].get("value")

    def picture(self, name):
        told = self.call("Page.captureScreenshot", format="png")
        with open(os.path.join(PLACE, name), "wb") as out:
            out.write(base64.b64decode(told["data"]))

    def has_no_fault(self, own):
        """Nothing failed in the page, and nothing was loaded from elsewhere."""
        faults = [one for one in self.messages if one.get("method") == "Runtime.exceptionThrown"
                  or one.get("method") == "Log.entryAdded"
                  and one["params"]["entry"]["level"] == "error"]
        assert not faults, faults
        asked = {one["params"]["request"]["url"] for one in self.messages
                 if one.get("method") == "Network.requestWillBeSent"}
        assert own in asked and all(url.startswith((own, "about:", "data:")) for url in asked), asked

    def end(self):
        self.process.kill()
        self.process.wait()
