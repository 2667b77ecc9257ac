//! Every tensor of a training run in the order it was computed, and where two
//! runs part.

use std::io::{BufRead, BufReader, Read, Write};

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, index_text};

/// One tensor, just computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// What it is.
    pub label: Label,
    /// Its bits.
    pub value: Tensor,
}

/// What a tensor is, and where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Training step, from 1.
    pub step: usize,
    /// What computed it, such as `conv2 bwd_filter`.
    pub operation: String,
    /// Which of its results.
    pub tensor: String,
    /// The algorithm or engine; `host` for what is computed element by element.
    pub via: String,
    /// Whether that may give other bits from run to run, by its own word.
    pub nondeterministic: bool,
}

/// All tensors of one run.
pub type Trace = Vec<Entry>;

/// The first place where two runs differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Difference {
    /// The tensor.
    #[serde(flatten)]
    pub label: Label,
    /// What computed it in the other run.
    pub other_via: String,
    /// Elements with other bits.
    pub elements: usize,
    /// Of so many.
    pub of: usize,
    /// The first of them, as indices.
    pub index: String,
    /// Its value in the first run.
    pub first: f64,
    /// Its value in the second run.
    pub second: f64,
    /// Largest |first − second| over the tensor.
    pub largest: f64,
    /// The same in ulps of the larger value, in the tensor's type.
    pub largest_ulps: f64,
}

/// Why bits differ where their operands did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The algorithm is known to give other bits from run to run.
    Nondeterministic,
    /// The two runs took different algorithms.
    OtherAlgorithm,
    /// The same algorithm, which promises the same bits.
    BrokenPromise,
}

impl Difference {
    /// The cause, for the first difference of two runs.
    pub fn cause(&self) -> Cause {
        match (
            self.label.via == self.other_via,
            self.label.nondeterministic,
        ) {
            (false, _) => Cause::OtherAlgorithm,
            (true, true) => Cause::Nondeterministic,
            (true, false) => Cause::BrokenPromise,
        }
    }
}

/// The first tensor whose bits differ; `None` when all are the same.
pub fn first_difference(a: &Trace, b: &Trace) -> Option<Difference> {
    a.iter().zip(b).find_map(|(a, b)| difference(a, b))
}

/// How two runs differ in one tensor; `None` when its bits are the same.
pub fn difference(a: &Entry, b: &Entry) -> Option<Difference> {
    (a.value != b.value).then(|| measured(a, b))
}

fn measured(a: &Entry, b: &Entry) -> Difference {
    let (first, second) = (a.value.to_f64(), b.value.to_f64());
    let differs = |&i: &usize| a.value.bits(i) != b.value.bits(i);
    let places: Vec<usize> = (0..a.value.len()).filter(differs).collect();
    let distance = |i: usize| (first[i] - second[i]).abs();
    let format = a.value.dtype().format();
    let ulps = |i: usize| distance(i) / format.ulp(first[i].abs().max(second[i].abs()));
    let largest = |of: &dyn Fn(usize) -> f64| places.iter().map(|&i| of(i)).fold(0.0, f64::max);
    Difference {
        label: a.label.clone(),
        other_via: b.label.via.clone(),
        elements: places.len(),
        of: a.value.len(),
        index: index_text(a.value.dims(), places[0]),
        first: first[places[0]],
        second: second[places[0]],
        largest: largest(&distance),
        largest_ulps: largest(&ulps),
    }
}

/// Whether all tensors have the same bits.
pub fn identical(a: &Trace, b: &Trace) -> bool {
    a.len() == b.len() && first_difference(a, b).is_none()
}

/// The value of the loss in every step.
pub fn losses(trace: &Trace) -> Vec<f64> {
    let losses = trace.iter().filter(|e| e.label.tensor == LOSS);
    losses.map(|e| e.value.get(0)).collect()
}

/// Largest |a − b| over the weights after every step.
pub fn weight_differences(a: &Trace, b: &Trace) -> Vec<f64> {
    let steps = a.last().map_or(0, |e| e.label.step);
    let largest = |step: usize| {
        let pairs = a.iter().zip(b);
        let updates = pairs.filter(|(a, _)| a.label.step == step && a.label.operation == UPDATE);
        updates
            .filter_map(|(a, b)| difference(a, b))
            .fold(0.0, |most: f64, d| most.max(d.largest))
    };
    (1..=steps).map(largest).collect()
}

/// The operation whose first result, of the same name, is the loss.
pub const LOSS: &str = "loss";

/// The operation whose results are the new weights.
pub const UPDATE: &str = "update";

