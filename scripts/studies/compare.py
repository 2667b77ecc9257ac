#!/usr/bin/env python3
"""Puts a study's tables beside those that its script measured from PyTorch.

    python3 scripts/studies/compare.py results/studies/amp-conv3d-... results/studies/amp-conv3d-pytorch

Rows with the same keys are joined, and columns that both tables have are shown: one
value where both are the same, else the study's, PyTorch's and their ratio; of several
candidates with the same keys the largest. Prints Markdown; --out writes it to a file. Exit codes: 0 compared, 2 bad usage, 3 no table in common.
"""

import argparse
import csv
import math
import sys
from pathlib import Path

# Columns that name a row, by table.
KEYS = {
    "comparisons.csv": ("comparison",),
    "statistics.csv": ("offset",),
    "upcast.csv": ("offset",),
    "overflow.csv": ("scale",),
    "norms.csv": ("norm", "offset"),
    "runs.csv": ("precision", "choice", "processes"),
    "steps.csv": ("precision", "choice", "processes", "step"),
    "rates.csv": ("precision", "operation"),
    "corrected.csv": ("precision",),
}

# Reported figures and texts that are the same, or mean nothing beside each other.
LEFT_OUT = {"schema", "candidate", "v100_lowest", "v100_highest", "p40", "reported_relative",
            "index", "first", "second", "mode", "layout", "verdict", "choice", "tensors", "of",
            "elements", "largest_ulps"}


def read(path):
    """Columns and rows of a table."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        return reader.fieldnames or [], list(reader)


def number(text):
    """The number that a cell holds, if any."""
    try:
        return float(text)
    except ValueError:
        return None


def joined(rows, keys):
    """Rows by their keys, numbers as such where they are."""
    groups = {}
    for row in rows:
        key = tuple(number(row[name]) if number(row[name]) is not None else row[name]
                    for name in keys)
        groups.setdefault(key, []).append(row)
    return groups


def largest(rows, column):
    """The largest number of a column, or its texts."""
    values = [number(row[column]) for row in rows]
    if all(value is not None for value in values):
        return max(values)
    return ", ".join(sorted({row[column] for row in rows})) or "–"


def short(value):
    """A cell's text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def cell(study, torch):
    """Both values, and of numbers PyTorch's as a share of the study's; one if they
    are the same."""
    if study == torch:
        return short(study)
    both = f"{short(study)} / {short(torch)}"
    if isinstance(study, float) and isinstance(torch, float) and study and math.isfinite(study):
        return f"{both} ({torch / study:.3g})"
    return both


def table(name, study, torch):
    """Markdown of one table; none where no row has its like."""
    keys = KEYS[name]
    (columns, ours), (others, theirs) = read(study), read(torch)
    shown = [c for c in columns if c in others and c not in keys and c not in LEFT_OUT]
    ours, theirs = joined(ours, keys), joined(theirs, keys)
    both = [key for key in ours if key in theirs]
    if not both or not shown:
        return ""
    header = [*keys, *shown]
    lines = [f"## {name}", "", f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for key in both:
        cells = [cell(largest(ours[key], c), largest(theirs[key], c)) for c in shown]
        lines.append("| " + " | ".join([*map(short, key), *cells]) + " |")
    return "\n".join(lines) + "\n"


def main():
    """Compares, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, help="folder that convfuzz study wrote")
    parser.add_argument("pytorch", type=Path, help="folder that the script wrote")
    parser.add_argument("--out", type=Path, help="file for the Markdown")
    options = parser.parse_args()
    tables = [table(name, options.study / name, options.pytorch / name) for name in KEYS
              if (options.study / name).is_file() and (options.pytorch / name).is_file()]
    tables = [text for text in tables if text]
    if not tables:
        print(f"error: no table of {options.study} has its like in {options.pytorch}", file=sys.stderr)
        return 3
    text = f"# {options.study.name} beside {options.pytorch.name}\n\n" + "\n".join(tables)
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
