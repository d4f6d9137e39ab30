"""The fabric core beside UCX: `weft perf` and `ucx_perftest`."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from measure import Bar, Server, client, free_port, need

PACKAGES = ("ucx-utils", "libfabric-bin")
UCX = {"UCX_TLS": "posix,cma", "UCX_WARN_UNUSED_ENV_VARS": "n"}
CORES = sorted(os.sched_getaffinity(0))
# UCX counts a megabyte as 2**20 bytes, weft a gigabyte as 10**9.
GIGABYTES_PER_UCX_MEGABYTE = 2**20 / 1e9


@dataclass
class Weft:
    """The command under test."""

    path: Path

    def perf(self, test: str, size: Optional[int] = None) -> dict:
        # One run each: the turns of this script are the repetitions.
        command = [str(self.path), "perf", test, "--json", "--runs", "1"]
        if size is not None and test not in ("atomic", "cacheline"):
            command += ["--size", str(size)]
        return json.loads(client(command))

    def main(self, test: str, size: Optional[int] = None) -> float:
        return self.perf(test, size)["median"]

    def single(self, test: str, size: int, figure: str = "latency") -> float:
        return self.perf(test, size)[figure]["median"]

    def crowd(self, pairs: int) -> float:
        """The worst p99 latency of several pairs at once, microseconds."""
        command = [str(self.path), "perf", "latency", "--json", "--runs", "1", "--unpinned"]
        crowd = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(pairs)
        ]
        worst = 0.0
        for member in crowd:
            output, errors = member.communicate(timeout=120)
            if member.returncode != 0:
                raise RuntimeError(errors.strip())
            worst = max(worst, json.loads(output)["p99"])
        return worst

    def under(self, command: list) -> list:
        return [str(self.path), "run", "--", *command]


@dataclass
class Ucx:
    """One line of figures of ucx_perftest."""

    latency_us: float
    gigabytes: float
    rate: float


def ucx(test: str, size: int, iterations: int, *extra: str) -> Ucx:
    program, port = need("ucx_perftest"), free_port()
    # UCT tests name their transport themselves.
    env = {} if "-x" in extra else UCX
    near, far = str(CORES[0]), str(CORES[-1])
    with Server([program, "-c", far, "-p", str(port)], port, env):
        command = [program, "127.0.0.1", "-c", near, "-p", str(port), "-f", "-t", test]
        command += ["-s", str(size), "-n", str(iterations), *extra]
        lines = client(command, env).splitlines()
    figures = [float(word) for word in lines[-1].split()]
    # Iterations; median, average and overall time; average and overall bandwidth, then rate.
    return Ucx(figures[3], figures[5] * GIGABYTES_PER_UCX_MEGABYTE, figures[7])


def bars(weft: Weft) -> list:
    raw_line = lambda: weft.main("cacheline")  # noqa: E731
    return [
        *(
            Bar(
                f"latency {size} B / ucx tag_lat",
                "us",
                lambda size=size: weft.main("latency", size),
                lambda size=size: ucx("tag_lat", size, 300_000).latency_us,
                0.6,
                True,
                raw_line,
            )
            for size in (8, 120)
        ),
        *(
            Bar(
                f"latency {size} B / cache line",
                "us",
                lambda size=size: weft.main("latency", size),
                raw_line,
                2.0,
                True,
                raw_line,
            )
            for size in (8, 120)
        ),
        Bar(
            "rate 8 B / ucx am_bw (posix)",
            "/s",
            lambda: weft.main("rate", 8),
            lambda: ucx("am_bw", 8, 5_000_000, "-d", "memory", "-x", "posix").rate,
            2.5,
            False,
            raw_line,
        ),
        Bar(
            "put latency 8 B / ucx ucp_put_lat",
            "us",
            lambda: weft.single("put", 8),
            lambda: ucx("ucp_put_lat", 8, 500_000).latency_us,
            1.2,
            True,
            raw_line,
        ),
        Bar(
            "put latency 8 B, signal / ucp_put_lat",
            "us",
            lambda: weft.single("put", 8, "signal_latency"),
            lambda: ucx("ucp_put_lat", 8, 500_000).latency_us,
            1.2,
            True,
            raw_line,
        ),
        *(
            Bar(
                f"put {name} / ucx ucp_put_bw",
                "GB/s",
                lambda size=size: weft.main("put", size),
                lambda size=size, count=count: ucx("ucp_put_bw", size, count).gigabytes,
                0.85,
                False,
            )
            for name, size, count in (
                ("4 KiB", 4096, 500_000),
                ("64 KiB", 65536, 100_000),
                ("1 MiB", 1 << 20, 10_000),
                ("8 MiB", 8 << 20, 1_000),
            )
        ),
        Bar(
            "fetch-add / ucx ucp_fadd",
            "/s",
            lambda: weft.main("atomic"),
            lambda: ucx("ucp_fadd", 8, 3_000_000, "-O", "32").rate,
            5.0,
            False,
            raw_line,
        ),
        Bar("p99 of 8 polling processes", "us", lambda: weft.crowd(4), None, 200.0, True),
    ]
