#!/usr/bin/env python3
"""PyTorch's float64 CPU convolution beside the oracle, one thread each.

PyTorch's figure is for the value alone; the oracle's is for the value, S, the
count of nonzero products and a certificate. Products with padding count for
neither.

    pip install torch
    RAYON_NUM_THREADS=1 cargo bench --bench oracle > oracle.txt
    python scripts/bench/oracle_vs_pytorch.py oracle.txt
"""

import math
import re
import sys
import time

import torch

ROW = re.compile(
    r"^(\S+)\s+(\S+)\s+([\d.]+)\s+[\d.]+\s+[\d.]+\s+\d+  ((?:fwd|bwd_data|bwd_filter) .*)$"
)


def sizes(text):
    return [int(v) for v in text.split("x")]


def parse(line):
    """Tensors and arguments of a problem line with symmetric padding."""
    direction, *words = line.split()
    fields = dict(word.split("=", 1) for word in words)
    unknown = set(fields) - {"n", "c", "k", "in", "ker", "stride", "pad", "dil", "g", "type"}
    if unknown or "+" in fields.get("pad", ""):
        sys.exit(f"not for this comparison: {line}")
    space = sizes(fields["in"])
    ones, zeros = "x".join("1" * len(space)), "x".join("0" * len(space))
    n, c, k, g = (int(fields.get(key, 1)) for key in "nckg")
    args = {
        "stride": sizes(fields.get("stride", ones)),
        "padding": sizes(fields.get("pad", zeros)),
        "dilation": sizes(fields.get("dil", ones)),
        "groups": g,
    }
    x = torch.randn(n, c, *space, dtype=torch.float64)
    w = torch.randn(k, c // g, *sizes(fields["ker"]), dtype=torch.float64)
    return direction, x, w, args


def convolve(x, w, args):
    name = f"conv{x.dim() - 2}d"
    return getattr(torch.nn.functional, name)(x, w, **args)


def work(direction, x, w, args):
    """What to time, and its number of products."""
    y = convolve(x, w, args)
    products = int(convolve(torch.ones_like(x), torch.ones_like(w), args).sum().item())
    if direction == "fwd":
        return lambda: convolve(x, w, args), products
    mask = [direction == "bwd_data", direction == "bwd_filter", False]
    none = [0] * len(args["stride"])

    def backward():
        torch.ops.aten.convolution_backward(
            y, x, w, None, args["stride"], args["padding"], args["dilation"],
            False, none, args["groups"], mask,
        )

    return backward, products


def rate(run, products):
    best = math.inf
    start = time.perf_counter()
    while time.perf_counter() < start + 1.0:
        before = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - before)
    return products / best / 1e9


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    known = {}
    print(f"1e9 products/s, one thread, PyTorch {torch.__version__}")
    print(f"{'case':24} {'oracle':>8} {'PyTorch':>8} {'ratio':>6}")
    with open(sys.argv[1]) as table:
        rows = [row for row in map(ROW.match, table) if row]
    if not rows:
        sys.exit(f"{sys.argv[1]} holds no rows of the oracle's benchmark")
    for problem, dtype, ours, line in (row.groups() for row in rows):
        name = f"{problem}/{dtype}"
        shape = re.sub(r" type=\S+", "", line)
        if shape not in known:
            known[shape] = rate(*work(*parse(shape)))
        theirs = known[shape]
        print(f"{name:24} {float(ours):8.3f} {theirs:8.3f} {float(ours) / theirs:6.2f}")


if __name__ == "__main__":
    main()
