"""What users see of endpoints, devices, servers of weft and jobs: counts, times, captures.

Usage: observe_more.py WEFT CASE DIRECTORY
"""

import collections
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from observing import (BYTES, CASE, PATIENCE, PLACE, WEFT, Browser, Daemon, Programs, Servers,
                       await_that, free_port, of_totals, summed, weft)

DISSECTOR = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                         "../../../../docs/wireshark/weft.lua")


def status():
    return json.loads(weft("status", "--json").stdout)


def times(daemon):
    """Operations of endpoints and turns of connections are timed, and stay when programs end."""
    # On a busy machine a turn of both ends takes milliseconds. Of messages one in many is timed.
    for test, iterations in (("put", 400), ("get", 400), ("rate", 4000)):
        weft("perf", test, "--runs", "2", "--iterations", str(iterations))
    programs = Programs(True)
    client = programs.client(BYTES)
    client.communicate(timeout=PATIENCE)
    programs.end()
    await_that("no program", lambda: not status()["processes"])
    values = daemon.values()
    for operation in ("puts", "gets", "messages_sent"):
        name = "weft_endpoint_time_seconds"
        count = summed(values, f"{name}_count", operation=operation)
        assert count > 0, operation
        assert count == summed(values, f"{name}_bucket", operation=operation, le="+Inf")
        assert summed(values, f"{name}_sum", operation=operation) > 0
    # Some of those that look their key up, the first of them early.
    puts = summed(values, "weft_endpoint_operations_total", operation="puts")
    timed = summed(values, "weft_endpoint_time_seconds_count", operation="puts")
    assert 0 < timed <= puts / 16, (timed, puts)
    turns = summed(values, "weft_program_turn_seconds_count")
    assert turns > 0
    totals = {total["name"]: total for total in status()["totals"]}
    python = next(total for name, total in totals.items() if name.startswith("python"))
    assert python["turns"]["half_ns"] > 0 and sum(python["turns"]["counts"]) == turns, python
    assert python["turns"]["half_ns"] <= python["turns"]["most_ns"]


def works(daemon):
    """The daemon shows what `weft kv`, `weft cp` and `weft block` count, also when they ended."""
    port = free_port()
    server = subprocess.Popen([WEFT, "kv", "serve", "--data", f"{PLACE}/kv", "--port", str(port)],
                              stderr=subprocess.DEVNULL)

    def connected():
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        except ConnectionError:
            return None

    one = await_that("the server", connected)
    one.sendall(b"".join(b"SET k%d v\r\n" % n for n in range(100))
                + b"".join(b"GET k%d\r\n" % n for n in range(150)) + b"NONSENSE\r\n")
    told = b""
    while told.count(b"\r\n") < 100 + 2 * 100 + 50 + 1:
        told += one.recv(65536)

    def of(service, count):
        return summed(daemon.values(), "weft_work_total", service=service, count=count)

    await_that("its commands", lambda: of("kv", "commands") == 251)
    assert (of("kv", "hits"), of("kv", "misses"), of("kv", "errors")) == (100, 50, 1)
    assert of("kv", "sent_bytes") == len(told) and of("kv", "connections") == 1
    one.close()
    server.terminate()
    server.wait()
    await_that("no server", lambda: not status()["processes"])
    assert of("kv", "commands") == 251, "it stays"

    os.mkdir(f"{PLACE}/from")
    for n in range(5):
        with open(f"{PLACE}/from/{n}", "wb") as out:
            out.write(os.urandom(300_000))
    weft("cp", "-a", f"{PLACE}/from", f"{PLACE}/to", "--json")
    await_that("its bytes", lambda: of("cp", "bytes") == 1_500_000)
    # The directory is one, too.
    assert (of("cp", "entries"), of("cp", "troubles")) == (6, 0)

    nbd = free_port()
    block = subprocess.Popen(
        [WEFT, "block", "serve", "--listen", f"127.0.0.1:{free_port()}",
         "--target", "iqn.2026-11.example.weft:seen", "--lun", "0=mem:16M",
         "--nbd", f"127.0.0.1:{nbd}", "--control", f"{PLACE}/control",
         "--state", f"{PLACE}/state"], stdout=subprocess.PIPE, text=True)
    try:
        assert block.stdout.readline().startswith("serving at")
        moved = subprocess.run(
            ["qemu-io", "-f", "raw", "-c", "write 0 1M", "-c", "flush", "-c", "read 0 2M",
             f"nbd://127.0.0.1:{nbd}/0"],
            capture_output=True, text=True)
        assert moved.returncode == 0, moved
        own = json.loads(subprocess.run([WEFT, "block", "stat", "--json", "--control",
                                         f"{PLACE}/control"],
                                        capture_output=True, text=True, check=True).stdout)
        [unit] = own["units"]
        await_that("its bytes", lambda: of("block", "written_bytes") == unit["writes"]["bytes"])
        assert of("block", "written_bytes") == 1 << 20, unit
        assert of("block", "read_bytes") == unit["reads"]["bytes"] >= 2 << 20, unit
    finally:
        block.terminate()
        block.wait()


