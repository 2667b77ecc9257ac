#!/usr/bin/env python3
"""Why do two trainings with every seed fixed give other losses? From PyTorch.

Trains the small network of `convfuzz study reproducibility` twice from one seed, in
one process and in two, in fp32 and under autocast without loss scaling, with
PyTorch's default, with torch.backends.cudnn.benchmark, and with
torch.use_deterministic_algorithms; compares every tensor bit for bit, by hooks.
Prints a page and writes it with its tables, with the columns of the study's tables
where they have the same meaning:

    python3 scripts/studies/reproducibility.py --out results/studies/reproducibility-pytorch

To find the first difference in a network of your own, put it in place of `network`
and its data in place of `data`. Needs PyTorch 2.4 or later and a CUDA GPU (--device
cpu measures the CPU's kernels). Exit codes: 0 deterministic trainings repeat every
bit, 1 they do not, 2 bad usage, 3 no PyTorch or no such device.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

try:
    import torch
    from torch import nn
except ImportError:
    print("error: PyTorch is not installed: pip install torch", file=sys.stderr)
    sys.exit(3)

SCHEMA = 1
BATCH, CHANNELS, SIDE, CLASSES = 32, (8, 16, 16), 16, 10
STEPS = 4
RATE = 0.02
HERE, ELSEWHERE = 10, 3
PRECISIONS = ["fp32", "mixed"]
CHOICES = ["default", "benchmarked", "deterministic"]
TABLES = ["runs", "steps", "rates", "kernels", "corrected"]

# Names of the study: of what a layer computes, of the gradient of that, and of the
# gradients of a layer's parameters.
FORWARD = {"conv1": "conv1 fwd", "conv2": "conv2 fwd", "linear": "linear fwd"}
GRADIENTS = {
    "linear": ("loss", "dy"), "flatten": ("linear bwd_data", "dx"),
    "conv2": ("flatten backward", "dx"), "relu": ("conv2 bwd_data", "dx"),
    "batch norm": ("relu backward", "dx"), "conv1": ("batch norm backward", "dx"),
}
PARAMETERS = {
    ("batch norm", "weight"): ("batch norm backward", "dscale"),
    ("batch norm", "bias"): ("batch norm backward", "dbias"),
}

# The report's total losses.
REPORTED = [(37.44553, 37.44553), (37.56580, 37.56551), (37.46664, 37.46613), (37.67632, 37.67667)]


# Training.


def network():
    """The network, with the names of its layers in records."""
    first, second, third = CHANNELS
    return nn.Sequential(
        nn.Conv2d(first, second, 3, padding=1, bias=False),
        nn.BatchNorm2d(second),
        nn.ReLU(),
        nn.Conv2d(second, third, 3, padding=1, bias=False),
        nn.Flatten(),
        nn.Linear(third * SIDE * SIDE, CLASSES, bias=False),
    ), ["conv1", "batch norm", "relu", "conv2", "flatten", "linear"]


def data(device):
    """The batch and what the network is to make of it."""
    x = torch.randn(BATCH, CHANNELS[0], SIDE, SIDE)
    return x.to(device), torch.randn(BATCH, CLASSES).to(device)


class Recorder:
    """Keeps every tensor of a training in the order it is computed."""

    def __init__(self, model, names):
        self.trace, self.step = [], 0
        for name, layer in zip(names, model):
            layer.register_forward_hook(self.forward_hook(name))
            for tensor, parameter in layer.named_parameters(recurse=False):
                label = PARAMETERS.get((name, tensor), (f"{name} bwd_filter", "dw"))
                parameter.register_post_accumulate_grad_hook(self.gradient_hook(*label))

    def keep(self, operation, tensor, value):
        """Keeps a copy."""
        self.trace.append((self.step, operation, tensor, value.detach().clone()))

    def forward_hook(self, name):
        """Keeps what a layer computes, and later the gradient of that."""
        def hook(_layer, _inputs, output):
            self.keep(FORWARD.get(name, name), "y", output)
            output.register_hook(lambda gradient: self.keep(*GRADIENTS[name], gradient))
        return hook

    def gradient_hook(self, operation, tensor):
        """Keeps the gradient of a parameter."""
        return lambda parameter: self.keep(operation, tensor, parameter.grad)


def train(seed, precision, device, planted=False):
    """One training; all its tensors, on the CPU. A planted fault scales one gradient of the
    first step by little more than 1."""
    torch.manual_seed(seed)
    model, names = network()
    model = model.to(device)
    x, target = data(device)
    recorder = Recorder(model, names)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    if planted:
        model[3].weight.register_hook(lambda gradient: gradient * (1 + 2.0**-20)
                                      if recorder.step == 1 else gradient)
    for step in range(1, STEPS + 1):
        recorder.step = step
        optimizer.zero_grad()
        half = precision == "mixed"
        with torch.amp.autocast(device.type, dtype=torch.float16, enabled=half):
            loss = 0.5 * nn.functional.mse_loss(model(x), target)
        recorder.keep("loss", "loss", loss)
        loss.backward()
        optimizer.step()
        for name, parameter in model.named_parameters():
            layer, tensor = name.split(".")
            recorder.keep("update", f"{names[int(layer)]} {tensor}", parameter)
    return [(*label, value.cpu()) for *label, value in recorder.trace]


def choose(choice):
    """How algorithms are chosen, in the words of the framework."""
    torch.backends.cudnn.benchmark = choice == "benchmarked"
    torch.backends.cudnn.deterministic = choice == "deterministic"
    torch.use_deterministic_algorithms(choice == "deterministic")


# Comparison.


def bits(tensor):
    """The bits of a tensor's elements."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(kind)


