//! Hypotheses about the kernel's taps.

use std::collections::BTreeSet;

use super::border::{Reach, reread};
use super::cause::{Cause, Kind};
use super::frame::{Frame, Hypothesis, Terms};
use crate::geometry::split;

/// Kernels with more taps are not searched for pairs that change places.
const MOST_TAPS: usize = 27;

/// All hypotheses of this family.
pub fn hypotheses(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    if !frame.inner_is_taps() || frame.inner < 2 {
        return Vec::new();
    }
    let mut all = permutations(frame);
    all.extend(dropped(frame));
    all.extend(mispaired(frame));
    all
}

/// Every distinct order of the taps, the plainest name for each.
fn permutations(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let taps = frame.inner;
    let mut seen = BTreeSet::from([(0..taps).collect::<Vec<usize>>()]);
    let mut all = Vec::new();
    let mut add = |kind, which: String, order: Vec<usize>| {
        if seen.insert(order.clone()) {
            let edit = move |f: &Frame<'_>, t: &mut Terms| permute(f, t, &order);
            all.push(Hypothesis::new(Cause::new(kind, which)).edit(edit));
        }
    };
    for mask in (1..8).rev() {
        let order = (0..taps).map(|t| mirrored(frame, t, mask)).collect();
        add(Kind::TapsFlipped, axes(mask), order);
    }
    for step in [1, taps - 1] {
        let order = (0..taps).map(|t| (t + step) % taps).collect();
        add(Kind::TapsShifted, format!("by {step} of {taps}"), order);
    }
    for i in 0..taps.min(MOST_TAPS) {
        for j in i + 1..taps.min(MOST_TAPS) {
            let mut order: Vec<usize> = (0..taps).collect();
            order.swap(i, j);
            add(Kind::TapsSwapped, format!("{i} and {j} of {taps}"), order);
        }
    }
    all
}

fn permute(frame: &Frame<'_>, terms: &mut Terms, order: &[usize]) {
    for channel in terms.weights.chunks_mut(frame.inner) {
        let old = channel.to_vec();
        for (slot, &from) in channel.iter_mut().zip(order) {
            *slot = old[from];
        }
    }
}

/// Tap `t` mirrored in the dimensions of `mask`.
fn mirrored(frame: &Frame<'_>, t: usize, mask: u8) -> usize {
    let size = frame.geometry.kernel;
    let mut at = split(t, size).1;
    for d in 0..3 {
        if mask & (1 << d) != 0 {
            at[d] = size[d] - 1 - at[d];
        }
    }
    (at[0] * size[1] + at[1]) * size[2] + at[2]
}

fn axes(mask: u8) -> String {
    let names = ["depth", "height", "width"];
    let named: Vec<_> = (0..3).filter(|d| mask & (1 << d) != 0).collect();
    let named: Vec<_> = named.into_iter().map(|d| names[d]).collect();
    format!("in {}", named.join(" and "))
}

/// One tap left out, everywhere or beside the padding only.
fn dropped(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let mut all = Vec::new();
    // With one channel per sum a tap is a product: see the lost products.
    for tap in (0..frame.inner).filter(|_| frame.outer > 1) {
        let which = format!("{tap} of {}", frame.inner);
        let edit = move |f: &Frame<'_>, t: &mut Terms| {
            t.patch
                .iter_mut()
                .skip(tap)
                .step_by(f.inner)
                .for_each(|p| *p = None);
        };
        let cause = Cause::new(Kind::TapDropped, which);
        all.push(Hypothesis::new(cause).edit(edit).among(frame.inner));
    }
    for (last, word) in [(true, "last"), (false, "first")] {
        let which = format!("beside padding, the {word} one inside the image");
        let edit = move |f: &Frame<'_>, t: &mut Terms| drop_beside_padding(f, t, last);
        all.push(Hypothesis::new(Cause::new(Kind::TapDropped, which)).edit(edit));
    }
    all
}

fn drop_beside_padding(frame: &Frame<'_>, terms: &mut Terms, last: bool) {
    for channel in terms.patch.chunks_mut(frame.inner) {
        if channel.iter().all(Option::is_some) {
            return;
        }
        let mut inside = channel.iter_mut().filter(|p| p.is_some());
        let victim = if last {
            inside.next_back()
        } else {
            inside.next()
        };
        if let Some(victim) = victim {
            *victim = None;
        }
    }
}

/// Mirrored taps that read the border where they should read zeros.
fn mispaired(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let long = (0..3).filter(|&d| frame.geometry.kernel[d] > 1);
    long.map(|d| {
        let mask = 1 << d;
        let which = format!("{}, the border repeated", axes(mask));
        let edit = move |f: &Frame<'_>, t: &mut Terms| {
            let mut reach = [Reach::Zero; 3];
            reach[d] = Reach::Clamp;
            let order: Vec<usize> = (0..f.inner).map(|t| mirrored(f, t, mask)).collect();
            reread(f, t, &f.geometry, reach);
            permute(f, t, &order);
        };
        Hypothesis::new(Cause::new(Kind::TapsMispaired, which)).edit(edit)
    })
    .collect()
}