def jobs(daemon):
    """A job of oshrun is in every view with its processes, and stays when it is over."""
    until = os.path.join(PLACE, "until")
    script = ("import os, sys, time\n"
              "while not os.path.exists(sys.argv[1]):\n"
              "    time.sleep(0.01)\n"
              "sys.exit(3 if os.environ['PMI_RANK'] == '2' else 0)\n")
    job = subprocess.Popen([WEFT, "oshrun", "-n", "3", sys.executable, "-c", script, until],
                           stderr=subprocess.DEVNULL)

    def running():
        [one] = [one for one in status()["processes"] if "job" in one["work"]] or [None]
        return one if one and one["work"]["job"]["started"] == 3 else None

    one = await_that("the job", running)
    counts = one["work"]["job"]
    assert (counts["processes"], counts["ended"], counts["failed"]) == (3, 0, 0), counts
    top = json.loads(weft("top", "--json", "--count", "1").stdout)
    page = json.loads(daemon.get("/snapshot", daemon.dash)[1])
    name = one["name"]
    assert name.startswith("job python"), name
    for view in (top, page):
        [same] = [other["work"]["job"] for other in view["processes"] if other["pid"] == one["pid"]]
        assert same["started"] == 3 and same["ended"] == 0, same
    values = daemon.values()
    for count in ("processes", "started", "ended", "failed"):
        told = summed(values, "weft_work_total", program=name, service="job", count=count)
        assert told == counts[count], (count, told)
    text = weft("status").stdout
    assert re.search(r"Jobs of weft oshrun", text) and re.search(r"python\S* +\d+ +3 +3 +0 +0", text), text
    await_that("processor time", lambda: summed(
        daemon.values(), "weft_work_total", service="job", count="processor_ms") > 0)
    open(until, "w").close()
    assert job.wait(timeout=PATIENCE) == 3
    await_that("its end", lambda: not status()["processes"])
    [over] = [other["work"]["job"] for other in status()["ended"] if "job" in other["work"]]
    # The first that fails ends the others.
    assert over["started"] == over["ended"] == 3 and over["failed"] >= 1, over


def fields(file, *names, only=None):
    """The fields of the packets of a capture, as tshark names them."""
    words = ["tshark", "-X", f"lua_script:{DISSECTOR}", "-r", file, "-T", "fields"]
    for name in names:
        words += ["-e", name]
    if only:
        words += ["-Y", only]
    # As root it says that scripts are a danger then; those of its own directory are left out.
    read = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "HOME": PLACE})
    assert read.returncode == 0, read.stderr
    return [line.split("\t") for line in read.stdout.splitlines()]


