#!/usr/bin/env python3
"""Does half precision explain what a Conv3d gives on a V100 and on a P40? From PyTorch.

Measures the eight comparisons of `convfuzz study amp-conv3d` in the framework, with
torch.amp in place of Apex's opt levels: O0 is fp32, O1 autocast, O2 the model in
half. Prints a table with the reported figures and writes it as CSV and as a page,
with the columns of the study's tables where they have the same meaning:

    python3 scripts/studies/amp_conv3d.py --out results/studies/amp-conv3d-pytorch

Needs PyTorch 2.4 or later and a CUDA GPU (--device cpu measures the CPU's kernels).
Exit codes: 0 every P40 figure is met, 1 one is not, 2 bad usage, 3 no PyTorch or no
such device.
"""

import argparse
import csv
import math
import statistics
import sys
from pathlib import Path

try:
    import torch
    from torch import nn
except ImportError:
    print("error: PyTorch is not installed: pip install torch", file=sys.stderr)
    sys.exit(3)

SCHEMA = 1
BATCH = 4
INPUT = (8, 16, 16)
SAME = 0.05
# Filters computed on a CPU: the figure is a mean over alike outputs, so that fewer
# change how far single figures spread and not what they tend to.
FEWER = 8
HALF_DIGIT = 0.00005

# in, out, kernel, lowest and highest figure of the V100, figure of the P40
REPORTED = [
    (8, 4, (3, 1, 1), 0.0016, 0.0016, 0.0014),
    (8, 4, (3, 3, 3), 0.0042, 0.0042, 0.0038),
    (8, 4, (1, 1, 1), 0.0007, 0.0007, 0.0009),
    (8, 4, (1, 3, 3), 0.0021, 0.0021, 0.0023),
    (512, 128, (3, 1, 1), 34.65, 34.79, 0.0106),
    (512, 128, (3, 3, 3), 0.0303, 0.0303, 0.0305),
    (512, 128, (1, 1, 1), 0.0064, 0.0064, 0.0064),
    (512, 128, (1, 3, 3), 0.0183, 0.0183, 0.0184),
]


def name(channels, filters, kernel):
    """As the study names a comparison."""
    return f"{channels}→{filters} ({','.join(map(str, kernel))})"


def distance(a, b):
    """Mean |a - b| of every sample, in fp64."""
    return (a.double() - b.double()).abs().mean((1, 2, 3, 4)).tolist()


def outputs(conv, x):
    """What O0, O1, O2 and fp64 make of x, O0 once more with TF32 allowed, and fp64 of
    fp16 operands."""
    half = nn.Conv3d(conv.in_channels, conv.out_channels, conv.kernel_size,
                     padding=conv.padding, bias=False).to(x.device)
    half.load_state_dict(conv.state_dict())
    half = half.half()
    with torch.backends.cudnn.flags(allow_tf32=False):
        found = {"o0": conv(x), "o2": half(x.half())}
        with torch.amp.autocast(x.device.type, dtype=torch.float16):
            found["o1"] = conv(x)
        convolve = torch.nn.functional.conv3d
        weight = conv.weight.double()
        found["exact"] = convolve(x.double(), weight, padding=conv.padding)
        found["exact_half"] = convolve(
            x.half().double(), weight.half().double(), padding=conv.padding)
    with torch.backends.cudnn.flags(allow_tf32=True):
        found["tf32"] = conv(x)
    return found


