#!/usr/bin/env python3
"""Does automatic mixed precision harm batch norm? The same quantities in PyTorch.

Measures what `convfuzz study batch-norm` measures, from the framework: types of
all tensors, errors of mean and variance of fp16 data, what casting up changes,
where fp16 overflows, and layer and group norm beside. Prints tables and writes
them as CSV, with the columns of the study's tables where they have the same
meaning:

    python3 scripts/studies/batch_norm.py --out results/studies/batch-norm-pytorch

Needs PyTorch 2.4 or later and a CUDA GPU (--device cpu measures the CPU's
kernels). Exit codes: 0 measured, 2 bad usage, 3 no PyTorch or no such device.
"""

import argparse
import csv
import math
import sys
from pathlib import Path

try:
    import torch
    from torch import nn
except ImportError:
    print("error: PyTorch is not installed: pip install torch", file=sys.stderr)
    sys.exit(3)

SCHEMA = 1
OFFSETS = [0.0, 1.0, 10.0, 100.0, 1000.0, 4000.0]
SCALES = [1.0, 256.0, 4096.0, 16384.0, 20000.0, 32768.0, 65536.0, 131072.0, 262144.0]
LARGEST_HALF = 65504.0


def half_ulp(values):
    """Goldberg's ulp of fp16 at float64 values."""
    exponent = torch.floor(torch.log2(values.abs().clamp(min=2.0**-14)))
    return 2.0 ** (exponent.clamp(min=-14.0) - 10)


def beyond_half(tensor):
    """Share of values that fp16 cannot hold."""
    wide = tensor.double()
    return (wide.half().double() != wide).double().mean().item()


def exact_statistics(x, axes):
    """Mean and biased variance in fp64: exact for fp16 data but for 2^-40 or so."""
    wide = x.double()
    mean = wide.mean(axes, keepdim=True)
    return mean, ((wide - mean) ** 2).mean(axes, keepdim=True)


def exact_norm(x, axes, epsilon=1e-5):
    """x normalised over axes in fp64, scale 1, bias 0."""
    mean, variance = exact_statistics(x, axes)
    return (x.double() - mean) / torch.sqrt(variance + epsilon)


def batch_norm(x, cudnn, channels_last):
    """y, mean, inverse deviation and updated running statistics of one training
    pass over 4 channels, factor 1."""
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    channels = x.shape[1]
    parameter = {"device": x.device, "dtype": torch.float32}
    running_mean = torch.zeros(channels, **parameter)
    running_variance = torch.ones(channels, **parameter)
    scale, bias = torch.ones(channels, **parameter), torch.zeros(channels, **parameter)
    with torch.backends.cudnn.flags(enabled=cudnn):
        y, mean, inverse = torch.native_batch_norm(
            x, scale, bias, running_mean, running_variance, True, 1.0, 1e-5
        ) if not cudnn else torch.cudnn_batch_norm(
            x, scale, bias, running_mean, running_variance, True, 1.0, 1e-5
        )[:3]
    return y, mean, inverse, running_mean, running_variance


def kernels(device):
    """(name, cudnn, channels_last) of the implementations there are."""
    native = [("native", False, False), ("native channels_last", False, True)]
    if device.type != "cuda" or not torch.backends.cudnn.is_available():
        return native
    return native + [("cudnn", True, False), ("cudnn channels_last", True, True)]


def types(device):
    """The report's network under autocast: types of every tensor."""
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 5)).to(device)
    x = torch.randn(16, 4, device=device)
    rows = []
    with torch.amp.autocast(device.type, dtype=torch.float16):
        for layer in network:
            x = layer(x)
            rows.append((type(layer).__name__, x))
        for norm in (nn.LayerNorm(4), nn.GroupNorm(2, 4)):
            rows.append((type(norm).__name__, norm.to(device)(rows[0][1])))
    batch = network[1]
    rows += [
        ("BatchNorm1d.weight", batch.weight),
        ("BatchNorm1d.bias", batch.bias),
        ("BatchNorm1d.running_mean", batch.running_mean),
        ("BatchNorm1d.running_var", batch.running_var),
    ]
    return [
        {
            "schema": SCHEMA,
            "tensor": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "beyond_fp16": beyond_half(tensor.detach()),
        }
        for name, tensor in rows
    ]


def statistics(draws, device):
    """Errors of mean and variance of fp16 data against fp64."""
    rows = []
    for offset in OFFSETS:
        x = (draws + offset).half()
        mean, variance = (v.flatten() for v in exact_statistics(x, (0, 2, 3)))
        count = x.numel() // x.shape[1]
        deviation = variance.sqrt()
        magnitude = x.double().abs().mean((0, 2, 3))
        for name, cudnn, last in kernels(device):
            y, saved_mean, _, _, running = batch_norm(x, cudnn, last)
            off = (saved_mean.double() - mean).abs()
            computed = running.double() * (count - 1) / count
            half_mean = (mean.half().double() - mean).abs() / deviation
            half_variance = (variance.half().double() - variance).abs() / variance
            exact = exact_norm(x, (0, 2, 3))
            rows.append({
                "schema": SCHEMA,
                "offset": offset,
                "candidate": name,
                "mean_error": (off / deviation).max().item(),
                "mean_units": (off / (2.0**-24 * magnitude)).max().item(),
                "variance_error": ((computed - variance).abs() / variance).max().item(),
                "fp16_mean_error": half_mean.max().item(),
                "fp16_variance_error": half_variance.max().item(),
                "y_error": (y.double() - exact).abs().max().item(),
            })
    return rows