def same(a, b):
    """Whether all tensors of two trainings have the same bits."""
    pairs = zip(a, b)
    return len(a) == len(b) and all(torch.equal(bits(p[3]), bits(q[3])) for p, q in pairs)


def ulps(a, b):
    """Largest difference in ulps of the larger value."""
    digits = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}[a.dtype]
    larger = torch.maximum(a.double().abs(), b.double().abs()).clamp(min=2.0**-126)
    ulp = 2.0 ** (torch.floor(torch.log2(larger)) - digits)
    return ((a.double() - b.double()).abs() / ulp).max().item()


def first_difference(a, b):
    """Columns of the first tensor that differs; none when all have the same bits."""
    for (step, operation, tensor, first), (*_, second) in zip(a, b):
        places = (bits(first) != bits(second)).nonzero()
        if len(places):
            place = tuple(places[0].tolist())
            return {
                "step": step, "operation": operation, "tensor": tensor,
                "elements": len(places), "of": first.numel(), "index": str(list(place)),
                "first": first[place].item(), "second": second[place].item(),
                "largest": (first.double() - second.double()).abs().max().item(),
                "largest_ulps": ulps(first, second),
            }
    return {}


def relative(a, b):
    """|a - b| as a share of a."""
    return 0.0 if a == b else abs(a - b) / abs(a)


def steps(a, b, head):
    """Rows of steps.csv."""
    def of(trace, step, operation):
        return [value for s, o, t, value in trace if (s, o) == (step, operation) and t != "dy"]
    rows = []
    for step in range(1, STEPS + 1):
        first, second = (of(trace, step, "loss")[0].item() for trace in (a, b))
        weights = zip(of(a, step, "update"), of(b, step, "update"))
        rows.append({
            **head, "step": step, "loss_first": first, "loss_second": second,
            "loss_relative": relative(first, second),
            "largest_weight_difference": max((p - q).abs().max().item() for p, q in weights),
            "reported_relative": relative(*REPORTED[step - 1]),
        })
    return rows


# One process.


def child(options):
    """Trains `--runs` times more than once; leaves the first training, the first one
    that differs from it (else the last), and the counts."""
    choose(options.choice)
    device = torch.device(options.device)
    first = train(options.seed, options.precision, device)
    other, until, identical = first, 0, 0
    for run in range(1, options.runs + 1):
        again = train(options.seed, options.precision, device, options.plant)
        equal = same(first, again)
        identical += equal
        if same(first, other):
            other, until = again, run
    found = {"first": first, "other": other, "until": until, "identical": identical}
    if options.rates:
        found["rates"] = rates(options, device)
        found["kernels"] = kernels(options, device)
    torch.save(found, options.child)


