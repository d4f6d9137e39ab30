"""Send-Index beside Build-Index for bench/kv.py: runs in turns, a table for each mix, and a plot in
the form of Figures 2.3 to 2.10 of the deliverable."""

import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile

KINDS = ["send-index", "build-index"]
TAILS = ["p50", "p99", "p999", "p9999"]
# Figures of a phase, their titles, and whether Send-Index should have more of it.
FIGURES = [("ops_per_second", "operations/s", True),
           ("cpu_us_per_op", "CPU us/op", False),
           ("device_io_amplification", "device I/O", False),
           ("syscall_io_amplification", "I/O by system calls", False),
           ("network_amplification", "network", None)]


def run(weft, kind, mix, records, operations, phases, arguments, join):
    """One run of `weft kv bench` in an empty directory. Returns its phases."""
    directory = pathlib.Path(tempfile.mkdtemp(dir=arguments.dir))
    words = [weft, "kv", "bench", "--data", directory / "store", "--workload", ",".join(phases),
             "--mix", mix, "--records", records, "--operations", operations,
             "--threads", arguments.threads, "--level0-bytes", arguments.level0,
             "--cache-bytes", arguments.cache, "--replicas", arguments.replicas,
             "--replication", kind, "--json"]
    try:
        done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True,
                              check=True, preexec_fn=join, timeout=600)
        return json.loads(done.stdout.splitlines()[-1])["phases"]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def medians(results, phases):
    """For each kind and phase the medians of all figures and tails."""
    out = {}
    for kind, runs in results.items():
        for index, phase in enumerate(phases):
            rows = [run[index] for run in runs]
            cell = {name: statistics.median(row[name] for row in rows) for name, _, _ in FIGURES}
            cell["backup_compaction_read_bytes"] = max(
                row["backup_compaction_read_bytes"] for row in rows)
            for way in ["read", "write"]:
                cell[way] = [statistics.median(row[f"{way}_latency_us"][tail] for row in rows)
                             for tail in TAILS]
            out[kind, phase] = cell
    return out


def better(cells, phase, name, more):
    """How many times better Send-Index is; for the network how many times more it takes."""
    send, build = cells["send-index", phase][name], cells["build-index", phase][name]
    top, bottom = (send, build) if more in (True, None) else (build, send)
    return top / bottom if bottom else float("nan")


def table(mix, results, phases):
    """Prints the table of a mix."""
    cells = medians(results, phases)
    runs = len(next(iter(results.values())))
    print(f"\n{mix} mix, medians of {runs} runs of each kind in turns\n")
    print("| phase | figure | Send-Index | Build-Index | ratio | Send-Index is |\n"
          "|---|---|---|---|---|---|")
    for phase in phases:
        send, build = cells["send-index", phase], cells["build-index", phase]
        for name, title, more in FIGURES:
            word = {True: "faster", False: "cheaper", None: "more"}[more]
            digits = 0 if more else 2
            print(f"| {phase} | {title} | {send[name]:,.{digits}f} | {build[name]:,.{digits}f} | "
                  f"{better(cells, phase, name, more):.2f} | {word} |")
        read = "backup_compaction_read_bytes"
        print(f"| {phase} | compaction reads of backups, bytes | {send[read]:,} | {build[read]:,} "
              "| | |")
        for way in ["read", "write"]:
            if any(send[way]):
                rows = ["/".join(f"{value:,.0f}" for value in cell[way]) for cell in (send, build)]
                ratio = build[way][2] / send[way][2] if send[way][2] else float("nan")
                print(f"| {phase} | {way} us p50/p99/p99.9/p99.99 | {rows[0]} | {rows[1]} | "
                      f"{ratio:.2f} at p99.9 | faster |")
    return cells


def plot(path, everything, phases):
    """Bars of each figure over mixes and phases, Send-Index left and Build-Index right, and the
    tails of writes."""
    colours = {"send-index": "#0b6e99", "build-index": "#c44e00"}
    wide, high, left, gap = 120 * max(1, len(everything) * len(phases)), 150, 90, 60
    parts, top = [], 40
    groups = [(mix, phase) for mix in everything for phase in phases]

    def text(x, y, words, anchor="middle"):
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>')

    panels = [(title, lambda cell, name=name: cell[name]) for name, title, _ in FIGURES]
    panels += [(f"write us, {tail}", lambda cell, at=at: cell["write"][at])
               for at, tail in enumerate(TAILS)]
    for title, value in panels:
        most = max(value(everything[mix][kind, phase]) for mix, phase in groups for kind in KINDS)
        most = (most or 1) * 1.1
        text(left + wide / 2, top - 10, title)
        for step in range(5):
            y = top + high - high * step / 4
            parts.append(f'<path d="M{left} {y:.1f}h{wide}" stroke="#8884" fill="none"/>')
            text(left - 6, y + 4, f"{most * step / 4:,.4g}", "end")
        for index, (mix, phase) in enumerate(groups):
            middle = left + wide * (index + 0.5) / len(groups)
            text(middle, top + high + 16, f"{mix} {phase}")
            for place, kind in enumerate(KINDS):
                tall = high * value(everything[mix][kind, phase]) / most
                parts.append(f'<rect x="{middle - 36 + 36 * place:.1f}" '
                             f'y="{top + high - tall:.1f}" width="34" height="{tall:.1f}" '
                             f'fill="{colours[kind]}"/>')
        top += high + gap
    for place, kind in enumerate(KINDS):
        parts.append(f'<rect x="{left + 120 * place}" y="{top - 20}" width="12" height="12" '
                     f'fill="{colours[kind]}"/>')
        text(left + 18 + 120 * place, top - 10, kind, "start")
    pathlib.Path(path).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 20}" height="{top + 10}" '
        'font-family="sans-serif" font-size="12" style="background:#fff">'
        + "".join(parts) + "</svg>\n")
