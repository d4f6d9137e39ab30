"""One-way latency over libfabric beside libfabric's own fi_pingpong, in turns.

    bench/pingpong.py target/release/weft
    bench/pingpong.py target/release/weft --provider net --size 8 --turns 11

The ratio is the median of the turns' ratios; at most 1.3 is wanted. `fi_pingpong` (Debian:
libfabric-bin) is two processes, pinned to a processor each; weft is two threads of one process.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measure import free_port

PROVIDERS = ("tcp;ofi_rxm", "net")
SIZES = (8, 64)
ITERATIONS = 20_000
# How long the client tries to reach the server.
SERVES_WITHIN_S = 10


def fi_pingpong(provider: str, size: int) -> float:
    """Microseconds one way."""
    how = ["fi_pingpong", "-p", provider, "-e", "rdm", "-S", str(size), "-I", str(ITERATIONS)]
    port = str(free_port())
    # The kernel may put both on one processor, where neither gives way.
    first, second = (str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:2])
    server = subprocess.Popen(["taskset", "-c", first, *how, "-B", port],
                              stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + SERVES_WITHIN_S
        while True:
            told = subprocess.run(["taskset", "-c", second, *how, "-P", port, "127.0.0.1"],
                                  check=False, timeout=120, capture_output=True, text=True)
            # The size, the messages sent and received, the bytes, the time, MB/s, us, messages/us.
            line = re.search(rf"^{size} .* (\S+) +\S+ *$", told.stdout, re.MULTILINE)
            if line:
                return float(line.group(1))
            if time.monotonic() > end or server.poll() is not None:
                raise RuntimeError(told.stderr or told.stdout)
            time.sleep(0.05)
    finally:
        server.kill()
        server.wait()


def of_weft(weft: Path, provider: str, size: int) -> float:
    """Microseconds one way."""
    command = [weft, "perf", "latency", "--size", str(size), "--transport", "ofi", "--provider",
               provider, "--json"]
    told = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout
    return json.loads(told)["median"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weft", type=Path, help="the command, of a release build")
    parser.add_argument("--provider", action="append", help="of libfabric")
    parser.add_argument("--size", type=int, action="append", help="bytes of a message")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    if shutil.which("fi_pingpong") is None:
        sys.exit("fi_pingpong is not installed (Debian: libfabric-bin)")
    for provider in options.provider or PROVIDERS:
        for size in options.size or SIZES:
            turns = [(fi_pingpong(provider, size), of_weft(options.weft, provider, size))
                     for _ in range(options.turns)]
            ratios = [weft / plain for plain, weft in turns]
            plain, weft = (statistics.median(column) for column in zip(*turns))
            print(f"{provider}, {size} B: fi_pingpong {plain:.2f} us, weft {weft:.2f} us, ratio "
                  f"{statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})",
                  flush=True)


if __name__ == "__main__":
    main()