def rates(options, device):
    """How often a convolution's backward pass gives other bits for the same operands."""
    kind = torch.float16 if options.precision == "mixed" else torch.float32
    torch.manual_seed(options.seed)
    rows = []
    for name, inputs, outputs in (("conv1", *CHANNELS[:2]), ("conv2", *CHANNELS[1:])):
        x = torch.randn(BATCH, inputs, SIDE, SIDE).to(device, kind)
        w = torch.randn(outputs, inputs, 3, 3).to(device, kind)
        dy = torch.randn(BATCH, outputs, SIDE, SIDE).to(device, kind)

        def run(dy=dy, x=x, w=w):
            return torch.ops.aten.convolution_backward(
                dy, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])

        first = run()
        again = [run() for _ in range(options.repeats)]
        for place, direction in enumerate(("bwd_data", "bwd_filter")):
            differing = [a[place] for a in again if not torch.equal(bits(a[place]), bits(first[place]))]
            apart = [(d.double() - first[place].double()).abs().max().item() for d in differing]
            largest = max(apart, default=0.0)
            rows.append({
                "schema": SCHEMA, "precision": options.precision, "choice": options.choice,
                "operation": f"{name} {direction}", "runs": options.repeats,
                "differed": len(differing), "largest": largest,
                "largest_relative": largest / first[place].double().square().mean().sqrt().item(),
            })
    return rows


def kernels(options, device):
    """The kernels that convolutions launch, by the profiler; none on a CPU."""
    if device.type != "cuda":
        return []
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        train(options.seed, options.precision, device)
    pairs = {(event.name, kernel.name) for event in seen.events() if "conv" in event.name
             for kernel in event.kernels}
    return [{"schema": SCHEMA, "precision": options.precision, "choice": options.choice,
             "operation": operation, "kernel": kernel} for operation, kernel in sorted(pairs)]


