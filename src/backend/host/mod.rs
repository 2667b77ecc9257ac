//! Convolution in software: the families of algorithms that cuDNN has, in their
//! real arithmetic. Serves machines without a GPU, and measures the harness
//! itself: faults can be planted in it by name ([`faults`]).

use std::time::{Duration, Instant};

use crate::backend::{Backend, Combination, Listing, RunOptions, Steps, Support, barred};
use crate::bound::{Accumulator, Arithmetic, Family, Generation, OperandRounding, Units};
use crate::candidate::Candidate;
use crate::dtype::{DType, TF32};
use crate::error::{Error, Result};
use crate::fill::Inputs;
use crate::outcome::{Deviation, Observation, Outcome, Repeat};
use crate::problem::{Compute, ConvProblem};

mod arena;
pub mod batch_norm;
pub mod faults;
mod fft;
mod gemm;
mod process;
mod sum;
pub mod tensor_core;
mod winograd;

use arena::{Arena, Poison};
use faults::{CARRIER, FAULTS, Fault};
use gemm::Gemm;
use sum::Sum;

/// What to plant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostOptions {
    /// Name of a fault to plant in the carrier algorithm.
    pub fault: Option<String>,
}

/// The host backend.
pub struct HostBackend {
    combination: Combination,
    fault: Option<&'static Fault>,
    runs: u64,
}

/// An algorithm of this backend.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Algorithm {
    Gemm(Gemm),
    Winograd(winograd::Winograd),
    Fft,
}

/// The candidate that carries a fault, or none.
pub fn carrier(fault: Option<&str>) -> Candidate {
    Candidate::Host {
        algorithm: CARRIER.to_owned(),
        fault: fault.map(str::to_owned),
    }
}

/// Names of the algorithms, plainest first.
pub const ALGORITHMS: [&str; 10] = [
    "direct",
    CARRIER,
    "gemm_splitk",
    "gemm_tf32",
    "tensor_volta",
    "tensor_ampere",
    "tensor_hopper",
    "winograd_f2",
    "winograd_f4",
    "fft",
];

/// What records say of this machine.
fn combination() -> Combination {
    Combination {
        backend: "host".to_owned(),
        device: processor(),
        convfuzz: env!("CARGO_PKG_VERSION").to_owned(),
        ..Combination::default()
    }
}

impl HostBackend {
    /// The backend; an unknown fault is a usage error that lists all.
    pub fn new(options: &HostOptions) -> Result<Self> {
        let fault = options.fault.as_deref().map(fault_named).transpose()?;
        Ok(HostBackend {
            combination: combination(),
            fault,
            runs: 0,
        })
    }

    /// The candidate of an algorithm: the carrier bears the fault's name.
    fn candidate(&self, name: &str) -> Candidate {
        Candidate::Host {
            algorithm: name.to_owned(),
            fault: self
                .fault
                .filter(|_| name == CARRIER)
                .map(|f| f.name.to_owned()),
        }
    }

    fn execute(&mut self, job: &Job<'_>, workspace: &[f64], poison: Poison) -> Arena {
        let mut arena = Arena::new(job.inputs, workspace, poison);
        let compute = accumulator(&job.inputs.problem);
        match job.algorithm {
            Algorithm::Gemm(gemm) => gemm.run(job.inputs, &mut arena, job.fault, self.runs),
            Algorithm::Winograd(winograd) => winograd.run(job.inputs, &mut arena),
            Algorithm::Fft if compute == Accumulator::Fp64 => {
                fft::run::<f64>(job.inputs, &mut arena, compute);
            }
            Algorithm::Fft => fft::run::<f32>(job.inputs, &mut arena, compute),
        }
        if let Some(fault) = job.fault {
            fault.after(&mut arena);
        }
        self.runs += 1;
        arena
    }

