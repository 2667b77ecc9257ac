//! Which tensor-core model does the hardware agree with, bit for bit?
//!
//! 1×1 problems whose products were made to tell models apart: each output sums
//! one or two large terms L, their opposites −L, and terms about 2^−21 to 2^−26 of it. What
//! is left of the small terms next to L shows the fraction bits F; which of them
//! share a step with L or −L shows the block b and the order of blocks; what the
//! carry between steps keeps shows how results are rounded. L is gone at the
//! end, so that fp16 and bf16 results still show all of it.

use serde::Serialize;

use crate::backend::host::tensor_core::{Operand, Step, Stored};
use crate::backend::{Backend, RunOptions, Support};
use crate::bound::{Arithmetic, Generation, Units};
use crate::candidate::Candidate;
use crate::dtype::{DType, FP32, exp2};
use crate::error::Result;
use crate::fill::{Fill, FillKind, Inputs};
use crate::outcome::Outcome;
use crate::problem::{ConvProblem, Direction};
use crate::tensor::Tensor;

/// Products per output: whole blocks of every model, one block and several, and
/// a last block that is not full.
const DEPTHS: [usize; 5] = [16, 24, 32, 64, 144];

/// Images and places per image: a pattern of products each.
const IMAGES: usize = 4;
const PLACES: usize = 64;

/// Channels of the result, each with one weight for all products.
const CHANNELS: usize = 8;

/// Exponent of L.
const LARGE: i32 = 13;

/// One way to sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Its name in tables.
    pub name: String,
    sum: Sum,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sum {
    /// Tensor-core steps; blocks from the last to the first if `backward`.
    Steps {
        fraction: i32,
        block: usize,
        stored: Stored,
        backward: bool,
    },
    /// One fused multiply-add per product, in order.
    Scalar,
}

/// How far one candidate agrees with the models on one type.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// The candidate.
    pub candidate: String,
    /// Operand and result type.
    #[serde(rename = "type")]
    pub dtype: String,
    /// The generation it declares, or that it uses none.
    pub declared: String,
    /// Outputs compared.
    pub outputs: u64,
    /// Share of outputs that equal the published model of sm_70.
    pub volta: f64,
    /// Of sm_80 and sm_89.
    pub ampere: f64,
    /// Of sm_90 and later.
    pub hopper: f64,
    /// The first model of all with the largest share.
    pub best: String,
    /// That share.
    pub best_share: f64,
}

/// All models, the published ones first.
pub fn models() -> Vec<Model> {
    let generations = [Generation::Volta, Generation::Ampere, Generation::Hopper];
    let published = generations.map(|generation| {
        let model = generation.model();
        Model {
            name: published_name(generation).to_owned(),
            sum: Sum::Steps {
                fraction: model.fraction,
                block: model.block as usize,
                stored: Stored::Truncated,
                backward: false,
            },
        }
    });
    let scalar = Model {
        name: "scalar fp32, in order".to_owned(),
        sum: Sum::Scalar,
    };
    let mut models: Vec<Model> = published.into_iter().chain([scalar]).collect();
    for backward in [false, true] {
        for stored in [Stored::Truncated, Stored::Nearest] {
            for fraction in [23, 24, 25] {
                for block in [4, 8, 16] {
                    let sum = Sum::Steps {
                        fraction,
                        block,
                        stored,
                        backward,
                    };
                    if models.iter().all(|m| m.sum != sum) {
                        let name = variant_name(fraction, block, stored, backward);
                        models.push(Model { name, sum });
                    }
                }
            }
        }
    }
    models
}

fn published_name(generation: Generation) -> &'static str {
    match generation {
        Generation::Volta => "Volta",
        Generation::Ampere => "Ampere",
        Generation::Hopper => "Hopper",
        Generation::Fp8 => "FP8",
        Generation::Unknown => "not modelled",
    }
}

fn variant_name(fraction: i32, block: usize, stored: Stored, backward: bool) -> String {
    let rounding = match stored {
        Stored::Nearest => ", results to nearest",
        _ => "",
    };
    let order = if backward { ", blocks backward" } else { "" };
    format!("F={fraction} b={block}{rounding}{order}")
}

