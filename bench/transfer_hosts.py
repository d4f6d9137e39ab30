#!/usr/bin/env python3
"""`weft cp` between two joined hosts beside `weft perf put --to`, in turns:

  bench/transfer_hosts.py [--weft target/release/weft] [--turns 3] [--size 512] [--sessions 1,2,4]
                          [OPTIONS OF weft cp]

The hosts are network namespaces with a cable between them, each with a daemon, that join by a key
as those of the end-to-end cases do. A file of --size MiB is copied from memory to memory, verified
and not, over so many sessions. Rates are MB/s, of the whole command and while bytes move: to meet
and to end take a time that does not grow with the file. The ratio is the median of those of the
turns, as the machine may change its pace amid a run. Needs root.
"""
import argparse, functools, json, os, pathlib, signal, statistics, subprocess, sys, tempfile

PROGRAMS = pathlib.Path(__file__).resolve().parent.parent / "crates/tests/e2e/programs"
parser = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--weft", default="target/release/weft")
parser.add_argument("--turns", type=int, default=3)
parser.add_argument("--size", type=int, default=512)
parser.add_argument("--put-size", type=int, default=1 << 20)
parser.add_argument("--sessions", default="1")
parser.add_argument("--stages", action="store_true", help="what the threads of both ends took")
arguments, words = parser.parse_known_args()
WEFT = os.path.abspath(arguments.weft)
INSIDE = "TRANSFER_HOSTS_INSIDE"
if INSIDE not in os.environ:
    machine = ("mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /dev/shm; ip link set lo up; "
               f"export {INSIDE}=1; exec \"$@\"")
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "--net", "sh", "-c",
                          machine, "sh", sys.executable, os.path.abspath(__file__), *sys.argv[1:]])

# The two hosts are those of the end-to-end cases, which take their machine from the command line.
TOP = tempfile.mkdtemp(dir="/dev/shm")
sys.argv = [sys.argv[0], WEFT, "", TOP]
sys.path.insert(0, str(PROGRAMS))
from two_hosts import hosts, running, text_of, until  # noqa: E402


def processor():
    """Seconds of the processors, apart from those that nobody used."""
    with open("/proc/stat", encoding="ascii") as file:
        times = list(map(int, file.readline().split()[1:9]))
    return (sum(times) - times[3] - times[4]) / os.sysconf("SC_CLK_TCK")


def main():
    one, two = hosts()
    source, root = f"{TOP}/source", f"{TOP}/root"
    os.mkdir(root)
    with open(source, "wb") as file:
        part = os.urandom(1 << 20)
        for _ in range(arguments.size):
            file.write(part)
    log = two.start(WEFT, "transfer", "serve", "--listen", "0.0.0.0:7799", "--root", root)[1]
    until("the server is ready", lambda: "serving" in text_of(log))
    until("it is offered", lambda: "transfer.7799" in one.run(WEFT, "status"))

    def copy(*options):
        before = processor()
        shown = json.loads(one.run(WEFT, "cp", "--json", "--transport", "fabric", *options, *words,
                                   source, "weft://10.9.0.2:7799/there"))
        cost = processor() - before
        os.remove(f"{root}/there")
        assert shown["transport"] == "fabric", shown
        if arguments.stages:
            print({name: value for name, value in shown.items()
                   if name == "stages" or name.startswith(("seconds", "window"))})
        size = shown["bytes"] / 1e6
        return size / shown["seconds"], size / shown["seconds_moving"], cost / (size / 1e3)

    def put():
        serving = two.serve("--transport", "auto")
        try:
            size = str(arguments.put_size)
            told = json.loads(one.run(WEFT, "perf", "put", "--to", "1", "--json", "--runs", "1",
                                      "--size", size))
        finally:
            serving.terminate()
            serving.wait()
        assert told["unit"] == "GB/s", told
        return told["median"] * 1e3, told["median"] * 1e3, 0

    ways = {"put": put}
    for count in arguments.sessions.split(","):
        options = ("--streams", count)
        ways[f"cp, {count}"] = functools.partial(copy, *options)
        ways[f"cp, {count}, not verified"] = functools.partial(copy, "--no-verify", *options)
    got = {name: [] for name in ways}
    for _ in range(arguments.turns):
        for name, measure in ways.items():
            got[name].append(measure())
            whole, moving, cost = got[name][-1]
            print(f"{name:<20} {whole:8.1f} MB/s, moving {moving:8.1f} MB/s {cost:6.2f} CPU s/GB",
                  flush=True)
    for name in list(ways)[1:]:
        ratios = [statistics.median(a[part] / b[part] for a, b in zip(got[name], got["put"]))
                  for part in (0, 1)]
        print(f"{name}: medians of the ratios {ratios[0]:.3f}, moving {ratios[1]:.3f}")


try:
    main()
except BaseException:
    for process, log in running[-6:]:
        print(f"--- {process.args}\n{text_of(log)[-2000:]}")
    raise
finally:
    for process, _ in running:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