    fn observe(&mut self, job: &Job<'_>, repeat_count: u32) -> Observation {
        let started = Instant::now();
        let cells = job.workspace_cells();
        let poisoned = job.inputs.prior.is_none();
        let arena = self.execute(job, &vec![f64::NAN; cells], Poison::Ones);
        let (result, unwritten) = arena.take_result(Poison::Ones, poisoned);
        let mut observation = Observation {
            memory: arena.damage(job.inputs),
            unwritten,
            deviations: Vec::new(),
            repeated: 0,
            workspace: 8 * cells as u64,
            elapsed: Duration::ZERO,
            result,
        };
        let mut memory = arena.workspace.to_vec();
        let turns = repeats(repeat_count, job.inputs.fill.seed);
        for &under in &turns {
            self.repeat(job, under, &mut memory, &mut observation);
        }
        // Other bits are laid to what was changed only where without a change
        // the bits are the same.
        let unchanged = |d: &Deviation| d.under == Repeat::Same;
        let deviations = &observation.deviations;
        if !deviations.is_empty() && !deviations.iter().any(unchanged) {
            for _ in 0..CONTROLS {
                self.repeat(job, Repeat::Same, &mut memory, &mut observation);
            }
        }
        observation.elapsed = started.elapsed();
        observation
    }

    /// Runs once more; `memory` is the workspace as the last run left it.
    fn repeat(
        &mut self,
        job: &Job<'_>,
        under: Repeat,
        memory: &mut Vec<f64>,
        observation: &mut Observation,
    ) {
        let poison = match under {
            Repeat::OutputPoison => Poison::Other,
            _ => Poison::Ones,
        };
        match under {
            Repeat::WorkspaceLeftover => {}
            Repeat::WorkspaceZero => memory.fill(0.0),
            _ => memory.fill(f64::NAN),
        }
        let arena = self.execute(job, memory, poison);
        *memory = arena.workspace.to_vec();
        let (result, _) = arena.take_result(poison, job.inputs.prior.is_none());
        observation.repeated += u32::from(under.keeps_bits());
        if result != observation.result {
            observation.deviations.push(Deviation { under, result });
        }
    }
}

/// Identical runs that tell what depends on the workspace from what never gives
/// the same bits twice.
const CONTROLS: u32 = 3;

/// `count` repeats in turn, `seed` says from which on.
fn repeats(count: u32, seed: u64) -> Vec<Repeat> {
    let kinds = [
        Repeat::Same,
        Repeat::WorkspaceZero,
        Repeat::WorkspaceLeftover,
        Repeat::OutputPoison,
    ];
    let turns = kinds.into_iter().cycle().skip((seed % 4) as usize);
    turns.take(count as usize).collect()
}

/// One run: what, on what, with which fault showing.
struct Job<'a> {
    inputs: &'a Inputs,
    algorithm: Algorithm,
    fault: Option<&'a Fault>,
}

impl Job<'_> {
    fn workspace_cells(&self) -> usize {
        match self.algorithm {
            Algorithm::Gemm(_) => Gemm::workspace(self.inputs),
            _ => 0,
        }
    }
}

impl Backend for HostBackend {
    fn combination(&self) -> &Combination {
        &self.combination
    }

    fn list(&mut self, problem: &ConvProblem, steps: &mut Steps<'_>) -> Result<Vec<Listing>> {
        rank(problem, self.fault, steps);
        let listing = |name: &&str| {
            let candidate = self.candidate(name);
            if !steps.may(&candidate.to_string()) {
                return Ok(barred(candidate));
            }
            Ok(Listing {
                support: planned(problem, &candidate)?,
                candidate,
            })
        };
        ALGORITHMS.iter().map(listing).collect()
    }

    /// Candidates with any fault, planted in this backend or not.
    fn support(&mut self, problem: &ConvProblem, candidate: &Candidate) -> Result<Support> {
        planned(problem, candidate)
    }

    fn list_one(
        &mut self,
        problem: &ConvProblem,
        candidate: &Candidate,
        steps: &mut Steps<'_>,
    ) -> Result<Support> {
        if !steps.may(&candidate.to_string()) {
            return Ok(barred(candidate.clone()).support);
        }
        if let Candidate::Host {
            fault: Some(name), ..
        } = candidate
        {
            rank(problem, Some(fault_named(name)?), steps);
        }
        planned(problem, candidate)
    }

