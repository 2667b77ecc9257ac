//! Data reduction: the fewest nonzero inputs and weights, and the smallest
//! integers, that still fail, so that a case can be checked by hand.
//!
//! The problem stays; its data is no longer that of a fill, so it is carried
//! as a [`DataPatch`]: the elements that are not zero.

use serde::{Deserialize, Serialize};

use super::trier::Trier;
use super::{Options, Predicate, Rate};
use crate::dtype::{exp2, exponent};
use crate::error::{Error, Result};
use crate::fill::{Fill, Inputs};
use crate::problem::{ConvProblem, Role};
use crate::tensor::Tensor;

/// The elements that are not zero, as (logical offset, value), ascending.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataPatch {
    /// Of the first operand.
    #[serde(with = "elements")]
    pub first: Vec<(usize, f64)>,
    /// Of the second operand.
    #[serde(with = "elements")]
    pub second: Vec<(usize, f64)>,
    /// Of the previous contents of the result; read only when beta ≠ 0.
    #[serde(default, with = "elements", skip_serializing_if = "Vec::is_empty")]
    pub prior: Vec<(usize, f64)>,
}

/// The serde form of elements: pairs of offset and value, the latter as text
/// where JSON has no number for it.
mod elements {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::record::measured;

    #[derive(Serialize, Deserialize)]
    struct Value(#[serde(with = "measured")] Option<f64>);

    pub fn serialize<S: Serializer>(list: &[(usize, f64)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(
            list.iter()
                .map(|&(offset, value)| (offset, Value(Some(value)))),
        )
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(usize, f64)>, D::Error> {
        let list = Vec::<(usize, Value)>::deserialize(from)?;
        let pairs = list
            .into_iter()
            .map(|(offset, value)| (offset, value.0.unwrap_or(f64::NAN)));
        Ok(pairs.collect())
    }
}

impl DataPatch {
    /// The nonzero elements of `inputs`. The sign of zeros is not kept.
    pub fn of(inputs: &Inputs) -> Self {
        DataPatch {
            first: nonzeros(&inputs.first),
            second: nonzeros(&inputs.second),
            prior: inputs.prior.as_ref().map(nonzeros).unwrap_or_default(),
        }
    }

    /// The data of `problem` this describes; `fill` is carried as the label of
    /// where it came from. An offset outside its tensor, or a value that its
    /// type does not hold, is an error.
    pub fn apply(&self, problem: &ConvProblem, fill: Fill) -> Result<Inputs> {
        problem.validate()?;
        let [first, second] = problem.direction.operands();
        let prior = problem.beta.0 != 0.0;
        let result = problem.direction.result();
        Ok(Inputs {
            problem: problem.clone(),
            fill,
            first: tensor(problem, first, &self.first)?,
            second: tensor(problem, second, &self.second)?,
            prior: match prior {
                true => Some(tensor(problem, result, &self.prior)?),
                false => None,
            },
        })
    }

    /// Number of nonzero elements.
    pub fn len(&self) -> usize {
        self.first.len() + self.second.len() + self.prior.len()
    }

    /// Whether all elements are zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn nonzeros(tensor: &Tensor) -> Vec<(usize, f64)> {
    let values = tensor.to_f64().into_iter().enumerate();
    values.filter(|(_, v)| *v != 0.0).collect()
}

fn tensor(problem: &ConvProblem, role: Role, patch: &[(usize, f64)]) -> Result<Tensor> {
    let dtype = problem.dtype(role);
    let mut tensor = Tensor::from_fn(dtype, &problem.dims(role), |_| 0.0);
    for &(offset, value) in patch {
        let name = role.name();
        if offset >= tensor.len() {
            let len = tensor.len();
            return Err(Error::usage(format!(
                "data of {name}: offset {offset} is outside its {len} elements"
            )));
        }
        if !dtype.format().holds(value) {
            return Err(Error::usage(format!(
                "data of {name}: {value} at offset {offset} is not a value of {dtype}"
            )));
        }
        tensor.set(offset, value);
    }
    Ok(tensor)
}

/// The end of a data reduction.
#[derive(Clone, Debug)]
pub struct Reduced<C> {
    /// The reduced data.
    pub inputs: Inputs,
    /// How it fails.
    pub class: C,
    /// Runs of the predicate.
    pub trials: u32,
    /// Whether the budget ended the search before it was done.
    pub exhausted: bool,
    /// Failures among the final runs.
    pub end: Rate,
}

/// Reduces the data of `start`; `None` when it does not fail. Elements go to
/// zero in halves, quarters and so on down to single ones; those left become
/// 1, else the smallest integer, else the power of two below, that still fails.
pub fn reduce<C: PartialEq>(
    start: &Inputs,
    options: &Options,
    predicate: &mut Predicate<'_, Inputs, C>,
) -> Result<Option<Reduced<C>>> {
    let Some(trier) = Trier::start(start, options, predicate)? else {
        return Ok(None);
    };
    let mut reducer = Reducer {
        trier,
        best: start.clone(),
    };
    reducer.run()?;
    let end = reducer.trier.confirm(&reducer.best)?;
    Ok(Some(Reduced {
        inputs: reducer.best,
        class: reducer.trier.class,
        trials: reducer.trier.trials,
        exhausted: reducer.trier.exhausted,
        end,
    }))
}

/// One of the tensors of a case.
type Part = fn(&mut Inputs) -> Option<&mut Tensor>;

const PARTS: [Part; 3] = [
    |inputs| inputs.prior.as_mut(),
    |inputs| Some(&mut inputs.first),
    |inputs| Some(&mut inputs.second),
];

struct Reducer<'a, 'p, C> {
    trier: Trier<'a, 'p, Inputs, C>,
    best: Inputs,
}

impl<C: PartialEq> Reducer<'_, '_, C> {
    fn run(&mut self) -> Result<()> {
        loop {
            let before = DataPatch::of(&self.best);
            for part in PARTS {
                self.all_ones(part)?;
                self.fewest(part)?;
            }
            for part in PARTS {
                self.smallest(part)?;
            }
            if unchanged(&before, &DataPatch::of(&self.best)) || self.trier.exhausted {
                return Ok(());
            }
        }
    }

    /// Sets elements of one tensor, and keeps that if it fails the same way.
    fn set(&mut self, part: Part, elements: &[(usize, f64)]) -> Result<bool> {
        let mut candidate = self.best.clone();
        if let Some(tensor) = part(&mut candidate) {
            elements.iter().for_each(|&(i, v)| tensor.set(i, v));
        }
        let fails = self.trier.fails(&candidate)? == Some(true);
        if fails {
            self.best = candidate;
        }
        Ok(fails)
    }

    fn nonzeros(&mut self, part: Part) -> Vec<(usize, f64)> {
        part(&mut self.best)
            .map(|t| nonzeros(t))
            .unwrap_or_default()
    }

    fn all_ones(&mut self, part: Part) -> Result<()> {
        let list = self.nonzeros(part);
        if list.iter().all(|(_, v)| *v == 1.0) {
            return Ok(());
        }
        let ones: Vec<_> = list.iter().map(|&(i, _)| (i, 1.0)).collect();
        self.set(part, &ones)?;
        Ok(())
    }

    /// Zeroes chunks of falling size (delta debugging; Zeller and Hildebrandt,
    /// *Simplifying and isolating failure-inducing input*, IEEE TSE 2002).
    fn fewest(&mut self, part: Part) -> Result<()> {
        let mut chunk = self.nonzeros(part).len();
        while chunk > 0 {
            let list = self.nonzeros(part);
            for elements in list.chunks(chunk) {
                let zeros: Vec<_> = elements.iter().map(|&(i, _)| (i, 0.0)).collect();
                self.set(part, &zeros)?;
            }
            chunk /= 2;
        }
        Ok(())
    }

    fn smallest(&mut self, part: Part) -> Result<()> {
        for (i, value) in self.nonzeros(part) {
            for simpler in simpler_values(value) {
                if self.set(part, &[(i, simpler)])? {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Values to try in place of `value`, plainest first: small integers, the
/// nearest integer, the power of two below it.
fn simpler_values(value: f64) -> Vec<f64> {
    if !value.is_finite() {
        return Vec::new();
    }
    let power = exp2(exponent(value)).copysign(value);
    let mut list: Vec<f64> = (1..=8)
        .flat_map(|v| [f64::from(v), -f64::from(v)])
        .collect();
    list.extend([value.round(), power]);
    list.retain(|v| *v != 0.0 && plainness(*v) < plainness(value));
    list
}

/// Order of values: integers first, the smaller the better, positive before
/// negative; then powers of two; then the rest.
fn plainness(value: f64) -> (u8, f64, bool) {
    let power = exp2(exponent(value)) == value.abs();
    let group = match (value.fract() == 0.0, power) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    };
    (group, value.abs(), value < 0.0)
}

/// Equality that takes NaN for equal to itself.
fn unchanged(a: &DataPatch, b: &DataPatch) -> bool {
    let bits = |list: &[(usize, f64)]| -> Vec<(usize, u64)> {
        list.iter().map(|(i, v)| (*i, v.to_bits())).collect()
    };
    let all = |p: &DataPatch| [bits(&p.first), bits(&p.second), bits(&p.prior)];
    all(a) == all(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fill::FillKind;
    use crate::geometry::Geometry;

    fn inputs(text: &str, kind: FillKind) -> Inputs {
        Inputs::generate(&text.parse().unwrap(), Fill { kind, seed: 4 })
    }

    /// The output computed from the products that `keep` keeps, by number.
    fn output(inputs: &Inputs, index: usize, keep: impl Fn(usize) -> bool) -> f64 {
        let (mut sum, mut number) = (0.0, 0);
        Geometry::new(&inputs.problem).for_each_product(index, |i, j| {
            if keep(number) {
                sum += inputs.first.get(i) * inputs.second.get(j);
            }
            number += 1;
        });
        sum
    }

    fn reduced(start: &Inputs, fault: impl Fn(&Inputs) -> bool) -> (DataPatch, u32) {
        let mut predicate = |i: &Inputs| Ok(fault(i).then_some(()));
        let end = reduce(start, &Options::default(), &mut predicate)
            .unwrap()
            .unwrap();
        assert!(!end.exhausted && end.end.failed == end.end.of);
        (DataPatch::of(&end.inputs), end.trials)
    }

    #[test]
    fn reduce_a_dropped_tap_leaves_one_product_of_ones() {
        for kind in [FillKind::Normal, FillKind::Integers, FillKind::Constant] {
            let start = inputs("fwd n=2 c=8 k=8 in=6x6 ker=3x3 type=fp16", kind);
            // Output 5 loses its product number 17 (channel 1, last tap).
            let fault = |i: &Inputs| output(i, 5, |_| true) != output(i, 5, |n| n != 17);
            let (patch, trials) = reduced(&start, fault);
            assert_eq!(patch.first.len(), 1, "{patch:?}");
            assert_eq!((patch.first[0].1, patch.second[0].1), (1.0, 1.0));
            assert_eq!(patch.second, [(17, 1.0)]);
            assert!(trials < 120, "{trials}");
        }
    }

    #[test]
    fn reduce_values_that_matter_become_small_integers() {
        let start = inputs("fwd c=16 k=2 in=4x4 ker=1x1 beta=1", FillKind::Normal);
        let total = |t: &Tensor| t.to_f64().iter().filter(|v| **v > 0.0).sum::<f64>();
        let fault = |i: &Inputs| total(&i.first) >= 5.0 && i.second.get(3) < 0.0;
        let (patch, _) = reduced(&start, fault);
        assert_eq!(patch.second, [(3, -1.0)]);
        assert!(patch.prior.is_empty());
        assert!(patch.first.iter().all(|(_, v)| v.fract() == 0.0));
        assert_eq!(patch.first.iter().map(|(_, v)| v).sum::<f64>(), 5.0);
    }

    #[test]
    fn reduce_keeps_a_nan_that_matters() {
        let start = inputs("fwd c=4 k=2 in=5x5 ker=3x3", FillKind::NanPlaced);
        let nan = |t: &Tensor| t.to_f64().iter().any(|v| v.is_nan());
        let (patch, _) = reduced(&start, |i| nan(&i.first) || nan(&i.second));
        assert_eq!(patch.len(), 1);
        assert!([&patch.first[..], &patch.second].concat()[0].1.is_nan());
    }

    #[test]
    fn reduce_passing_data_is_none() {
        let start = inputs("fwd c=4 k=2 in=5x5 ker=3x3", FillKind::Normal);
        let none = reduce::<()>(&start, &Options::default(), &mut |_| Ok(None)).unwrap();
        assert!(none.is_none());
    }

    #[test]
    fn patch_round_trips_through_text() {
        for kind in [
            FillKind::Sparse,
            FillKind::Normal,
            FillKind::Subnormal,
            FillKind::InfPlaced,
        ] {
            for text in [
                "fwd c=4 k=2 in=5x5 ker=3x3 type=fp16 beta=1",
                "bwd_filter c=4 k=2 in=5 ker=3 type=fp64",
            ] {
                let start = inputs(text, kind);
                let patch = toml::to_string(&DataPatch::of(&start)).unwrap();
                let again: DataPatch = toml::from_str(&patch).unwrap();
                let again = again.apply(&start.problem, start.fill).unwrap();
                assert_eq!((&again.first, &again.second), (&start.first, &start.second));
                assert_eq!(again.prior, start.prior);
            }
        }
    }

    #[test]
    fn apply_errors_name_the_tensor() {
        let start = inputs("fwd c=1 k=1 in=3 ker=3 type=fp16", FillKind::Constant);
        let message = |patch: DataPatch| {
            patch
                .apply(&start.problem, start.fill)
                .unwrap_err()
                .to_string()
        };
        let outside = DataPatch {
            first: vec![(3, 1.0)],
            ..DataPatch::default()
        };
        assert_eq!(
            message(outside),
            "data of x: offset 3 is outside its 3 elements"
        );
        let inexact = DataPatch {
            second: vec![(0, 0.1)],
            ..DataPatch::default()
        };
        assert_eq!(
            message(inexact),
            "data of w: 0.1 at offset 0 is not a value of fp16"
        );
    }
}
