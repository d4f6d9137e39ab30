#!/usr/bin/env python3
"""Runs patterns of messages in a lab and in its simulation, and compares their times. Needs root.

    cargo build --release -p weft-cli -p weft-examples --example pattern
    bench/lab/compare.py [--messages 20000] [--runs 5] [--profile release]

The parameters of the simulation are measured in the lab, between two nodes: the time of one
processor for a message that is sent and for one that is taken, and the latency. Then four nodes, and
two, exchange messages: all to all, one to all, all to one.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SOCKET = "/run/weft/lab.sock"
PATTERNS = ("all-to-all", "broadcast", "incast")
BYTES = 64
# A bandwidth and a buffer that hold nothing up: memory is as fast as the processors.
FAST_MBIT = 1_000_000


class Lab:
    def __init__(self, weft, pattern):
        self.weft, self.pattern = weft, pattern

    def __enter__(self):
        subprocess.run([self.weft, "lab", "up", "--nodes", "4"], check=True, capture_output=True)
        return self

    def __exit__(self, *_):
        subprocess.run([self.weft, "lab", "down"], check=True, capture_output=True)

    def time_ns(self, count, pattern, messages, processors=None):
        """The time of one run of `count` nodes; all on these processors, if they are named."""
        with tempfile.TemporaryDirectory() as directory:
            pin = ["taskset", "-c", processors] if processors else []
            command = [
                [self.weft, "lab", "exec", f"n{rank}", "--", *pin, self.pattern, SOCKET]
                + [directory, str(rank), str(count), pattern, str(messages)]
                for rank in range(count)
            ]
            parties = [
                subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for one in command
            ]
            ended = [party.communicate(timeout=120) for party in parties]
            for party, (_, told) in zip(parties, ended):
                if party.returncode:
                    sys.exit(told.strip())
            return int(ended[0][0])


def median(runs, measure):
    values = sorted(measure() for _ in range(runs))
    return statistics.median(values), values


def simulated_ns(weft, count, pattern, messages, parameters):
    """The time of the same messages in the simulation."""
    lines = []
    for number in range(messages):
        for rank in range(count):
            others = [(rank + step) % count for step in range(1, count)]
            targets = {
                "all-to-all": others,
                "broadcast": others if rank == 0 else [],
                "incast": [0] if rank else [],
            }[pattern]
            # All are offered at once: the hosts' queues have the order.
            lines += [f"0 n{rank} n{to} {BYTES}" for to in targets]
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "trace").write_text("\n".join(lines) + "\n")
        scenario = f"""
seed = 1
topology = "full:{count}"
[network]
mtu_bytes = 128
header_bytes = 8
link_mbit = {FAST_MBIT}
host_mbit = {FAST_MBIT}
link_latency_ns = {parameters["latency_ns"]}
router_delay_ns = 0
buffer_bytes = {1 << 20}
processors = {parameters["processors"]}
processor_send_ns = {parameters["send_ns"]}
processor_receive_ns = {parameters["receive_ns"]}
patience_ns = 1000000000
[traffic]
pattern = "trace"
file = "trace"
[run]
deadline_ns = 100000000000
"""
        (Path(directory) / "scenario.toml").write_text(scenario)
        command = [weft, "sim", "run", "scenario.toml", "--json", "-"]
        ended = subprocess.run(command, cwd=directory, capture_output=True, text=True)
        if ended.returncode:
            sys.exit(ended.stderr)
        return json.loads(ended.stdout)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--messages", type=int, default=20_000)
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--profile", default="release", help="the directory below target")
    given = arguments.parse_args()
    root = Path(__file__).resolve().parents[2]
    target = root / "target" / given.profile
    weft, pattern = str(target / "weft"), str(target / "examples/pattern")
    for needed in (weft, pattern):
        if not os.access(needed, os.X_OK):
            sys.exit(f"{needed} is not there; build it as the first lines of this file say")
    if not shutil.which("taskset"):
        sys.exit("taskset is missing; install util-linux")
    messages, runs = given.messages, given.runs
    with Lab(weft, pattern) as lab:
        half = lambda ns: ns / messages
        # On one processor a message takes what both ends take; on two, what the slower one takes.
        one, _ = median(runs, lambda: half(lab.time_ns(2, "broadcast", messages, "0")))
        two, _ = median(runs, lambda: half(lab.time_ns(2, "broadcast", messages, "0,1")))
        trip, _ = median(runs, lambda: half(lab.time_ns(2, "ping-pong", messages, "0,1")) / 2)
        receive = min(two, one)
        send = max(one - receive, 1)
        parameters = {
            "processors": os.cpu_count(),
            "send_ns": round(send),
            "receive_ns": round(receive),
            "latency_ns": max(round(trip - send - receive), 0),
        }
        results = []
        for count in (2, 4):
            for name in PATTERNS:
                real, all_runs = median(runs, lambda: lab.time_ns(count, name, messages))
                report = simulated_ns(weft, count, name, messages, parameters)
                results.append((count, name, real, all_runs, report))
    load = os.getloadavg()[0]
    print(json.dumps({"machine": platform.platform(), "load": round(load, 1), **parameters}))
    for count, name, real, all_runs, report in results:
        point = report["points"][0]
        if point["messages"]["unfinished"] or point["messages"]["given_up"]:
            sys.exit(f"the simulation of {name} did not end: {point['messages']}")
        model = point["ended_ns"]
        print(
            f"{count} nodes, {name}: {real / 1e6:.2f} ms in the lab "
            f"({all_runs[0] / 1e6:.2f} to {all_runs[-1] / 1e6:.2f}), {model / 1e6:.2f} ms simulated, "
            f"{100 * (model - real) / real:+.0f} %"
        )


if __name__ == "__main__":
    main()