/// Type and shape of the bytes that follow a line.
#[derive(Serialize, Deserialize)]
struct Head {
    label: Label,
    dtype: DType,
    dims: Vec<usize>,
}

/// Writes a trace: for every tensor a line of JSON, then its bytes.
pub fn write(trace: &Trace, to: &mut impl Write) -> Result<()> {
    let failed = |e: std::io::Error| Error::output("cannot write a trace").with_source(e);
    for entry in trace {
        let head = Head {
            label: entry.label.clone(),
            dtype: entry.value.dtype(),
            dims: entry.value.dims().to_vec(),
        };
        let line = serde_json::to_string(&head)
            .map_err(|e| Error::internal("a label does not fit JSON").with_source(e))?;
        writeln!(to, "{line}").map_err(failed)?;
        to.write_all(entry.value.bytes()).map_err(failed)?;
    }
    to.flush().map_err(failed)
}

/// Reads what [`write`] wrote.
pub fn read(from: impl Read) -> Result<Trace> {
    let broken = || Error::internal("a training process sent no trace");
    let mut from = BufReader::new(from);
    let mut trace = Vec::new();
    loop {
        let mut line = String::new();
        let length = from.read_line(&mut line);
        if length.map_err(|e| broken().with_source(e))? == 0 {
            return Ok(trace);
        }
        let head: Head = serde_json::from_str(&line).map_err(|e| broken().with_source(e))?;
        let elements: usize = head.dims.iter().product();
        let mut bytes = vec![0; elements * head.dtype.size()];
        from.read_exact(&mut bytes)
            .map_err(|e| broken().with_source(e))?;
        let value = Tensor::from_bytes(head.dtype, &head.dims, &bytes).ok_or_else(broken)?;
        trace.push(Entry {
            label: head.label,
            value,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(step: usize, operation: &str, values: &[f64]) -> Entry {
        let label = Label {
            step,
            operation: operation.to_owned(),
            tensor: if operation == LOSS { LOSS } else { "w" }.to_owned(),
            via: "host".to_owned(),
            nondeterministic: false,
        };
        let value = Tensor::from_values(DType::Fp32, &[1, values.len()], values);
        Entry { label, value }
    }

    #[test]
    fn first_difference_names_place_and_size() {
        let a = vec![entry(1, LOSS, &[3.0]), entry(1, UPDATE, &[1.0, 2.0, 4.0])];
        let mut b = a.clone();
        assert!(identical(&a, &b) && first_difference(&a, &b).is_none());
        b[1].value = Tensor::from_values(DType::Fp32, &[1, 3], &[1.0, 2.5, 4.0]);
        let found = first_difference(&a, &b).unwrap();
        assert_eq!(
            (found.index.as_str(), found.elements, found.of),
            ("[0,1]", 1, 3)
        );
        assert_eq!(
            (found.largest, found.largest_ulps),
            (0.5, 0.5 * 2f64.powi(22))
        );
        assert_eq!(weight_differences(&a, &b), [0.5]);
        assert_eq!(losses(&a), [3.0]);
    }

    #[test]
    fn cause_is_the_algorithms_or_a_broken_promise() {
        let (a, mut b) = (entry(1, UPDATE, &[1.0]), entry(1, UPDATE, &[2.0]));
        let cause = |a: &Entry, b: &Entry| difference(a, b).unwrap().cause();
        assert_eq!(cause(&a, &b), Cause::BrokenPromise);
        let mut atomics = a.clone();
        atomics.label.nondeterministic = true;
        assert_eq!(cause(&atomics, &b), Cause::Nondeterministic);
        b.label.via = "another".to_owned();
        assert_eq!(cause(&a, &b), Cause::OtherAlgorithm);
        assert_eq!(difference(&a, &a), None);
    }

    #[test]
    fn identical_signs_of_zero_are_different_bits() {
        let (a, b) = (
            vec![entry(1, UPDATE, &[0.0])],
            vec![entry(1, UPDATE, &[-0.0])],
        );
        assert!(!identical(&a, &b));
        assert!(!identical(&a, &Vec::new()));
    }

    #[test]
    fn write_and_read_keep_every_bit() {
        let trace = vec![entry(1, LOSS, &[0.1]), entry(2, UPDATE, &[f64::NAN, -0.0])];
        let mut bytes = Vec::new();
        write(&trace, &mut bytes).unwrap();
        assert_eq!(read(bytes.as_slice()).unwrap(), trace);
        bytes.pop();
        assert_eq!(read(bytes.as_slice()).unwrap_err().exit_code(), 70);
    }
}
