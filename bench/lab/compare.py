#!/usr/bin/env python3
"""Runs patterns of messages in a lab and in its simulation, and compares their times. Needs root.

    cargo build --release -p weft-cli -p weft-examples --example pattern
    bench/lab/compare.py [--messages 20000] [--runs 5] [--profile release]

The nodes are dealt out to the processors in turn, in the lab as in the simulation. The parameters
of the simulation are measured in the lab, between two nodes: the time of a processor for a message
that is sent and for one that is taken, if both nodes share it and if they do not, and the latency.
Then four nodes, and two, exchange messages: all to all, one to all, all to one.

It also prints the time of a switch between two nodes of a processor, which the simulation leaves
out, and after how many messages the lab had one. The parameters are measured before and after the
patterns: if they differ, the machine changed meanwhile, and the figures are void.
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
PROCESSORS = sorted(os.sched_getaffinity(0))
# Slots of a mailbox: those that it has, and more of them, so that a processor is left less often.
DEPTHS = (256, 1024)


class Lab:
    def __init__(self, weft, pattern):
        self.weft, self.pattern = weft, pattern

    def __enter__(self):
        subprocess.run([self.weft, "lab", "up", "--nodes", "4"], check=True, capture_output=True)
        return self

    def __exit__(self, *_):
        subprocess.run([self.weft, "lab", "down"], check=True, capture_output=True)

    def run(self, count, pattern, messages, processors=PROCESSORS, depth=DEPTHS[0]):
        """The nanoseconds of one run of `count` nodes on these processors, and its switches."""
        with tempfile.TemporaryDirectory() as directory:
            command = [
                [self.weft, "lab", "exec", f"n{rank}", "--"]
                + ["taskset", "-c", str(processors[rank % len(processors)])]
                + [self.pattern, SOCKET, directory, str(rank), str(count), pattern]
                + [str(messages), str(depth)]
                for rank in range(count)
            ]
            parties = [
                subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for one in command
            ]
            ended = [party.communicate(timeout=120) for party in parties]
            # One that failed has others fail, which wait for it: all of them tell why.
            failed = [told for party, (_, told) in zip(parties, ended) if party.returncode]
            if failed:
                sys.exit("".join(failed).strip())
            told = [[int(number) for number in out.split()] for out, _ in ended]
            return told[0][0], sum(switches for _, switches in told)


def median(runs, measure):
    """The medians of times and switches, and all times."""
    times, switches = zip(*(measure() for _ in range(runs)))
    return statistics.median(times), statistics.median(switches), sorted(times)


def measured(lab, messages, runs):
    """The parameters of the simulation, and the time of a switch."""

    def each_ns(pattern, processors, depth=DEPTHS[0]):
        run = lambda: lab.run(2, pattern, messages, processors, depth)
        time, switches, _ = median(runs, run)
        return time / messages, switches / messages

    one, two = PROCESSORS[:1], PROCESSORS[:2]
    # Each node sends as many as it takes. Which end takes how long cannot be told: half of it each.
    within = each_ns("all-to-all", one)[0] / 2
    both = each_ns("all-to-all", two)[0]
    trip = each_ns("ping-pong", two)[0] / 2
    # The fewer the switches, the less a message takes.
    (often, many), (rarely, few) = (each_ns("broadcast", one, depth) for depth in DEPTHS)
    parameters = {
        "processors": len(PROCESSORS),
        "send_ns": round(within / 2),
        "receive_ns": round(within / 2),
        "send_across_ns": round(both / 2),
        "receive_across_ns": round(both / 2),
        "latency_ns": max(round(trip - both), 0),
    }
    switch = (often - rarely) / (many - few) if many > few else 0
    return parameters, round(switch)


def simulated(weft, count, pattern, messages, parameters):
    """The report of the same messages in the simulation."""
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
processor_send_across_ns = {parameters["send_across_ns"]}
processor_receive_across_ns = {parameters["receive_across_ns"]}
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
    if len(PROCESSORS) < 2:
        sys.exit("one processor is too few: a message between two is measured")
    if not shutil.which("taskset"):
        sys.exit("taskset is missing; install util-linux")
    messages, runs = given.messages, given.runs
    with Lab(weft, pattern) as lab:
        parameters, switch = measured(lab, messages, runs)
        results = []
        for count in (2, 4):
            for name in PATTERNS:
                real = median(runs, lambda: lab.run(count, name, messages))
                report = simulated(weft, count, name, messages, parameters)
                results.append((count, name, *real, report))
        after, _ = measured(lab, messages, runs)
    load = os.getloadavg()[0]
    head = {"machine": platform.platform(), "load": round(load, 1), "switch_ns": switch}
    print(json.dumps({**head, "before": parameters, "after": after}))
    for count, name, real, switches, all_runs, report in results:
        point = report["points"][0]
        if point["messages"]["unfinished"] or point["messages"]["given_up"]:
            sys.exit(f"the simulation of {name} did not end: {point['messages']}")
        model = point["ended_ns"]
        total = messages * (count * (count - 1) if name == "all-to-all" else count - 1)
        print(
            f"{count} nodes, {name}: {real / 1e6:.2f} ms in the lab "
            f"({all_runs[0] / 1e6:.2f} to {all_runs[-1] / 1e6:.2f}), "
            f"{model / 1e6:.2f} ms simulated, {100 * (model - real) / real:+.0f} %, "
            f"{total / max(switches, 1):.0f} messages a switch"
        )


if __name__ == "__main__":
    main()
