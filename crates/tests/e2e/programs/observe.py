"""What users see of a node: metrics, `weft top`, the dashboard, `weft doctor`, captures.

Usage: observe.py WEFT CASE DIRECTORY
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlencode

from observing import (BYTES, CASE, PATIENCE, PLACE, WEFT, Browser, Daemon, Programs, await_that,
                       free_port, of_totals, summed, weft)


def numbers(daemon):
    """All views show the same numbers, which are those that the programs counted."""
    both, client_alone = Programs(True), Programs(False)
    moved = sum(int(client.communicate(timeout=PATIENCE)[0]) for client in
                [both.client(BYTES) for _ in range(3)] + [client_alone.client(BYTES)])
    both.end()
    client_alone.end()

    def settled():
        status = json.loads(weft("status", "--json").stdout)
        sent = of_totals(status, "fabric_sent") + of_totals(status, "tcp_sent")
        # Each byte of the pairs is sent by both ends, those of the client alone by one.
        return status if sent == moved + 3 * BYTES and not status["processes"] else None

    status = await_that("all bytes counted", settled)
    values = daemon.values()
    top = json.loads(weft("top", "--json", "--count", "1").stdout)
    page = json.loads(daemon.get("/snapshot", daemon.dash)[1])
    for field, medium, direction in [
            ("fabric_sent", "fabric", "sent"), ("fabric_received", "fabric", "received"),
            ("tcp_sent", "tcp", "sent"), ("tcp_received", "tcp", "received")]:
        told = summed(values, "weft_program_stream_bytes_total", medium=medium, direction=direction)
        seen = {of_totals(one, field) for one in (status, top, page)} | {told}
        assert len(seen) == 1, (field, seen)
    assert of_totals(status, "fabric_sent") >= 3 * BYTES, "nothing went over the fabric"
    assert of_totals(status, "tcp_sent") >= BYTES
    reason = summed(values, "weft_program_connections_on_tcp_total", reason="peer_not_weft")
    assert reason == 1, values
    ended = [one for program in status["ended"] for one in program["on_tcp"]]
    assert [one["reason"] for one in ended] == ["peer_not_weft"], ended
    assert ended[0]["addresses"][1] == f"127.0.0.1:{client_alone.port}", ended
    text = weft("status").stdout
    assert "the other end does not run under weft" in text and "peer_not_weft" in text, text
    requests = summed(values, "weft_service_time_seconds_count", service="connections")
    assert requests > 0 and requests == summed(
        values, "weft_service_time_seconds_bucket", service="connections", le="+Inf")


def live(daemon):
    """A program that is killed is counted, and one that runs is seen while it does."""
    programs = Programs(True)
    until = os.path.join(PLACE, "until")
    client = programs.client(BYTES, until)
    seen = await_that("a connection with bytes", lambda: [
        one for one in json.loads(daemon.get("/snapshot", daemon.dash)[1])["connections"]
        if one["bytes_from_client"] > BYTES])
    assert seen[0]["server"].endswith(f":{programs.port}"), seen
    before = daemon.values()
    sent = summed(before, "weft_program_stream_bytes_total", medium="fabric", direction="sent")
    assert sent >= BYTES, before
    client.send_signal(signal.SIGKILL)
    client.wait()
    programs.end()
    await_that("no program", lambda: not json.loads(weft("status", "--json").stdout)["processes"])
    after = daemon.values()
    assert summed(after, "weft_program_stream_bytes_total", medium="fabric", direction="sent") >= sent
    await_that("no connection", lambda: daemon.values()["weft_connections"] == 0)


def hostile(daemon):
    """Requests that are forged, huge, slow or many get no numbers and stop nobody."""
    assert daemon.get("/metrics", host="evil.example")[0] == 421
    assert daemon.get("/snapshot", daemon.dash, host="evil.example:80")[0] == 421
    cross = [("Sec-Fetch-Site", "cross-site")]
    assert daemon.get("/snapshot", daemon.dash, headers=cross)[0] == 401
    assert daemon.get("/metrics", method="POST", body=b"")[0] == 405
    assert daemon.get("/metrics", method="GET", body=b"x" * 100)[0] == 413
    assert daemon.get("/nothing")[0] == 404 and daemon.get("/../../etc/passwd", daemon.dash)[0] == 404
    memory = daemon.values()["weft_daemon_resident_memory_bytes"]

    def raw(data):
        one = socket.create_connection(("127.0.0.1", daemon.metrics))
        one.settimeout(PATIENCE)
        one.sendall(data)
        return one

    def is_closed(one):
        try:
            while one.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    slow = [raw(b"GET /metrics HTTP/1.1\r\nHost: localh") for _ in range(150)]
    huge = raw(b"GET /metrics HTTP/1.1\r\nX: ")
    try:
        for _ in range(1000):
            huge.sendall(b"x" * 65536)
        raise AssertionError("64 MB of a header were taken")
    except ConnectionError:
        pass
    garbage = [raw(os.urandom(500) + b"\r\n\r\n") for _ in range(20)]
    assert all(map(is_closed, garbage))
    # A client that takes nothing.
    idle = [raw(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(20)]
    readers = [raw(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
               for _ in range(80)]
    assert all(map(is_closed, readers))
    programs = Programs(True)
    client = programs.client(BYTES)
    assert int(client.communicate(timeout=PATIENCE)[0]) >= BYTES
    programs.end()
    assert all(map(is_closed, slow)), "slow clients stay"
    grown = daemon.values()["weft_daemon_resident_memory_bytes"] - memory
    assert grown < 32 << 20, f"{grown} bytes more memory"
    del idle


def prometheus(daemon):
    """A real Prometheus scrapes, and evaluates each query of the dashboard and of the alerts."""
    docs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../docs/prometheus")
    rules, board = [os.path.join(docs, name) for name in ("weft-alerts.yml", "weft-grafana.json")]
    text = daemon.get("/metrics")[1]
    # It reads the older form alone, which has another word for a metric without a type.
    older = text.replace("# EOF\n", "").replace(" unknown\n", " untyped\n")
    linted = subprocess.run(["promtool", "check", "metrics"], capture_output=True, text=True,
                            input=older)
    assert linted.returncode in (0, 3), linted.stderr
    port = free_port()
    config = os.path.join(PLACE, "prometheus.yml")
    with open(config, "w") as out:
        out.write(f"global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\n"
                  f"rule_files: ['{os.path.abspath(rules)}']\n"
                  f"scrape_configs: [{{job_name: weft, static_configs: "
                  f"[{{targets: ['127.0.0.1:{daemon.metrics}']}}]}}]\n")
    checked = subprocess.run(["promtool", "check", "config", config], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    both, alone = Programs(True), Programs(False)
    until = os.path.join(PLACE, "until")
    clients = [both.client(BYTES, until), alone.client(BYTES)]
    server = subprocess.Popen(
        ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={PLACE}/data",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"])

    def query(words):
        one = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            one.request("GET", "/api/v1/query?" + urlencode({"query": words}))
            answer = one.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        except (ConnectionError, json.JSONDecodeError):
            return 0, {}

    def result(words):
        return query(words)[1].get("data", {}).get("result", [])

    try:
        sent = 'sum(rate(weft_program_stream_bytes_total{medium="fabric",direction="sent"}[5s]))'
        await_that("a rate", lambda: [one for one in result(sent) if float(one["value"][1]) > 0])
        with open(board) as file:
            panels = json.load(file)["panels"]
        empty = []
        for panel in panels:
            for target in panel["targets"]:
                words = target["expr"].replace("$__rate_interval", "5s")
                words = words.replace("$instance", ".*")
                status, answer = query(words)
                assert status == 200 and answer["status"] == "success", (words, answer)
                if not answer["data"]["result"]:
                    empty.append(panel["title"])
        # This node has no lab, no device, no other host and no endpoint.
        absent = {"Ethernet devices", "Frames that went nowhere", "Links",
                  "Round trips to other hosts", "Bytes of endpoints", "Operations of endpoints",
                  "Credits and stalls of endpoints"}
        assert set(empty) <= absent, set(empty) - absent
        one = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

        def judged():
            one.request("GET", "/api/v1/rules")
            groups = json.loads(one.getresponse().read())["data"]["groups"]
            states = {rule["name"]: rule for group in groups for rule in group["rules"]}
            return states if all(r["health"] == "ok" for r in states.values()) else None

        states = await_that("all rules evaluated", judged)
        assert len(states) >= 8 and states["WeftDaemonDown"]["state"] == "inactive", states
    finally:
        open(until, "w").close()
        server.kill()
        server.wait()
        for client in clients:
            client.wait()
        both.end()
        alone.end()


def terminal(daemon):
    """`weft top` on a terminal of 80 columns and 24 lines; `weft doctor`."""
    both, alone = Programs(True), Programs(False)
    until = os.path.join(PLACE, "until")
    clients = [both.client(BYTES, until), alone.client(BYTES)]
    tmux = ["tmux", "-S", os.path.join(PLACE, "tmux"), "-f", "/dev/null"]

    def run(*words):
        return subprocess.run([*tmux, *words], capture_output=True, text=True, timeout=PATIENCE).stdout

    def shows(*wanted):
        def look():
            text = run("capture-pane", "-p", "-t", "top")
            return text if all(re.search(one, text) for one in wanted) else None
        return await_that(wanted, look)

    run("new-session", "-d", "-s", "top", "-x", "80", "-y", "24", f"{WEFT} top --every 200")
    try:
        port = both.port
        text = shows(rf"127\.0\.0\.1:{port}", r"[1-9]\d* [kM]B/s", r"1 on fabric", "1 fabric 2 tcp")
        assert len(text.splitlines()) == 24 and "q quit" in text, text
        run("send-keys", "-t", "top", "2")
        run("send-keys", "-t", "top", "Enter")
        shows(rf"127\.0\.0\.1:{alone.port}", "because the other end does not run under weft")
        run("send-keys", "-t", "top", "3")
        shows(r"python3.*root|python3")
        run("send-keys", "-t", "top", "/")
        run("send-keys", "-t", "top", "nothing-has-this", "Enter")
        shows('nothing has "nothing-has-this"')
        run("send-keys", "-t", "top", "q")
        await_that("the end of weft top", lambda: not run("list-sessions"))
    finally:
        run("kill-server")
        open(until, "w").close()
        for client in clients:
            client.wait()
        both.end()
        alone.end()
    told = weft("doctor", "--quick", "--json", check=False)
    report = json.loads(told.stdout)
    worst = {"good": 0, "note": 0, "slow": 2, "broken": 3}[report["state"]]
    assert told.returncode == worst, (told.returncode, report["state"])
    names = {check["name"] for check in report["checks"]}
    assert {"cores", "kernel", "sealed memory", "libfabric", "daemon", "metrics.listen"} - names <= {
        "metrics.listen"}, names


def capture(daemon):
    """What a connection carries is read back by tshark, byte by byte."""
    file = os.path.join(PLACE, "capture.pcapng")
    programs = Programs(True)
    writer = subprocess.Popen([WEFT, "capture", "-w", file, "--of", f":{programs.port}", "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "capturing to" in writer.stderr.readline()
    script = (
        "import socket, sys, time\n"
        "one = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "for turn in range(300):\n"
        "    data = (b'%08d' % turn) * (1 if turn % 3 else 500)\n"
        "    one.sendall(data)\n"
        "    left = len(data)\n"
        "    while left:\n"
        "        left -= len(one.recv(left))\n"
        "    time.sleep(0.002)\n"
        "print('sent', flush=True)\n"
        "sys.stdin.read()\n")
    client = subprocess.Popen([WEFT, "run", "--", sys.executable, "-c", script, str(programs.port)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "sent\n"
    time.sleep(0.2)
    client.stdin.close()
    client.wait()
    programs.end()
    time.sleep(0.2)
    writer.send_signal(signal.SIGINT)
    told = json.loads(writer.communicate(timeout=PATIENCE)[0])
    assert os.stat(file).st_mode & 0o077 == 0
    read = subprocess.run(
        ["tshark", "-r", file, "-q", "-z", "follow,tcp,raw,0"], capture_output=True, text=True)
    assert read.returncode == 0, read.stderr
    lines = read.stdout.splitlines()
    to_server = [one.strip() for one in lines if re.fullmatch("[0-9a-f]+", one)]
    to_client = [one.strip() for one in lines if re.fullmatch("\t[0-9a-f]+", one)]
    sent = [bytes.fromhex("".join(some)) for some in (to_server, to_client)]
    whole = b"".join((b"%08d" % turn) * (1 if turn % 3 else 500) for turn in range(300))
    # The capture begins when it sees the connection, so the first turns may be missing. tshark puts
    # a text where the sequence numbers have a gap.
    parts = [re.split(rb"\[\d+ bytes missing in capture file\]\.?\0?", one) for one in sent]
    assert told["bytes"] == sum(len(b"".join(some)) for some in parts), (told, sent)
    assert told["lost_bytes"] + told["bytes"] <= 2 * len(whole), told
    assert all(part in whole for some in parts for part in some), told
    if told["losses"] == 0:
        assert all(len(some[-1]) > len(whole) // 2 for some in parts), (told, list(map(len, sent)))
        assert all(whole.endswith(some[-1]) for some in parts), told
    checked = subprocess.run(["tshark", "-r", file, "-Y", "_ws.malformed"], capture_output=True,
                             text=True)
    assert checked.returncode == 0 and not checked.stdout, checked.stdout
    strange = subprocess.run([WEFT, "capture", "-w", "/nonexistent/x"], capture_output=True, text=True)
    assert strange.returncode == 1 and "cannot be written" in strange.stderr, strange.stderr


def dashboard(daemon):
    """A browser loads the dashboard, and shows what goes on."""
    programs = Programs(True)
    until = os.path.join(PLACE, "until")
    client = programs.client(BYTES, until)
    browser = Browser()
    try:
        browser.size(1440, 900, False)
        began = time.monotonic()
        own = f"http://127.0.0.1:{daemon.dash}/"
        browser.open(own)
        row = "document.querySelector('#connections td')?.textContent ?? ''"
        await_that("the connection", lambda: "127.0.0.1" in (browser.value(row) or ""))
        took = time.monotonic() - began
        rate = "document.querySelector('#connections td:nth-child(5)')?.textContent ?? ''"
        await_that("its rate", lambda: re.match(r"[1-9]\d* ", browser.value(rate) or ""))
        browser.value("document.querySelector('#connections tr').click()")
        await_that("its plot",
                   lambda: browser.value("!document.getElementById('connection').hidden"))
        assert browser.value("document.querySelectorAll('canvas').length") >= 3
        turns = ("echarts.getInstanceByDom(document.getElementById('turns'))?.getOption()"
                 ".series[0].data.some((one) => one[1] > 0) ?? false")
        await_that("its turns", lambda: browser.value(turns))
        links = browser.value("document.getElementById('links').textContent")
        assert "programs that talk" in links, links
        browser.picture("wide.png")
        browser.value("document.getElementById('theme').value = 'dark';"
                      "document.getElementById('theme').dispatchEvent(new Event('change'))")
        browser.picture("dark.png")
        browser.size(390, 844, True)
        wide = browser.value("document.documentElement.scrollWidth")
        assert wide <= 390, f"{wide} pixels on a phone of 390"
        browser.picture("phone.png")
        browser.has_no_fault(own)
        print(f"the first numbers came after {took:.1f} s")
    finally:
        open(until, "w").close()
        browser.end()
        client.wait()
        programs.end()


def lab():
    """A link of a lab that is cut turns red; `weft dash` shows those who have its token."""
    weft("lab", "up", "--nodes", "8", "--topology", "torus:2x2x2")
    served = subprocess.Popen([WEFT, "dash", "--no-open", "--node", "lab"],
                              stdout=subprocess.PIPE, text=True)
    browser = Browser()
    try:
        address = served.stdout.readline().strip()
        own, _, _ = address.partition("#")
        one = http.client.HTTPConnection(own.split("/")[2], timeout=PATIENCE)
        one.request("GET", "/snapshot")
        assert one.getresponse().status == 401
        browser.size(1440, 900, False)
        browser.open(address)
        text = "document.getElementById('links').textContent"
        await_that("the lab", lambda: (browser.value(text) or "").startswith(
            "8 nodes of the lab, 12 links, 0 of them cut"))
        colours = ("echarts.getInstanceByDom(document.getElementById('topology')).getOption()"
                   ".series[0].links.map((link) => link.lineStyle.color).join()")
        bad = browser.value("getComputedStyle(document.documentElement)"
                            ".getPropertyValue('--bad').trim()")
        assert bad and bad not in browser.value(colours)
        weft("lab", "link", "n0", "n1", "down")
        await_that("a cut link", lambda: "1 of them cut" in browser.value(text))
        assert browser.value(colours).split(",").count(bad) == 1
        browser.picture("lab.png")
        browser.has_no_fault(own)
    finally:
        browser.end()
        served.kill()
        served.wait()
        weft("lab", "down")


def main():
    if CASE == "lab":
        lab()
        print("all of it")
        return
    daemon = Daemon()
    try:
        {"numbers": numbers, "live": live, "hostile": hostile, "prometheus": prometheus,
         "terminal": terminal, "capture": capture, "dashboard": dashboard}[CASE](daemon)
    finally:
        daemon.process.terminate()
        daemon.process.wait()
    print("all of it")


main()
