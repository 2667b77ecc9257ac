//! Hypotheses about where operands are read: layouts, batches, offsets, groups,
//! channel tails, lost products.

use super::cause::{Cause, Kind};
use super::frame::{Frame, Hypothesis, Terms};
use crate::problem::Direction;

/// All hypotheses of this family.
pub fn hypotheses(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let mut all = layouts(frame);
    all.extend(wraps(frame));
    all.extend(groups(frame));
    all.extend(tails(frame));
    all
}

/// Blocks of `rows` × `columns` elements read as their transpose.
fn transposed(at: usize, rows: usize, columns: usize) -> usize {
    let (block, within) = (at / (rows * columns), at % (rows * columns));
    let (row, column) = (within / columns, within % columns);
    block * rows * columns + column * rows + row
}

fn layouts(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let mut all = Vec::new();
    let (channels, plane) = (frame.patch_channels(), frame.plane());
    let g = &frame.geometry;
    let taps: usize = g.kernel.iter().product();
    let per_group = g.c / g.groups;
    let pair = |a: usize, b: usize| {
        if a == b {
            vec![(a, b)]
        } else {
            vec![(a, b), (b, a)]
        }
    };
    for (rows, columns) in pair(channels, plane)
        .into_iter()
        .filter(|_| channels > 1 && plane > 1)
    {
        let edit = move |_: &Frame<'_>, t: &mut Terms| {
            t.patch
                .iter_mut()
                .flatten()
                .for_each(|i| *i = transposed(*i, rows, columns));
        };
        let which = layout_words(rows == channels);
        all.push(Hypothesis::new(Cause::new(Kind::InputLayout, which)).edit(edit));
    }
    let filter = g.direction != Direction::BwdFilter && taps > 1 && per_group > 1;
    for (rows, columns) in pair(per_group, taps).into_iter().filter(|_| filter) {
        let edit = move |_: &Frame<'_>, t: &mut Terms| {
            t.weights
                .iter_mut()
                .for_each(|i| *i = transposed(*i, rows, columns));
        };
        let which = layout_words(rows == per_group);
        all.push(Hypothesis::new(Cause::new(Kind::FilterLayout, which)).edit(edit));
    }
    all
}

fn layout_words(last: bool) -> &'static str {
    if last {
        "channels-last"
    } else {
        "channels-first"
    }
}

fn wraps(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let sample = frame.patch_channels() * frame.plane();
    let size = frame.patches.len();
    let wrap = |kind, which: String, modulus: usize, among: usize| {
        let edit = move |_: &Frame<'_>, t: &mut Terms| {
            t.patch.iter_mut().flatten().for_each(|i| *i %= modulus);
        };
        Hypothesis::new(Cause::new(kind, which))
            .edit(edit)
            .among(among)
    };
    let batches = (1..frame.geometry.n).map(|m| {
        wrap(
            Kind::BatchWrapped,
            format!("at {m}"),
            m * sample,
            frame.geometry.n,
        )
    });
    let powers = (0..usize::BITS)
        .map(|p| 1usize << p)
        .take_while(|&m| m < size);
    // A power that is whole samples is a batch that wraps.
    let offsets = powers
        .filter(|m| m % sample != 0)
        .map(|m| wrap(Kind::IndexWrapped, format!("at {m}"), m, 40));
    batches.chain(offsets).collect()
}

fn groups(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let groups = frame.geometry.groups;
    let (plane, channels) = (frame.plane(), frame.patch_channels());
    let (sample, step) = (channels * plane, channels / groups * plane);
    (1..groups)
        .map(|by| {
            let edit = move |_: &Frame<'_>, t: &mut Terms| {
                for i in t.patch.iter_mut().flatten() {
                    *i = *i / sample * sample + (*i % sample + by * step) % sample;
                }
            };
            let which = format!("those {by} further on, of {groups}");
            let cause = Cause::new(Kind::WrongGroups, which);
            Hypothesis::new(cause).edit(edit).among(groups)
        })
        .collect()
}

/// Channels from one on read the channel before it.
fn tails(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    if !frame.inner_is_taps() {
        return Vec::new();
    }
    let (outer, plane) = (frame.outer, frame.plane());
    (1..outer)
        .rev()
        .take(64)
        .map(|from| {
            let edit = move |f: &Frame<'_>, t: &mut Terms| {
                for (r, slot) in t.patch.iter_mut().enumerate().skip(from * f.inner) {
                    let back = (r / f.inner - (from - 1)) * plane;
                    *slot = slot.map(|i| i - back);
                }
            };
            let which = format!(
                "from {from} of {outer} on, they repeat channel {}",
                from - 1
            );
            let cause = Cause::new(Kind::ChannelTail, which);
            Hypothesis::new(cause).edit(edit).among(outer)
        })
        .collect()
}

/// Products `from..to` of every sum lost, channels outermost.
pub fn lost(frame: &Frame<'_>, from: usize, to: usize) -> Hypothesis<'static> {
    let depth = frame.outer * frame.inner;
    let edit = move |_: &Frame<'_>, t: &mut Terms| t.patch[from..to].fill(None);
    let which = format!("{from} to {} of {depth}", to - 1);
    Hypothesis::new(Cause::new(Kind::LostProducts, which))
        .edit(edit)
        .among(depth * (depth + 1) / 2)
}

/// Longer sums are searched for lost ends only.
const MOST_DEPTH: usize = 1024;

/// Ranges of products whose loss explains the probes, shortest first; `probes`
/// are logical offsets with their results.
pub fn lost_ranges(frame: &Frame<'_>, probes: &[(usize, f64)]) -> Vec<(usize, usize)> {
    let depth = frame.outer * frame.inner;
    let mut ranges: Vec<(usize, usize)> = if depth <= MOST_DEPTH {
        (0..depth)
            .flat_map(|a| (a + 1..=depth).map(move |b| (a, b)))
            .collect()
    } else {
        let ends = (1..depth).flat_map(|c| [(0, c), (c, depth)]);
        ends.collect()
    };
    for &(index, actual) in probes {
        let plain = Hypothesis::new(Cause::new(Kind::LostProducts, ""));
        let truth = frame.predict(&plain, index);
        let alpha = frame.inputs.problem.alpha.0;
        let mut sums = vec![0.0];
        for (a, b) in frame.pairs(&plain, index) {
            sums.push(sums[sums.len() - 1] + alpha * a * b);
        }
        let missing = truth.value - actual;
        // Bounds shrink as products leave: four times the blur is generous.
        let slack = 4.0 * truth.blur + 1e-9 * missing.abs();
        ranges.retain(|&(a, b)| (sums[b] - sums[a] - missing).abs() <= slack);
    }
    ranges.sort_by_key(|&(a, b)| b - a);
    ranges
}