def messages(_daemon):
    """A capture of an endpoint has its messages in order, and a dissector names their fields."""
    file = os.path.join(PLACE, "messages.pcapng")
    perf = subprocess.Popen([WEFT, "perf", "latency", "--runs", "1000", "--iterations", "50000"],
                            stdout=subprocess.DEVNULL)
    try:
        paired = await_that("endpoints", lambda: [
            one for one in status()["endpoints"] if one["peers"] > 0])
        vpid = paired[0]["vpid"]
        writer = subprocess.Popen(
            [WEFT, "capture", "-w", file, "--of", f"endpoint:{vpid}", "--bytes", "1000000",
             "--seconds", "20", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        told, errors = writer.communicate(timeout=PATIENCE)
        assert writer.returncode == 0, errors
        told = json.loads(told)
    finally:
        perf.terminate()
        perf.wait()
    assert os.stat(file).st_mode & 0o077 == 0
    assert told["packets"] > 100 and told["subjects"] >= 1, told
    seen = fields(file, "frame.encap_type", "weft.src", "weft.dst", "weft.content", "weft.number",
                  "weft.length", "weft.payload", "weft.lost", "frame.len", "weft.tag", "weft.type")
    assert len(seen) == told["packets"], (len(seen), told)
    ways, lost, payload = collections.defaultdict(lambda: None), 0, 0
    for _, source, target, content, number, length, data, missing, whole, tag, kind in seen:
        way = source, target
        assert str(vpid) in way, way
        if content == "255":
            lost += int(missing)
            if ways[way] is not None:
                ways[way] += int(missing)
            continue
        assert content in ("0", "1", "2"), content
        assert int(whole) == 20 + int(length) and len(data) in (0, 2 * int(length)), seen[0]
        assert content == "2" or tag and kind, seen[0]
        payload += int(length)
        if ways[way] is not None:
            assert int(number) == ways[way] + 1, (way, number, ways[way])
        ways[way] = int(number)
    assert lost == told["lost_packets"] and payload == told["bytes"], (lost, payload, told)
    assert not fields(file, "frame.number", only="_ws.malformed || weft.short")
    gone = subprocess.run([WEFT, "capture", "-w", file, "--of", f"endpoint:{vpid}"],
                          capture_output=True, text=True)
    assert gone.returncode == 1 and f"there is no endpoint {vpid}" in gone.stderr, gone.stderr


def notifications(_daemon):
    """Notifications of puts are in a capture with the fields of their operation."""
    file = os.path.join(PLACE, "notifications.pcapng")
    perf = subprocess.Popen([WEFT, "perf", "put", "--runs", "1000", "--iterations", "50000"],
                            stdout=subprocess.DEVNULL)
    try:
        paired = await_that("endpoints", lambda: [
            one for one in status()["endpoints"] if one["peers"] > 0])
        weft("capture", "-w", file, "--of", f"endpoint:{paired[0]['vpid']}", "--bytes", "400000",
             "--seconds", "4")
    finally:
        perf.terminate()
        perf.wait()
    seen = fields(file, "weft.command", "weft.side", "weft.bytes", "weft.key", "weft.offset",
                  "weft.operation", "weft.immediate", "weft.class", only="weft.content == 2")
    assert seen, "no notification"
    assert {one[0] for one in seen} <= {"0", "2", "3"} and {one[1] for one in seen} == {"2"}, seen[0]
    assert all(all(one) for one in seen), seen[0]


def frames_in_all_views(servers):
    """Under load each view lies between two looks at another one."""
    ping = ["ping", "-4", "-f", "-q", "-w", "3", "n1"]
    flood = subprocess.Popen([WEFT, "lab", "exec", "n0", "--", *ping], stdout=subprocess.DEVNULL)
    sent = lambda view: sum(device["sent_bytes"] for device in view["devices"])
    of_top = lambda: sent(json.loads(
        weft("top", "--node", "lab", "--json", "--count", "1").stdout))
    began = await_that("frames", of_top)
    await_that("a load", lambda: of_top() > began + 100_000)
    for _ in range(3):
        before = of_top()
        # The dashboard and the metrics show one snapshot for 250 ms.
        time.sleep(0.3)
        page = sent(json.loads(servers.get("/snapshot", servers.dash)[1]))
        told = summed(servers.values(), "weft_device_bytes_total", direction="sent")
        once = sent(json.loads(weft("status", "--node", "lab", "--json").stdout))
        after = of_top()
        assert before <= page <= after and before <= told <= after and before <= once <= after, (
            before, page, told, once, after)
    assert flood.wait(timeout=PATIENCE) == 0


def frames():
    """A capture of the devices of a lab has each frame, as Ethernet, with its direction. All views
    count them alike."""
    file = os.path.join(PLACE, "frames.pcapng")
    servers = Servers()
    for name, value in servers.options().items():
        os.environ["WEFT_" + name.upper().replace("-", "_")] = value
    weft("lab", "up", "--nodes", "2")
    try:
        frames_in_all_views(servers)
        writer = subprocess.Popen(
            [WEFT, "capture", "--node", "lab", "-w", file, "--of", "device:all", "--json",
             "icmp and", "(src host 10.77.0.1 or src host 10.77.0.2)"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # A warning may come before it.
        assert any("capturing to" in line for line in writer.stderr)
        pinged = weft("lab", "exec", "n0", "--", "ping", "-4", "-c", "20", "-i", "0.05", "-s", "1000",
                      "n1")
        assert "20 received" in pinged.stdout, pinged.stdout
        time.sleep(0.3)
        writer.send_signal(signal.SIGINT)
        told = json.loads(writer.communicate(timeout=PATIENCE)[0])
        absent = weft("capture", "--node", "lab", "-w", file + "x", "--of", "device:99", check=False)
        unknown = weft("capture", "--node", "lab", "-w", file + "x", "prot", "80", check=False)
        assert unknown.returncode == 1 and '"prot" is no word' in unknown.stderr, unknown
        assert absent.returncode == 1 and "node 99 has no Ethernet device" in absent.stderr, absent
    finally:
        weft("lab", "down")
    # The filter leaves ARP and IPv6 out.
    assert (told["subjects"], told["lost_packets"], told["packets"]) == (2, 0, 80), told
    seen = fields(file, "frame.interface_name", "frame.packet_flags_direction", "eth.src", "eth.dst",
                  "icmp.type", "icmp.seq", "frame.len", only="icmp")
    per = collections.Counter((name, way, kind) for name, way, _, _, kind, _, _ in seen)
    names = sorted({name for name, *_ in seen})
    assert len(names) == 2 and len(seen) == 80, (names, len(seen), told)
    assert sorted(per.values()) == [20] * 4, per
    assert all(re.match("([0-9a-f]{2}:){5}", one[2]) and one[6] == "1042" for one in seen), seen[0]
    # A request leaves one device and comes out of the other.
    requests = {(name, int(way, 0)) for name, way, kind in per if kind == "8"}
    assert {way for _, way in requests} == {1, 2} and len(requests) == 2, requests


def views(daemon):
    """The bytes that programs sent over the fabric, as `weft top`, the dashboard and the metrics show
    them, collected one after the other, and after this is called."""
    # The dashboard and the metrics show one snapshot for 250 ms.
    time.sleep(0.3)
    top = json.loads(weft("top", "--json", "--count", "1").stdout)
    page = json.loads(daemon.get("/snapshot", daemon.dash)[1])
    told = summed(daemon.values(), "weft_program_stream_bytes_total", medium="fabric",
                  direction="sent")
    return [of_totals(top, "fabric_sent"), of_totals(page, "fabric_sent"), told]


def listens(port):
    """Whether a TCP socket listens at the port."""
    rows = [line.split() for name in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return any(row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == port for row in rows)


def sums(daemon):
    """The sums agree with what iperf3 and redis-benchmark say of themselves; under load each view
    lies between two looks at another one."""
    port = free_port()
    server = subprocess.Popen([WEFT, "run", "--", "iperf3", "-s", "-1", "-p", str(port)],
                              stdout=subprocess.DEVNULL)
    await_that("listening", lambda: listens(port))
    client = subprocess.Popen(
        [WEFT, "run", "--", "iperf3", "-c", "127.0.0.1", "-p", str(port), "-t", "3", "-J",
         "--connect-timeout", "3000"], stdout=subprocess.PIPE, text=True)
    if client.poll() is None:
        await_that("load", lambda: of_totals(status(), "fabric_sent") > BYTES)
    # Each view was collected between the two looks around it, and so is its number.
    for _ in range(3):
        before = of_totals(status(), "fabric_sent")
        seen = views(daemon)
        after = of_totals(status(), "fabric_sent")
        assert all(before <= one <= after for one in seen), (before, seen, after)
    report = json.loads(client.communicate(timeout=PATIENCE)[0])
    server.wait(timeout=PATIENCE)
    await_that("no program", lambda: not status()["processes"])
    sent = report["end"]["sum_sent"]["bytes"]
    seen = views(daemon)
    assert set(seen) == {of_totals(status(), "fabric_sent")}, seen
    other = of_totals(status(), "tcp_sent")
    # The rest is iperf3's own talk about the test, some kilobytes of JSON.
    assert 0 <= seen[0] + other - sent <= 100_000, (sent, seen, other)

    place = free_port()
    redis = subprocess.Popen(
        [WEFT, "run", "--", "redis-server", "--port", str(place), "--save", "", "--dir", PLACE],
        stdout=subprocess.DEVNULL)

    def answers():
        ping = subprocess.run(["redis-cli", "-p", str(place), "ping"], capture_output=True, text=True)
        return ping.stdout.strip() == "PONG"

    def own(name):
        text = subprocess.run(["redis-cli", "-p", str(place), "info", "stats"],
                              capture_output=True, text=True, check=True).stdout
        return int(re.search(rf"{name}:(\d+)", text)[1])

    await_that("redis", answers)
    before = {name: own(name) for name in ("total_net_input_bytes", "total_net_output_bytes")}
    of = status()["totals"]
    base = sum(total["streams"]["fabric_received"] + total["streams"]["tcp_received"]
               for total in of if total["name"].startswith("redis-server"))
    bench = subprocess.run(
        [WEFT, "run", "--", "redis-benchmark", "-p", str(place), "-t", "set,get", "-n", "20000",
         "-c", "10", "-d", "100", "-q"], capture_output=True, text=True, timeout=PATIENCE)
    assert bench.returncode == 0 and "GET" in bench.stdout, bench
    bench_sent = [total["streams"]["fabric_sent"] + total["streams"]["tcp_sent"]
                  for total in status()["totals"] if total["name"].startswith("redis-benchmark")]
    grown = own("total_net_input_bytes") - before["total_net_input_bytes"]
    redis.terminate()
    redis.wait()
    await_that("no program", lambda: not status()["processes"])
    received = sum(total["streams"]["fabric_received"] + total["streams"]["tcp_received"]
                   for total in status()["totals"] if total["name"].startswith("redis-server"))
    # The questions of redis-cli are in it on both sides, but for the last ones.
    assert abs(received - base - grown) <= grown // 100, (received, base, grown)
    assert bench_sent and abs(sum(bench_sent) - grown) <= grown // 100, (bench_sent, grown)


def clients(daemon):
    """200 clients of both pages at once, and broken requests among them: all that ask well get
    their answer, a program's bytes go on, and the daemon's memory is bounded."""
    programs = Programs(True)
    until = os.path.join(PLACE, "until")
    client = programs.client(BYTES, until)
    await_that("load", lambda: of_totals(status(), "fabric_sent") > BYTES)
    memory = daemon.values()["weft_daemon_resident_memory_bytes"]
    moved = of_totals(status(), "fabric_sent")
    seeds = [b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n", b"GET /stream HTTP/1.1\r\n",
             b"POST /snapshot HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
             b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"]

    def mutated(seed, number):
        data = bytearray(seed)
        for turn in range(1 + number % 7):
            data[(number * 31 + turn * 17) % len(data)] = (number * 73 + turn * 151) % 256
        return bytes(data) + b"\r\n\r\n"

    def opened(port, data):
        one = socket.create_connection(("127.0.0.1", port))
        one.settimeout(PATIENCE)
        try:
            one.sendall(data)
        except ConnectionError:
            pass
        return one

    wellformed = b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    good = [opened(daemon.metrics, wellformed % b"/metrics") for _ in range(100)]
    good += [opened(daemon.dash, wellformed % b"/snapshot") for _ in range(100)]
    for one in good:
        told = b""
        while more := one.recv(1 << 16):
            told += more
        assert told.startswith(b"HTTP/1.1 200 OK"), told[:100]
        one.close()
    for number in range(400):
        port = daemon.metrics if number % 2 else daemon.dash
        bad = opened(port, mutated(seeds[number % len(seeds)], number))
        bad.close()
    streams = [opened(daemon.dash, b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
               for _ in range(200)]
    for one in streams:
        assert one.recv(15) == b"HTTP/1.1 200 OK", "a stream of 200"
    assert of_totals(status(), "fabric_sent") > moved, "the bytes go on"
    grown = daemon.values()["weft_daemon_resident_memory_bytes"] - memory
    assert grown < 48 << 20, f"{grown} bytes more memory"
    for one in streams:
        one.close()
    open(until, "w").close()
    assert int(client.communicate(timeout=PATIENCE)[0]) >= BYTES
    programs.end()
    assert daemon.process.poll() is None


def newcomer():
    """As the page of the docs says: a lab, a redis in it, and the dashboard that shows both."""
    began = time.monotonic()
    weft("lab", "up", "--nodes", "8", "--topology", "torus:2x2x2")
    run = lambda node, *words: [WEFT, "lab", "exec", node, "--", WEFT, "run", "--", *words]
    redis = subprocess.Popen(
        run("n0", "redis-server", "--port", "7000", "--bind", "0.0.0.0", "--protected-mode", "no",
            "--save", "", "--dir", PLACE), stdout=subprocess.DEVNULL)
    served = subprocess.Popen([WEFT, "dash", "--no-open", "--node", "lab"],
                              stdout=subprocess.PIPE, text=True)
    load = browser = None
    try:
        ping = [WEFT, "lab", "exec", "n1", "--", "redis-cli", "-h", "10.77.0.1", "-p", "7000", "ping"]
        await_that("redis", lambda: "PONG" in subprocess.run(
            ping, capture_output=True, text=True).stdout)
        load = subprocess.Popen(
            run("n1", "redis-benchmark", "-h", "10.77.0.1", "-p", "7000", "-t", "get,set", "-l",
                "-c", "4", "-q"), stdout=subprocess.DEVNULL)
        address = served.stdout.readline().strip()
        own, _, _ = address.partition("#")
        browser = Browser()
        browser.size(1440, 900, False)
        browser.open(address)
        text = "document.getElementById('links').textContent"
        await_that("the lab", lambda: (browser.value(text) or "").startswith("8 nodes of the lab"))
        rows = "document.getElementById('connections').textContent"
        await_that("redis", lambda: "redis-server" in (browser.value(rows) or ""))
        rate = "document.querySelector('#connections td:nth-child(5)')?.textContent ?? ''"
        await_that("its rate", lambda: re.match(r"[1-9]\d* ", browser.value(rate) or ""))
        print(f"both were seen after {time.monotonic() - began:.1f} s")
        weft("lab", "link", "n4", "n5", "down")
        browser.value("document.querySelector('#connections tr').click()")
        await_that("the cut", lambda: "1 of them cut" in browser.value(text))
        time.sleep(8)
        browser.picture("newcomer.png")
        browser.has_no_fault(own)
    finally:
        for process in (load, redis, served):
            if process:
                process.kill()
                process.wait()
        if browser:
            browser.end()
        weft("lab", "down")


SCENARIO = """
topology = "torus:4x4x2"
[traffic]
pattern = "uniform"
message_bytes = 496
loads = [40]
[run]
warmup_ns = 10_000
measure_ns = 30_000
[[fault]]
kind = "cut"
link = ["n0", "n1"]
at_ns = 15_000
for_ns = 10_000
"""


def playback():
    """The dashboard plays a run of the simulator: loads of links, and a cut while it lasts."""
    scenario, run = os.path.join(PLACE, "scenario.toml"), os.path.join(PLACE, "run")
    with open(scenario, "w") as out:
        out.write(SCENARIO)
    weft("sim", "run", scenario, "--record", run)
    with open(run) as lines:
        frames = [json.loads(line) for line in lines]
    cut = [sum(link[4] for link in frame["wired"]["links"]) for frame in frames]
    served = subprocess.Popen([WEFT, "dash", "--no-open", "--play", run],
                              stdout=subprocess.PIPE, text=True)
    browser = Browser()
    try:
        address = served.stdout.readline().strip()
        own, _, _ = address.partition("#")
        browser.size(1440, 900, False)
        browser.open(address)
        text = "document.getElementById('links').textContent"
        await_that("the network", lambda: (browser.value(text) or "").startswith("32 nodes"))
        state = browser.value("document.getElementById('state').textContent")
        assert state == f"a recording of {len(frames)} moments", state
        go = ("(at) => { const it = document.getElementById('time'); it.value = at;"
              " it.dispatchEvent(new Event('input')); }")
        for at in (0, len(frames) - 1, cut.index(1) + 3):
            browser.value(f"({go})({at})")
            shown = browser.value(text)
            assert shown.endswith(f"{cut[at]} of them cut"), (at, shown)
        loads = ("echarts.getInstanceByDom(document.getElementById('topology')).getOption()"
                 ".series[0].links.map((link) => parseInt(link.value)).filter((one) => one > 0).length")
        assert browser.value(loads) > 40, browser.value(loads)
        browser.picture("playback.png")
        browser.value(f"({go})(0)")
        browser.value("document.getElementById('play').click()")
        await_that("it plays", lambda: browser.value(
            "Number(document.getElementById('time').value)") > 3)
        browser.has_no_fault(own)
    finally:
        browser.end()
        served.kill()
        served.wait()
    wrong = weft("dash", "--no-open", "--play", scenario, check=False)
    assert wrong.returncode == 1 and "line 1: it is no status" in wrong.stderr, wrong.stderr


# Draws a torus again and again with other loads, and the time that each takes in the page; then
# moves it, and the time from one frame to the next.
DRAW = """
(async (sides) => {
  const count = sides.reduce((one, other) => one * other, 1);
  const [depth, height, width] = sides;
  const place = (x, y, z) => ((z % depth) * height + (y % height)) * width + (x % width);
  const links = [];
  for (let z = 0; z < depth; z += 1) for (let y = 0; y < height; y += 1)
    for (let x = 0; x < width; x += 1) {
      const own = place(x, y, z);
      links.push([own, 0, place(x + 1, y, z), 1, false], [own, 2, place(x, y + 1, z), 3, false],
        [own, 4, place(x, y, z + 1), 5, own === 0]);
    }
  const nodes = Array.from({ length: count }, (_, number) => `n${number}`);
  const status = { wired: { nodes, links }, devices: [] };
  const place_ = document.createElement("div");
  place_.style = "position:fixed;inset:0;z-index:9;background:#fff";
  document.body.append(place_);
  const chart = echarts.init(place_, null, { renderer: "canvas" });
  const draws = [], parts = [0, 0, 0];
  let drawn;
  const waits = () => new Promise((resolve) => requestAnimationFrame(resolve));
  for (let turn = 0; turn < 12; turn += 1) {
    const began = performance.now();
    drawn = Topology.option(status, (graph, link) => (link.from * 7 + turn) * 1e5, "#000", "#c00");
    const made = performance.now();
    chart.setOption(drawn.option, { replaceMerge: ["series", "dataZoom"] });
    const set = performance.now();
    chart.getZr().flush();
    const end = performance.now();
    parts[0] += made - began; parts[1] += set - made; parts[2] += end - set;
    draws.push(performance.now() - began);
    await waits();
  }
  const frames = [];
  let before = performance.now();
  for (let step = 0; step < 30; step += 1) {
    for (const dataZoomIndex of [0, 1])
      chart.dispatchAction({ type: "dataZoom", dataZoomIndex, start: step, end: 70 + step });
    await waits();
    frames.push(performance.now() - before);
    before = performance.now();
  }
  draws.sort((a, b) => a - b);
  frames.sort((a, b) => a - b);
  return { nodes: drawn.graph.nodes.length, links: drawn.graph.links.length,
    cut: drawn.graph.links.filter((link) => link.cut).length,
    draw: draws[6], frame: frames[15], worst: frames[29], parts };
})(SIDES)
"""


def large(daemon):
    """4,096 nodes are drawn, and 65,536 as groups; the times are told, not judged."""
    browser = Browser()
    try:
        browser.size(1440, 900, False)
        own = f"http://127.0.0.1:{daemon.dash}/"
        browser.open(own)
        await_that("the page", lambda: browser.value("typeof Topology !== 'undefined'"
                                                     " && document.readyState === 'complete'"))
        for sides, nodes in (([16, 16, 16], 4096), ([64, 32, 32], 1024)):
            told = browser.call("Runtime.evaluate", expression=DRAW.replace("SIDES", str(sides)), awaitPromise=True,
                                returnByValue=True)
            assert "exceptionDetails" not in told, told
            drawn = told["result"]["value"]
            assert drawn["nodes"] == nodes and drawn["links"] > 0 and drawn["cut"] == 1, drawn
            print(f"{sides}: {drawn}")
            browser.picture(f"large-{nodes}.png")
    finally:
        browser.end()


def main():
    if CASE in ("frames", "playback", "newcomer"):
        {"frames": frames, "playback": playback, "newcomer": newcomer}[CASE]()
        print("all of it")
        return
    daemon = Daemon()
    try:
        {"times": times, "works": works, "jobs": jobs, "messages": messages,
         "notifications": notifications, "large": large, "sums": sums,
         "clients": clients}[CASE](daemon)
    finally:
        daemon.process.terminate()
        daemon.process.wait()
    print("all of it")


main()