impl Model {
    /// The fp32 sum of a row of products.
    fn sum(&self, format_emin: i32, a: &[f64], b: &[f64]) -> f64 {
        let Sum::Steps {
            fraction,
            block,
            stored,
            backward,
        } = self.sum
        else {
            let pairs = a.iter().zip(b);
            return pairs.fold(0.0, |sum, (a, b)| FP32.round(sum + a * b));
        };
        let step = Step {
            fraction,
            block,
            operand_emin: format_emin,
            stored,
        };
        let operands = |v: &[f64]| -> Vec<Operand> { v.iter().map(|&v| step.operand(v)).collect() };
        let (a, b) = (operands(a), operands(b));
        let mut blocks: Vec<_> = a.chunks(block).zip(b.chunks(block)).collect();
        if backward {
            blocks.reverse();
        }
        blocks
            .into_iter()
            .fold(0.0, |c, (a, b)| step.apply(c, a, b))
    }
}

/// Runs every candidate of `backend` on the made problems of each type.
pub fn probe(backend: &mut dyn Backend) -> Result<Vec<Agreement>> {
    let mut rows = Vec::new();
    for dtype in [DType::Fp16, DType::Bf16] {
        let mut tallies: Vec<Tally> = Vec::new();
        for depth in DEPTHS {
            let made = Made::new(dtype, depth);
            let predictions = made.predictions();
            for listing in backend.candidates(&made.inputs.problem)? {
                if let Support::Offered { arithmetic, .. } = listing.support {
                    let options = RunOptions { repeats: 0 };
                    let outcome = backend.run(&made.inputs, &listing.candidate, &options)?;
                    if let Outcome::Ran(seen) = outcome {
                        let tally = Tally::of(&mut tallies, &listing.candidate, arithmetic);
                        tally.count(&seen.result, &predictions);
                    }
                }
            }
        }
        rows.extend(tallies.iter().map(|tally| tally.agreement(dtype)));
    }
    Ok(rows)
}

/// A problem with made data.
struct Made {
    inputs: Inputs,
    depth: usize,
}

impl Made {
    fn new(dtype: DType, depth: usize) -> Self {
        let mut problem = ConvProblem::new(depth, CHANNELS, &[8, PLACES / 8], &[1, 1]);
        problem.n = IMAGES;
        problem.layout = crate::problem::Layout::Nhwc;
        let problem = problem.with_type(dtype);
        let mut random = Random(depth as u64);
        let patterns: Vec<Vec<f64>> = (0..IMAGES * PLACES)
            .map(|_| pattern(depth, &mut random))
            .collect();
        let [first, second] = Direction::Fwd.operands();
        let x = Tensor::from_fn(dtype, &problem.dims(first), |i| {
            let (image, channel, place) = (i / PLACES / depth, i / PLACES % depth, i % PLACES);
            dtype
                .format()
                .round(patterns[image * PLACES + place][channel])
        });
        let w = Tensor::from_fn(dtype, &problem.dims(second), |i| weight(i / depth));
        Made {
            inputs: Inputs {
                fill: Fill {
                    kind: FillKind::Constant,
                    seed: 0,
                },
                first: x,
                second: w,
                prior: None,
                problem,
            },
            depth,
        }
    }

    /// What each model returns, per output.
    fn predictions(&self) -> Vec<Vec<f64>> {
        let (x, format) = (&self.inputs.first, self.inputs.first.dtype().format());
        let outputs = IMAGES * CHANNELS * PLACES;
        let row = |output: usize| {
            let (image, channel, place) = (
                output / PLACES / CHANNELS,
                output / PLACES % CHANNELS,
                output % PLACES,
            );
            let at = |c: usize| x.get((image * self.depth + c) * PLACES + place);
            let a: Vec<f64> = (0..self.depth).map(at).collect();
            (a, vec![weight(channel); self.depth])
        };
        let rows: Vec<_> = (0..outputs).map(row).collect();
        let predict = |model: &Model| {
            let value = |(a, b): &(Vec<f64>, Vec<f64>)| format.round(model.sum(format.emin, a, b));
            rows.iter().map(value).collect()
        };
        models().iter().map(predict).collect()
    }
}

/// One weight for all products of a channel of the result: identity-like.
fn weight(channel: usize) -> f64 {
    [1.0, -1.0, 0.5, -0.5][channel % 4]
}

