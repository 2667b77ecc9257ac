//! Hypotheses about padding, strides and dilations.

use super::cause::{Cause, Kind};
use super::frame::{Frame, Hypothesis, Terms, patch};
use crate::geometry::{Geometry, split, to_3d};
use crate::lowering::Lowering;
use crate::problem::Direction;

/// What is read beyond the border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Zero, as is right.
    Zero,
    /// The border's element.
    Clamp,
    /// The image mirrored at the border's element.
    Mirror,
    /// The other side of the image.
    Wrap,
}

/// All hypotheses of this family.
pub fn hypotheses(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let mut all = Vec::new();
    if frame.geometry.direction == Direction::Fwd {
        all.extend(beyond(frame));
    }
    all.extend(changed_geometry(frame));
    all
}

/// Rebuilds a forward patch of `geometry`, reading beyond the border as `reach`
/// says.
pub fn reread(frame: &Frame<'_>, terms: &mut Terms, geometry: &Geometry, reach: [Reach; 3]) {
    if geometry.direction != Direction::Fwd {
        return;
    }
    let g = geometry;
    let (n, at) = split(terms.position, g.output);
    let first = n * g.c + terms.group * (g.c / g.groups);
    for (r, slot) in terms.patch.iter_mut().enumerate() {
        let tap = split(r % frame.inner, g.kernel).1;
        let mut from = [Some(0); 3];
        for d in 0..3 {
            let padded = at[d] * g.stride[d] + tap[d] * g.dilation[d];
            from[d] = place(padded as isize - g.pad[d] as isize, g.input[d], reach[d]);
        }
        *slot = match from {
            [Some(d), Some(h), Some(w)] => {
                let plane = (first + r / frame.inner) * frame.plane();
                Some(plane + (d * g.input[1] + h) * g.input[2] + w)
            }
            _ => None,
        };
    }
}

fn place(at: isize, size: usize, reach: Reach) -> Option<usize> {
    let last = size as isize - 1;
    let read = match reach {
        Reach::Zero => at,
        Reach::Clamp => at.clamp(0, last),
        Reach::Mirror if at < 0 => -at,
        Reach::Mirror if at > last => 2 * last - at,
        Reach::Mirror => at,
        Reach::Wrap => at.rem_euclid(size as isize),
    };
    (0..=last).contains(&read).then_some(read as usize)
}

fn beyond(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let p = &frame.inputs.problem;
    if p.pad_before.iter().chain(&p.pad_after).all(|&pad| pad == 0) {
        return Vec::new();
    }
    let reaches = [
        (Reach::Clamp, "the border repeated"),
        (Reach::Mirror, "mirrored at the border"),
        (Reach::Wrap, "from the other side"),
    ];
    let mut all: Vec<_> = reaches
        .into_iter()
        .map(|(reach, which)| {
            let edit = move |f: &Frame<'_>, t: &mut Terms| reread(f, t, &f.geometry, [reach; 3]);
            Hypothesis::new(Cause::new(Kind::PaddingReplicated, which)).edit(edit)
        })
        .collect();
    for value in [1.0, -1.0, 2.0, 0.5, f64::NAN, f64::INFINITY] {
        let edit = move |_: &Frame<'_>, t: &mut Terms| t.padding = value;
        let cause = Cause::new(Kind::PaddingValue, format!("{value}"));
        all.push(Hypothesis::new(cause).edit(edit).among(6));
    }
    all
}

/// The problem with other paddings, strides or dilations, its result's size
/// kept.
fn changed_geometry(frame: &Frame<'_>) -> Vec<Hypothesis<'static>> {
    let g = &frame.geometry;
    let p = &frame.inputs.problem;
    let mut all = Vec::new();
    let mut seen = vec![(g.stride, g.dilation, g.pad)];
    let mut add = |kind, which: &str, change: &dyn Fn(&mut Geometry)| {
        let mut changed = g.clone();
        change(&mut changed);
        let key = (changed.stride, changed.dilation, changed.pad);
        if seen.contains(&key) {
            return;
        }
        seen.push(key);
        let lowering = Lowering::new(&changed);
        let edit = move |f: &Frame<'_>, t: &mut Terms| {
            t.patch = patch(&lowering, t.group, t.position, f.outer);
        };
        all.push(Hypothesis::new(Cause::new(kind, which)).edit(edit));
    };
    let after = to_3d(&p.pad_after, 0);
    add(Kind::PaddingSwapped, "before and after", &|g| g.pad = after);
    for (i, j) in [(1, 2), (0, 1), (0, 2)] {
        add(Kind::PaddingSwapped, "of two dimensions", &|g| {
            g.pad.swap(i, j)
        });
    }
    add(Kind::PaddingSwapped, "no padding before", &|g| {
        g.pad = [0; 3]
    });
    add(Kind::StrideDilation, "dilation taken as 1", &|g| {
        g.dilation = [1; 3]
    });
    add(
        Kind::StrideDilation,
        "dilation taken as 1 where stride is not 1",
        &|g| {
            (0..3)
                .filter(|&d| g.stride[d] > 1)
                .for_each(|d| g.dilation[d] = 1)
        },
    );
    add(Kind::StrideDilation, "stride taken as 1", &|g| {
        g.stride = [1; 3]
    });
    add(Kind::StrideDilation, "changed places", &|g| {
        std::mem::swap(&mut g.stride, &mut g.dilation);
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_reads_beyond_the_border_as_asked() {
        let read = |reach| [-2, -1, 0, 3, 4].map(|at| place(at, 4, reach));
        assert_eq!(read(Reach::Zero), [None, None, Some(0), Some(3), None]);
        assert_eq!(read(Reach::Clamp), [0, 0, 0, 3, 3].map(Some));
        assert_eq!(read(Reach::Mirror), [2, 1, 0, 3, 2].map(Some));
        assert_eq!(read(Reach::Wrap), [2, 3, 0, 3, 0].map(Some));
    }
}