def upcast(draws, device):
    """fp16 data as it is, and cast up."""
    rows = []
    for offset in OFFSETS:
        unrounded = draws + offset
        x = unrounded.half()
        exact = exact_norm(x, (0, 2, 3))
        moved = (exact_norm(unrounded, (0, 2, 3)) - exact).abs().max().item()
        for name, cudnn, last in kernels(device):
            half = batch_norm(x, cudnn, last)
            cast = batch_norm(x.float(), cudnn, last)
            rounding = half_ulp(exact) / 2
            equal = [(half[i] == cast[i]).double().mean().item() for i in (1, 2)]
            rows.append({
                "schema": SCHEMA,
                "offset": offset,
                "candidate": name,
                "y_equal": (half[0] == cast[0].half()).double().mean().item(),
                "statistics_equal": sum(equal) / 2,
                "fp16_excess": ((half[0].double() - exact).abs() - rounding).max().item(),
                "fp32_error": (cast[0].double() - exact).abs().max().item(),
                "output_rounding": rounding.max().item(),
                "input_loss": moved,
            })
    return rows


def not_finite(tensor):
    """Share of elements that are not finite."""
    return (~torch.isfinite(tensor)).double().mean().item()


@torch.no_grad()
def overflow(device):
    """Where fp16's y overflows, and what the next linear layer makes of it."""
    rows = []
    x = torch.randn(2048, 4, device=device).half()
    linear = nn.Linear(4, 5, bias=False).to(device)
    for scale in SCALES:
        norm = nn.BatchNorm1d(4).to(device)
        norm.weight.fill_(scale)
        half, wide = norm(x), norm(x.float())
        with torch.amp.autocast(device.type, dtype=torch.float16):
            of_half, of_cast = linear(half), linear(wide)
        exact = wide.double() @ linear.weight.half().double().T
        rows.append({
            "schema": SCHEMA,
            "scale": scale,
            "largest": wide.double().abs().max().item(),
            "fp16_infinite": torch.isinf(half).double().mean().item(),
            "fp32_infinite": torch.isinf(wide).double().mean().item(),
            "linear_of_fp16": not_finite(of_half),
            "linear_of_cast": not_finite(of_cast),
            "linear_of_fp32": not_finite(exact.half()),
            "linear_in_fp32": not_finite(linear(wide)),
        })
    return rows


def norms(draws, device):
    """Batch, layer and group norm in fp16 and in fp32, without autocast."""
    shape = draws.shape[1:]
    channels = shape[0]
    batch = nn.BatchNorm2d(channels, affine=False).to(device)
    layer = nn.LayerNorm(shape, elementwise_affine=False).to(device)
    group = nn.GroupNorm(2, channels, affine=False).to(device)
    rows = []
    for offset in OFFSETS:
        x = (draws + offset).half()
        grouped = x.reshape(x.shape[0], 2, -1)
        for name, norm, exact, count in (
            ("batch", batch, exact_norm(x, (0, 2, 3)), x.numel() // channels),
            ("layer", layer, exact_norm(x, (1, 2, 3)), math.prod(shape)),
            ("group", group, exact_norm(grouped, (2,)).reshape(x.shape), math.prod(shape) // 2),
        ):
            shown = exact.abs() >= 0.0625
            ulp = half_ulp(exact)
            errors = [((norm(data).double() - exact).abs() / ulp)[shown] for data in (x, x.float())]
            rows.append({
                "schema": SCHEMA,
                "norm": name,
                "offset": offset,
                "count": count,
                "fp16_ulp": errors[0].max().item(),
                "fp32_ulp": errors[1].max().item(),
            })
    return rows


def show(name, rows):
    """Prints a table."""
    columns = [column for column in rows[0] if column != "schema"]

    def text(value):
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    cells = [columns] + [[text(row[column]) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    print(f"\n{name}")
    for line in cells:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def write(folder, name, rows):
    """Writes a table as CSV."""
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def environment(device):
    """What it is measured on, a row."""
    cuda = device.type == "cuda"
    return [{
        "schema": SCHEMA,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": torch.backends.cudnn.version() if cuda else "",
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
    }]


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of all data [0]")
    parser.add_argument("--device", default="cuda", help="PyTorch's name of the device [cuda]")
    parser.add_argument("--out", type=Path, help="folder for the CSV files")
    return parser.parse_args()


def main():
    """Measures, prints, writes."""
    options = arguments()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("error: PyTorch sees no CUDA GPU; --device cpu measures the CPU", file=sys.stderr)
        return 3
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    draws = torch.randn(16, 4, 14, 14, device=device)
    tables = {
        "environment": environment(device),
        "types": types(device),
        "statistics": statistics(draws, device),
        "upcast": upcast(draws, device),
        "overflow": overflow(device),
        "norms": norms(draws, device),
    }
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        show(name, rows)
        if options.out:
            write(options.out, name, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