def elsewhere(options, precision, choice, runs, detail):
    """Trains in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.pt"
        command = [sys.executable, __file__, "--child", path, "--precision", precision,
                   "--choice", choice, "--runs", runs, "--repeats", options.repeats,
                   "--seed", options.seed, "--device", options.device]
        command += ["--rates"] * detail + ["--plant"] * options.plant
        environment = dict(os.environ)
        if choice == "deterministic":
            environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        subprocess.run([str(part) for part in command], check=True, env=environment)
        return torch.load(path)


# All.


def pair(options, precision, choice):
    """Everything about one precision and choice: rows by table."""
    tables = {name: [] for name in TABLES}
    fixed = choice == "deterministic"
    here = elsewhere(options, precision, choice, options.repeats if fixed else min(HERE, options.repeats), True)
    first, there, count = here["first"], here["first"], 0
    while count < ELSEWHERE and same(first, there):
        found = elsewhere(options, precision, choice, 1 if options.plant else 0, False)
        there, count = found["other"], count + 1
    for processes, other, runs in ((1, here["other"], here["until"]), (2, there, count)):
        head = {"schema": SCHEMA, "precision": precision, "choice": choice, "processes": processes}
        equal = same(first, other)
        blank = dict.fromkeys(("step", "operation", "tensor", "elements", "of", "index", "first",
                               "second", "largest", "largest_ulps"), "")
        tables["runs"].append({**head, "runs": runs, "identical": equal, "tensors": len(first),
                               **blank, **first_difference(first, other)})
        tables["steps"] += steps(first, other, head)
    tables["rates"] += here["rates"]
    tables["kernels"] += here["kernels"]
    if fixed:
        tables["corrected"].append({
            "schema": SCHEMA, "precision": precision, "runs": options.repeats,
            "identical": here["identical"], "tensors": len(first)})
    return tables


def measure(options):
    """All tables. Pairs are measured side by side: most of the time goes into starting
    PyTorch."""
    pairs = [(precision, choice) for precision in PRECISIONS for choice in CHOICES]
    workers = max(1, min(len(pairs), (os.cpu_count() or 1) // 2))
    with ThreadPoolExecutor(workers) as pool:
        runs = {pool.submit(pair, options, *names): names for names in pairs}
        for run in as_completed(runs):
            run.result()
            print(f"{', '.join(runs[run])}: measured", file=sys.stderr)
        found = [run.result() for run in runs]
    tables = {name: [row for part in found for row in part[name]] for name in TABLES}
    return {**tables, "environment": [environment_of(torch.device(options.device))]}


def short(value):
    """A cell's text."""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(rows, columns):
    """A table of some columns."""
    lines = [columns, ["---"] * len(columns)]
    lines += [[short(row[column]) for column in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(tables, options):
    """The page."""
    parted = [row for row in tables["runs"] if not row["identical"]]
    parted.sort(key=lambda row: row["precision"] != "mixed")
    verdict = "No two trainings from one seed parted here."
    growth = [row for row in tables["steps"] if (row["precision"], row["choice"]) == ("mixed", "default")]
    if parted:
        row = parted[0]
        verdict = (f"Two trainings from one seed ({row['precision']}, {row['choice']}) part in step "
                   f"{row['step']}, at {row['tensor']} of {row['operation']}.")
        keys = ("precision", "choice", "processes")
        growth = [s for s in tables["steps"] if all(s[key] == row[key] for key in keys)]
    else:
        growth = [s for s in growth if s["processes"] == 1]
    counts = ", ".join(f"{row['identical']} of {row['runs']} in {row['precision']}"
                       for row in tables["corrected"])
    environment = tables["environment"][0]
    where = ", ".join(f"{key} {value}" for key, value in environment.items()
                      if key != "schema" and value != "")
    planted = " A fault was planted in every training but the first." if options.plant else ""
    kernel_part = ""
    if tables["kernels"]:
        kernel_part = f"""
## Kernels of the convolutions

{markdown(tables["kernels"], ["precision", "choice", "operation", "kernel"])}
"""
    return f"""# Why do two trainings with every seed fixed give other losses? From PyTorch

**{verdict} With deterministic algorithms, trainings that repeated the first bit for bit: {counts}.**{planted}

The network of `convfuzz study reproducibility`: convolution, batch norm, ReLU, convolution, linear layer, squared error,
SGD. *mixed* is autocast to fp16 without loss scaling (O1), *fp32* is O0. *default*: PyTorch as it is; *benchmarked*:
`torch.backends.cudnn.benchmark = True`; *deterministic*: `torch.use_deterministic_algorithms(True)`,
`torch.backends.cudnn.deterministic = True`, `benchmark = False`, `CUBLAS_WORKSPACE_CONFIG=:4096:8`.

## Where two runs part

Trainings compared with the first until one differed, at most {min(HERE, options.repeats)} in one process ({options.repeats} deterministic ones) and
{ELSEWHERE} in processes of their own. Trainings of all kinds run on the device at a time, as in a cluster;
autotuning measures under that load:

{markdown(tables["runs"], ["precision", "choice", "processes", "runs", "identical", "step", "operation",
                           "tensor", "elements", "of", "largest", "largest_ulps"])}

## How the difference grows

{markdown(growth, ["precision", "choice", "processes", "step", "loss_first", "loss_second", "loss_relative",
                   "largest_weight_difference", "reported_relative"])}

`reported_relative` is the report's total loss, of another and larger network.

## How often a convolution's backward pass gives other bits

{markdown(tables["rates"], ["precision", "choice", "operation", "differed", "runs", "largest", "largest_relative"])}
{kernel_part}
## What helps

{markdown(tables["corrected"], ["precision", "runs", "identical", "tensors"])}

## How this was measured

`python3 scripts/studies/reproducibility.py --device {options.device} --seed {options.seed} --repeats {options.repeats}`: {where}.
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


def write(folder, name, rows):
    """Writes a table as CSV."""
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: str(value).lower() if isinstance(value, bool) else value
                             for key, value in row.items()})


def positive(text):
    """A number of runs."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data [0]")
    parser.add_argument("--device", default="cuda", help="PyTorch's name of the device [cuda]")
    parser.add_argument("--repeats", type=positive, default=100,
                        help="deterministic trainings, and runs of a backward pass [100]")
    parser.add_argument("--plant", action="store_true",
                        help="change a gradient in every training but the first: must be found")
    parser.add_argument("--out", type=Path, help="folder for the page and the CSV files")
    inner = [("--child", Path), ("--precision", str), ("--choice", str), ("--runs", int)]
    for option, kind in inner:
        parser.add_argument(option, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--rates", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    """Measures, prints, writes."""
    options = arguments()
    if options.child:
        child(options)
        return 0
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("error: PyTorch sees no CUDA GPU; --device cpu measures the CPU", file=sys.stderr)
        return 3
    tables = measure(options)
    text = page(tables, options)
    print(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "page.md").write_text(text)
        for name, rows in tables.items():
            if rows:
                write(options.out, name, rows)
    fixed = [row for row in tables["runs"] if row["choice"] == "deterministic"]
    repeated = all(row["identical"] == row["runs"] for row in tables["corrected"])
    return 0 if repeated and all(row["identical"] for row in fixed) else 1


if __name__ == "__main__":
    sys.exit(main())
