#!/usr/bin/env python3
"""Runs real programs under weft, both ends or one, and says what came of it.

examples:
  matrix/run.py --peers                 installs what is missing (Debian, as root), runs all
  matrix/run.py --only nginx            the cases whose name has `nginx` in it
  matrix/run.py --only redis --mode both --keep
  matrix/run.py --list

Each case runs four times: both ends under weft, the server alone, the client alone, and neither,
which tells a mistake of the case from one of weft. Contents are compared byte for byte. `share` is
what went over the fabric of all bytes that `weft run --stats` counted at both ends.

exit status: 0 when nothing failed, 1 when something did, 2 for a mistake in the arguments.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import harness  # noqa: E402  (it is beside this file, not installed)
from harness import Failed, Mode, Node, Skip  # noqa: E402

# In order of importance: what most people would put weft in front of comes first.
PROGRAMS = (
    "nginx",
    "postgresql",
    "redis",
    "memcached",
    "openssh",
    "rsync",
    "git",
    "node",
    "java",
    "python",
    "scripts",
    "tls",
    "http2",
    "iperf3",
    "unseen",
    "netcat",
)


def modules():
    return [importlib.import_module(f"programs.{name}") for name in PROGRAMS]


def install(packages):
    """Installs Debian packages; what cannot be installed is missing, and its cases are skipped."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    # Their servers must not start: the cases start their own.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        subprocess.run(["apt-get", "update"], env=environment, stdout=2, timeout=300)
        for package in packages:
            command = ["apt-get", "install", "-y", "--no-install-recommends", package]
            if subprocess.run(command, env=environment, stdout=2, timeout=900).returncode:
                print(f"matrix: {package} cannot be installed", file=sys.stderr)
    finally:
        if ours:
            policy.unlink()


def run(case, mode, weft, keep):
    """One case in one mode; returns a row of the table."""
    row = {"case": case.name, "mode": mode.value, "result": "ok", "share": None, "why": ""}
    if mode is Mode.BOTH:
        row["why"] = case.note
    start, node = time.monotonic(), None
    try:
        for program in case.needs:
            harness.find(program)
        node = Node(weft, mode)
        try:
            case.run(node)
        finally:
            wrong = node.close()
        harness.check(not wrong, "\n".join(wrong))
        judge(case, mode, node)
    except Skip as skip:
        row |= {"result": "skipped", "why": str(skip)}
    except Failed as failure:
        row |= {"result": "FAILED", "why": str(failure)}
    except Exception:  # a mistake of the case itself is a failure, not the end of the matrix
        row |= {"result": "FAILED", "why": traceback.format_exc()}
    finally:
        harness.kill_descendants()
    if node:
        row["share"] = node.statistics.share
        row["statistics"] = {
            "fabric": vars(node.statistics.fabric),
            "tcp": vars(node.statistics.tcp),
            "reasons": node.statistics.reasons,
        }
        if keep and row["result"] == "FAILED":
            row["why"] += f"\nits files are in {node.directory}"
        else:
            node.remove()
    row["seconds"] = round(time.monotonic() - start, 1)
    return row


def judge(case, mode, node):
    """Did the bytes go where they should?"""
    counted = node.statistics
    if mode is Mode.NEITHER:
        return
    harness.check(counted.tables, "no program ran under weft")
    missing = ", ".join(node.missing_tables)
    harness.check(not missing, f"no counters of {missing}: was weft itself killed?")
    if mode is Mode.BOTH and case.share:
        share = counted.share
        harness.check(
            share is not None and share >= case.share,
            f"a share of {percent(share)} over the fabric, {percent(case.share)} at least were "
            f"expected: {counted}",
        )
    elif mode is not Mode.BOTH and not case.talks_to_itself:
        harness.check(counted.fabric.bytes == 0, f"bytes on the fabric without a peer: {counted}")


def percent(share):
    return "-" if share is None else f"{share * 100:.1f} %"


def show(row, file=sys.stdout):
    line = (
        f"{row['case']:<34} {row['mode']:<8} {row['result']:<8} {percent(row['share']):>8} "
        f"{row['seconds']:>6.1f} s"
    )
    if row["why"] and row["result"] != "FAILED":
        line += f"  {row['why']}"
    print(line, file=file, flush=True)
    if row["result"] == "FAILED":
        print("".join(f"    {part}\n" for part in row["why"].splitlines()), file=file, flush=True)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="cases with NAME in their name; repeatable"
    )
    parser.add_argument(
        "--mode", choices=[mode.value for mode in Mode], action="append", help="repeatable"
    )
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--peers", action="store_true", help="install the Debian packages first")
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    parser.add_argument("--keep", action="store_true", help="keep the files of cases that failed")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run all N times")
    parser.add_argument(
        "--weft",
        metavar="PATH",
        default=HERE.parent / "target/release/weft",
        help="the weft to test, with libweft_preload.so beside it; default: target/release/weft",
    )
    return parser.parse_args()


def main():
    given = arguments()
    found = modules()
    cases = [case for module in found for case in module.CASES]
    if given.only:
        cases = [case for case in cases if any(part in case.name for part in given.only)]
    if given.list:
        for case in cases:
            print(f"{case.name:<34} needs {', '.join(case.needs) or 'nothing'}")
        return 0
    weft = Path(given.weft).resolve()
    if not cases or not weft.is_file():
        wrong = f"{weft} is not there; build it" if cases else "no case has that name; see --list"
        print(f"matrix: {wrong}", file=sys.stderr)
        return 2
    if given.peers:
        wanted = {package for module in found for package in module.PACKAGES}
        install(sorted(wanted))
    harness.become_reaper()
    modes = [Mode(name) for name in given.mode] if given.mode else list(Mode)
    progress = sys.stderr if given.json else sys.stdout
    rows = []
    for _ in range(given.repeat):
        for case in cases:
            for mode in (mode for mode in modes if mode in case.modes):
                rows.append(run(case, mode, weft, given.keep))
                show(rows[-1], progress)
    count = {result: 0 for result in ("ok", "FAILED", "skipped")}
    for row in rows:
        count[row["result"]] += 1
    print(f"{count['ok']} ok, {count['FAILED']} failed, {count['skipped']} skipped", file=progress)
    if given.json:
        print(json.dumps({"rows": rows, "count": count}, indent=2))
    return 1 if count["FAILED"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        harness.kill_descendants()