    fn run(
        &mut self,
        inputs: &Inputs,
        candidate: &Candidate,
        options: &RunOptions,
    ) -> Result<Outcome> {
        let Candidate::Host { algorithm, fault } = candidate else {
            return Err(foreign(candidate));
        };
        let planted = planted(algorithm, fault.as_deref())?;
        let (algorithm, _) = match chosen(&inputs.problem, algorithm)? {
            Ok(chosen) => chosen,
            Err(refusal) => return Ok(Outcome::NotSupported(refusal)),
        };
        let fault = planted.filter(|f| f.triggers(&inputs.problem));
        if let Some(fault) = fault {
            fault.before(&inputs.problem);
            if fault.fails_execution() {
                return Ok(Outcome::ExecutionFailed {
                    status: "HOST_EXECUTION_FAILED".to_owned(),
                    message: format!("planted fault {}", fault.name),
                });
            }
        }
        let job = Job {
            inputs,
            algorithm,
            fault,
        };
        Ok(Outcome::Ran(Box::new(self.observe(&job, options.repeats))))
    }
}

/// What stands for the heuristics of a library: it says nothing, but may not come back.
fn rank(problem: &ConvProblem, fault: Option<&Fault>, steps: &mut Steps<'_>) {
    if let Some(fault) = fault.filter(|fault| fault.fails_ranking())
        && steps.may(RANKING)
    {
        fault.ranking(problem);
    }
}

/// The step of listing that the host's stand-in for heuristics is.
const RANKING: &str = "heur_host";

/// What is known of a candidate before it runs.
fn planned(problem: &ConvProblem, candidate: &Candidate) -> Result<Support> {
    let Candidate::Host { algorithm, fault } = candidate else {
        return Err(foreign(candidate));
    };
    if let Some(fault) = planted(algorithm, fault.as_deref())? {
        fault.planning(problem);
    }
    chosen(problem, algorithm)?.map_or_else(
        |why| Ok(Support::Refused(why)),
        |_| Ok(support(problem, algorithm)),
    )
}

fn foreign(candidate: &Candidate) -> Error {
    Error::usage(format!(
        "{candidate} needs cuDNN; the host backend has: {}",
        ALGORITHMS.join(", ")
    ))
}

/// The fault of a candidate, which only the carrier can have.
fn planted(algorithm: &str, fault: Option<&str>) -> Result<Option<&'static Fault>> {
    let planted = fault.map(fault_named).transpose()?;
    if planted.is_some() && algorithm != CARRIER {
        return Err(Error::usage(format!(
            "faults can be planted in host:{CARRIER} alone"
        )));
    }
    Ok(planted)
}

/// The fault of that name.
pub fn fault_named(name: &str) -> Result<&'static Fault> {
    FAULTS.iter().find(|f| f.name == name).ok_or_else(|| {
        let names: Vec<_> = FAULTS.iter().map(|f| f.name).collect();
        Error::usage(format!(
            "unknown fault '{name}'; known: {}",
            names.join(", ")
        ))
    })
}

fn support(problem: &ConvProblem, name: &str) -> Support {
    match chosen(problem, name) {
        Ok(Ok((algorithm, arithmetic))) => Support::Offered {
            arithmetic,
            workspace: match algorithm {
                Algorithm::Gemm(_) => 8 * problem.reduction_length() as u64,
                _ => 0,
            },
            nondeterministic: false,
            notes: Vec::new(),
        },
        Ok(Err(refusal)) => Support::Refused(refusal),
        Err(error) => Support::Refused(error.to_string()),
    }
}

type Chosen = std::result::Result<(Algorithm, Arithmetic), String>;