/// L, −L and small terms, at random places.
fn pattern(depth: usize, random: &mut Random) -> Vec<f64> {
    let significand = |random: &mut Random| 1.0 + random.below(1024) as f64 / 1024.0;
    let mut terms = vec![0.0; depth];
    for _ in 0..=random.below(depth) {
        let sign = if random.below(4) == 0 { -1.0 } else { 1.0 };
        let exponent = LARGE - 21 - random.below(6) as i32;
        terms[random.below(depth)] = sign * significand(random) * exp2(exponent);
    }
    // Two pairs in half of the patterns: their sum needs a bit more than L, so
    // that even a step that keeps no more than fp32 does must round.
    for _ in 0..=random.below(2) {
        // bf16 holds 8 bits.
        let large = exp2(LARGE) * (1.0 + random.below(128) as f64 / 128.0);
        for value in [large, -large] {
            let start = random.below(depth);
            let mut free = (start..start + depth).map(|at| at % depth);
            if let Some(at) = free.find(|&at| terms[at].abs() < 1.0) {
                terms[at] = value;
            }
        }
    }
    terms
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Outputs of one candidate that equal each model's.
struct Tally {
    candidate: Candidate,
    declared: &'static str,
    outputs: u64,
    equal: Vec<u64>,
}

impl Tally {
    fn of<'a>(
        tallies: &'a mut Vec<Tally>,
        candidate: &Candidate,
        arithmetic: Arithmetic,
    ) -> &'a mut Self {
        let known = tallies.iter().position(|t| t.candidate == *candidate);
        let at = known.unwrap_or(tallies.len());
        if known.is_none() {
            tallies.push(Tally {
                candidate: candidate.clone(),
                declared: match arithmetic.units {
                    Units::Simt => "none",
                    Units::TensorCore(generation) => published_name(generation),
                },
                outputs: 0,
                equal: vec![0; models().len()],
            });
        }
        &mut tallies[at]
    }

    fn count(&mut self, result: &Tensor, predictions: &[Vec<f64>]) {
        self.outputs += result.len() as u64;
        for (equal, prediction) in self.equal.iter_mut().zip(predictions) {
            // Zeros of either sign are one value here.
            let same = (0..result.len()).filter(|&i| result.get(i) == prediction[i]);
            *equal += same.count() as u64;
        }
    }

    fn agreement(&self, dtype: DType) -> Agreement {
        let share = |at: usize| self.equal[at] as f64 / self.outputs as f64;
        let most = self.equal.iter().max().copied().unwrap_or(0);
        let best = self.equal.iter().position(|&n| n == most).unwrap_or(0);
        Agreement {
            candidate: self.candidate.to_string(),
            dtype: dtype.name().to_owned(),
            declared: self.declared.to_owned(),
            outputs: self.outputs,
            volta: share(0),
            ampere: share(1),
            hopper: share(2),
            best: models()[best].name.clone(),
            best_share: share(best),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::host::{HostBackend, HostOptions};

    #[test]
    fn predictions_tell_every_two_models_apart() {
        let models = models();
        for dtype in [DType::Fp16, DType::Bf16] {
            let all: Vec<Vec<Vec<f64>>> = DEPTHS
                .iter()
                .map(|&depth| Made::new(dtype, depth).predictions())
                .collect();
            for i in 0..models.len() {
                for j in 0..i {
                    let differing: usize = (all.iter())
                        .map(|p| p[i].iter().zip(&p[j]).filter(|(a, b)| a != b).count())
                        .sum();
                    let pair = (&models[i].name, &models[j].name);
                    assert!(differing >= 20, "{dtype:?} {pair:?}: {differing}");
                }
            }
        }
    }

    #[test]
    fn probe_host_algorithms_agree_with_their_own_model_alone() {
        let mut backend = HostBackend::new(&HostOptions::default()).unwrap();
        let rows = probe(&mut backend).unwrap();
        let mut known = 0;
        for row in &rows {
            let own = match row.candidate.as_str() {
                "host:tensor_volta" => "Volta",
                "host:tensor_ampere" => "Ampere",
                "host:tensor_hopper" => "Hopper",
                "host:direct" => "scalar fp32, in order",
                _ => continue,
            };
            known += 1;
            assert_eq!((&*row.best, row.best_share), (own, 1.0), "{row:?}");
            let shares = [
                ("Volta", row.volta),
                ("Ampere", row.ampere),
                ("Hopper", row.hopper),
            ];
            for (name, share) in shares {
                assert_eq!(share == 1.0, name == own, "{row:?}");
            }
        }
        // Volta has no bf16.
        assert_eq!(known, 7, "{rows:#?}");
        let split = rows.iter().find(|row| row.candidate == "host:gemm_splitk");
        assert!(split.unwrap().best_share < 1.0, "no model is split");
    }
}
