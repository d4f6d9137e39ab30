#!/usr/bin/env python3
"""Draws Figures 13 and 14 of the slides on RFTP from the simulator: bandwidth and processor time per
byte, over block size and streams, for 40 Gbit/s and 95 ms.

  bench/transfer_plot.py [--weft target/release/weft] OUT.svg [OPTIONS OF weft transfer sim …]
  weft transfer sim --json | bench/transfer_plot.py --weft - OUT.svg
"""
import json, subprocess, sys

words = sys.argv[1:]
weft = "target/release/weft"
if words[:1] == ["--weft"]:
    weft, words = words[1], words[2:]
if not words or words[0].startswith("-"):
    sys.exit(__doc__)
rows = json.loads(sys.stdin.read() if weft == "-" else
                  subprocess.run([weft, "transfer", "sim", "--json", *words[1:]], check=True,
                                 stdout=subprocess.PIPE).stdout)
blocks = sorted({row["block_bytes"] for row in rows})
streams = sorted({row["streams"] for row in rows})
WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 220, 60, 40, 90
COLOURS = ["#0b6e99", "#c44e00", "#3a7d44", "#7a3e9d", "#8a6d00"]
parts = []


def text(x, y, words, anchor="middle", more=""):
    parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{words}</text>')


def size(count):
    return f"{count >> 20}M" if count >= 1 << 20 else f"{count >> 10}K"


def panel(number, title, unit, value):
    left = LEFT + number * (WIDTH + GAP)
    top = max(value(row) for row in rows) * 1.1
    text(left + WIDTH / 2, TOP - 16, title, more='font-weight="bold"')
    text(left + WIDTH / 2, TOP + HEIGHT + 38, "bytes of a block")
    for step in range(6):
        y = TOP + HEIGHT - HEIGHT * step / 5
        parts.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#8884" fill="none"/>')
        text(left - 6, y + 4, f"{top * step / 5:.3g}{unit}", "end")
    for index, block in enumerate(blocks):
        x = left + WIDTH * (index + 0.5) / len(blocks)
        text(x, TOP + HEIGHT + 18, size(block))
        wide = WIDTH / len(blocks) * 0.8 / len(streams)
        for place, count in enumerate(streams):
            found = [row for row in rows if (row["block_bytes"], row["streams"]) == (block, count)]
            high = HEIGHT * value(found[0]) / top
            begin = x - wide * len(streams) / 2 + wide * place
            parts.append(f'<rect x="{begin:.1f}" y="{TOP + HEIGHT - high:.1f}" width="{wide:.1f}" '
                         f'height="{high:.1f}" fill="{COLOURS[place % len(COLOURS)]}"/>')


panel(0, "Share of the link (Figure 13)", " %", lambda row: row["share_of_link"] * 100)
panel(1, "Processor time of both ends (Figure 14)", "", lambda row: row["processor_seconds_per_gb"])
text(LEFT + WIDTH + GAP, TOP - 2, "s/GB", "end")
for place, count in enumerate(streams):
    x = LEFT + place * 110
    parts.append(f'<rect x="{x}" y="{TOP + HEIGHT + 54}" width="12" height="12" '
                 f'fill="{COLOURS[place % len(COLOURS)]}"/>')
    text(x + 18, TOP + HEIGHT + 64, f"{count} stream" + "s" * (count > 1), "start")
with open(words[0], "w") as file:
    file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + 2 * WIDTH + GAP + 20}" '
               f'height="{TOP + HEIGHT + 80}" font-family="sans-serif" font-size="12" '
               'style="background:#fff">' + "".join(parts) + "</svg>\n")
print("| block | streams | of the link | CPU s/GB | messages/GB |\n|---|---|---|---|---|")
for row in rows:
    print(f"| {size(row['block_bytes'])} | {row['streams']} | {row['share_of_link']:.1%} | "
          f"{row['processor_seconds_per_gb']:.4f} | {row['messages_per_gb']:.0f} |")