@torch.no_grad()
def measure(reported, seeds, device):
    """A row of comparisons.csv."""
    channels, filters, kernel, low, high, p40 = reported
    figures = {key: [] for key in ("o2", "o1", "o2_o1", "tf32", "o0_error", "o2_error", "o2_own")}
    kinds = set()
    for seed in seeds:
        draws = torch.Generator().manual_seed(seed)
        x = torch.randn(BATCH, channels, *INPUT, generator=draws).to(device)
        padding = tuple(extent // 2 for extent in kernel)
        computed = filters if device.type == "cuda" else min(filters, FEWER)
        conv = nn.Conv3d(channels, computed, kernel, padding=padding, bias=False)
        conv.weight.copy_(torch.randn(conv.weight.shape, generator=draws))
        found = outputs(conv.to(device), x)
        kinds.add(str(found["o1"].dtype).removeprefix("torch."))
        for key, a, b in (
            ("o2", "o0", "o2"), ("o1", "o0", "o1"), ("o2_o1", "o2", "o1"), ("tf32", "tf32", "o2"),
            ("o0_error", "o0", "exact"), ("o2_error", "o2", "exact"),
            ("o2_own", "o2", "exact_half"),
        ):
            figures[key] += distance(found[a], found[b])
    mean = {key: statistics.fmean(values) for key, values in figures.items()}
    deviation = statistics.stdev(figures["o2"])
    return {
        "schema": SCHEMA,
        "comparison": name(channels, filters, kernel),
        "v100_lowest": low,
        "v100_highest": high,
        "p40": p40,
        "measured": mean["o2"],
        "deviation": deviation,
        "figures": len(figures["o2"]),
        "from_p40": mean["o2"] / p40 - 1,
        "p40_explained": explained(mean["o2"], deviation, p40),
        "from_v100": mean["o2"] / low - 1,
        "v100_explained": explained(mean["o2"], deviation, low),
        "o0_o1": mean["o1"],
        "o2_o1": mean["o2_o1"],
        "o1_dtype": " ".join(sorted(kinds)),
        "tf32_o2": mean["tf32"],
        "o0_error": mean["o0_error"],
        "o2_error": mean["o2_error"],
        "o2_own_error": mean["o2_own"],
    }


def explained(mean, deviation, figure):
    """Whether a reported figure is the measured one: within 5%, or where 95% of
    single figures lie as far as its digits tell."""
    near = abs(mean / figure - 1) <= SAME
    return near or abs(mean - figure) <= 1.96 * deviation + HALF_DIGIT


def short(value):
    """A cell's text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(header, rows):
    """A table."""
    lines = [header, ["---"] * len(header)] + [[short(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(rows, environment, options):
    """The page."""
    met = sum(row["p40_explained"] for row in rows)
    v100 = sum(row["v100_explained"] for row in rows)
    exception = rows[4]
    table = [[
        row["comparison"], row["v100_lowest"], row["p40"], row["measured"], row["deviation"],
        f"{100 * row['from_p40']:+.1f}%", row["p40_explained"], row["v100_explained"],
    ] for row in rows]
    others = [[
        row["comparison"], row["measured"], row["o0_o1"], row["o2_o1"], row["o1_dtype"],
        row["tf32_o2"], row["o0_error"], row["o2_error"], row["o2_own_error"],
    ] for row in rows]
    where = ", ".join(f"{key} {value}" for key, value in environment.items()
                      if key != "schema" and value != "")
    fewer = "" if environment["device"] != "cpu" else f"The CPU computed {FEWER} filters at most. "
    return f"""# Does half precision explain what this Conv3d gives? From PyTorch

**Half precision explains {met} of the 8 figures of the P40 and {v100} of the 8 of the V100.
For {exception['comparison']}, where the V100 gave 34.65, it is {short(exception['measured'])} here.**

{fewer}Mean |O0 − O2| of a sample; O0 in fp32 without TF32, O2 the layer in half. *met*: within 5%
of the measured mean, or where 95% of single figures lie as far as the printed digits tell (the
8→4 figures depend on few random weights).

{markdown(["in→out (kernel)", "V100, reported", "P40, reported", "measured", "deviation",
           "from P40", "P40 met", "V100 met"], table)}

## O1, TF32 and fp64

Mean distances. O1 is autocast, which runs the same fp16 convolution as O2: O0 against O1 cannot
be zero. If O0 itself runs in TF32, today's default, it rounds its operands as fp16 does. The
last three columns are against fp64: of the fp32 operands, and, for O2, of its own rounded ones.

{markdown(["in→out (kernel)", "O0 − O2", "O0 − O1", "O2 − O1", "type of O1's output", "TF32 − O2",
           "O0 − fp64", "O2 − fp64", "O2 − fp64 of its operands"], others)}

## How this was measured

`python3 scripts/studies/amp_conv3d.py --device {options.device} --seed {options.seed} --seeds {options.seeds}`: {where}.
"""


def environment_of(device):
    """What it is measured on, a row."""
    cuda = device.type == "cuda"
    return {
        "schema": SCHEMA,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": torch.backends.cudnn.version() if cuda else "",
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
    }


def write(folder, file, rows):
    """Writes a table as CSV."""
    with (folder / f"{file}.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: str(value).lower() if isinstance(value, bool) else value
                             for key, value in row.items()})


def positive(text):
    """A number of seeds."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="first seed of data and weights [0]")
    parser.add_argument("--seeds", type=positive, default=32, help="seeds to average over [32]")
    parser.add_argument("--device", default="cuda", help="PyTorch's name of the device [cuda]")
    parser.add_argument("--out", type=Path, help="folder for the page and the CSV files")
    return parser.parse_args()


def main():
    """Measures, prints, writes."""
    options = arguments()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("error: PyTorch sees no CUDA GPU; --device cpu measures the CPU", file=sys.stderr)
        return 3
    device = torch.device(options.device)
    rows = []
    for reported in REPORTED:
        rows.append(measure(reported, range(options.seed, options.seed + options.seeds), device))
        print(f"{rows[-1]['comparison']}: {short(rows[-1]['measured'])}", file=sys.stderr)
    text = page(rows, environment_of(device), options)
    print(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "page.md").write_text(text)
        write(options.out, "comparisons", rows)
        write(options.out, "environment", [environment_of(device)])
    finite = all(math.isfinite(row["measured"]) for row in rows)
    return 0 if finite and all(row["p40_explained"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