/// The algorithm of that name with the arithmetic it declares, or why it does
/// not serve the problem. The error is for names that do not exist.
fn chosen(problem: &ConvProblem, name: &str) -> Result<Chosen> {
    let accumulator = accumulator(problem);
    let simt = |sum| {
        let gemm = Gemm {
            sum,
            operands: OperandRounding::None,
            compute: accumulator,
        };
        Ok((Algorithm::Gemm(gemm), Arithmetic::simt(accumulator)))
    };
    Ok(match name {
        "direct" => simt(Sum::Sequential(accumulator)),
        CARRIER => simt(Sum::Interleaved(accumulator)),
        "gemm_splitk" => simt(Sum::Split {
            slice: 32,
            accumulator,
            partials: accumulator,
        }),
        "gemm_tf32" => tf32(problem),
        "tensor_volta" => tensor(problem, Generation::Volta),
        "tensor_ampere" => tensor(problem, Generation::Ampere),
        "tensor_hopper" => tensor(problem, Generation::Hopper),
        "winograd_f2" => winograd(problem, winograd::F2),
        "winograd_f4" => winograd(problem, winograd::F4),
        "fft" => fft(problem),
        _ => {
            return Err(Error::usage(format!(
                "unknown host algorithm '{name}'; known: {}",
                ALGORITHMS.join(", ")
            )));
        }
    })
}

fn accumulator(problem: &ConvProblem) -> Accumulator {
    match problem.compute {
        Compute::Fp16 => Accumulator::Fp16,
        Compute::Fp32 => Accumulator::Fp32,
        Compute::Fp64 => Accumulator::Fp64,
    }
}

fn operand_types(problem: &ConvProblem) -> [DType; 2] {
    problem.direction.operands().map(|role| problem.dtype(role))
}

fn tensor(problem: &ConvProblem, generation: Generation) -> Chosen {
    let [a, b] = operand_types(problem);
    let half = problem.compute == Compute::Fp16;
    if a != b || !matches!(a, DType::Fp16 | DType::Bf16) || problem.compute == Compute::Fp64 {
        return Err("tensor cores here take fp16 or bf16 operands of one type".to_owned());
    }
    if a == DType::Bf16 && (generation == Generation::Volta || half) {
        return Err("bf16 needs Ampere or later and fp32 sums".to_owned());
    }
    let gemm = Gemm {
        sum: Sum::tensor_core(generation, a.format(), false, half),
        operands: OperandRounding::None,
        compute: accumulator(problem),
    };
    let arithmetic = Arithmetic {
        units: Units::TensorCore(generation),
        ..Arithmetic::simt(accumulator(problem))
    };
    Ok((Algorithm::Gemm(gemm), arithmetic))
}

fn tf32(problem: &ConvProblem) -> Chosen {
    if operand_types(problem) != [DType::Fp32; 2] || problem.compute != Compute::Fp32 {
        return Err("TF32 is for fp32 operands and sums".to_owned());
    }
    let gemm = Gemm {
        sum: Sum::tensor_core(Generation::Hopper, TF32, true, false),
        operands: OperandRounding::Tf32,
        compute: Accumulator::Fp32,
    };
    let arithmetic = Arithmetic {
        operands: OperandRounding::Tf32,
        units: Units::TensorCore(Generation::Hopper),
        ..Arithmetic::simt(Accumulator::Fp32)
    };
    Ok((Algorithm::Gemm(gemm), arithmetic))
}

fn winograd(problem: &ConvProblem, algorithm: winograd::Winograd) -> Chosen {
    if problem.compute != Compute::Fp32 {
        return Err("Winograd here computes in fp32".to_owned());
    }
    if let Some(refusal) = winograd::refusal(problem) {
        return Err(refusal.to_owned());
    }
    let family = Family::Winograd {
        tile: Some(algorithm.m as u32),
    };
    let arithmetic = Arithmetic {
        family,
        ..Arithmetic::simt(Accumulator::Fp32)
    };
    Ok((Algorithm::Winograd(algorithm), arithmetic))
}

fn fft(problem: &ConvProblem) -> Chosen {
    if problem.compute == Compute::Fp16 {
        return Err("the FFT here computes in fp32 or fp64".to_owned());
    }
    if let Some(refusal) = fft::refusal(problem) {
        return Err(refusal.to_owned());
    }
    let arithmetic = Arithmetic {
        family: Family::Fft { tile: None },
        ..Arithmetic::simt(accumulator(problem))
    };
    Ok((Algorithm::Fft, arithmetic))
}

/// The CPU's name as the kernel gives it.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or_else(
            || "unknown CPU".to_owned(),
            |(_, name)| name.trim().to_owned(),
        )
}

#[cfg(test)]
mod tests;
