//! The algorithms of the legacy API, and what each may do to the numbers.
//!
//! The legacy API declares nothing about arithmetic beyond algorithm, math type
//! and compute type, so what follows is the widest that NVIDIA's documentation
//! of those three permits (cuDNN documentation, "Legacy API: Supported
//! Algorithms" and the entries of cudnnMathType_t and of the algorithm enums).
//! A result outside it breaks the documented contract.
//!
//! On tensor cores (`Units::TensorCore`) a candidate *may* run; the library can
//! still pick a scalar kernel.

use crate::bound::{Accumulator, Arithmetic, Family, Generation, OperandRounding, Units};
use crate::candidate::MathType;
use crate::dtype::DType;
use crate::problem::{Compute, ConvProblem, Direction};

/// One algorithm of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// cuDNN's number.
    pub number: u8,
    /// cuDNN's name, without the enum's prefix.
    pub name: &'static str,
    /// How its error spreads.
    pub family: Family,
    /// Documented as able to run on tensor cores.
    pub tensor: bool,
    /// Sums into the result with atomics: documented as not reproducible.
    pub atomics: bool,
}

const GEMM: Family = Family::InnerProduct;
const WINOGRAD: Family = Family::Winograd { tile: None };
const FFT: Family = Family::Fft { tile: None };

const fn plain(number: u8, name: &'static str, family: Family) -> Algorithm {
    Algorithm {
        number,
        name,
        family,
        tensor: false,
        atomics: false,
    }
}

const fn tensor(number: u8, name: &'static str, family: Family) -> Algorithm {
    Algorithm {
        tensor: true,
        ..plain(number, name, family)
    }
}

const fn atomic(number: u8, name: &'static str) -> Algorithm {
    Algorithm {
        atomics: true,
        ..plain(number, name, GEMM)
    }
}

const FORWARD: &[Algorithm] = &[
    plain(0, "IMPLICIT_GEMM", GEMM),
    tensor(1, "IMPLICIT_PRECOMP_GEMM", GEMM),
    plain(2, "GEMM", GEMM),
    plain(3, "DIRECT", GEMM),
    plain(4, "FFT", FFT),
    plain(5, "FFT_TILING", FFT),
    plain(6, "WINOGRAD", WINOGRAD),
    tensor(7, "WINOGRAD_NONFUSED", WINOGRAD),
];

const BACKWARD_DATA: &[Algorithm] = &[
    atomic(0, "ALGO_0"),
    tensor(1, "ALGO_1", GEMM),
    plain(2, "FFT", FFT),
    plain(3, "FFT_TILING", FFT),
    plain(4, "WINOGRAD", WINOGRAD),
    tensor(5, "WINOGRAD_NONFUSED", WINOGRAD),
];

const BACKWARD_FILTER: &[Algorithm] = &[
    atomic(0, "ALGO_0"),
    tensor(1, "ALGO_1", GEMM),
    plain(2, "FFT", FFT),
    atomic(3, "ALGO_3"),
    plain(4, "WINOGRAD", WINOGRAD),
    tensor(5, "WINOGRAD_NONFUSED", WINOGRAD),
    plain(6, "FFT_TILING", FFT),
];

/// The algorithms of a direction, by number.
pub fn algorithms(direction: Direction) -> &'static [Algorithm] {
    match direction {
        Direction::Fwd => FORWARD,
        Direction::BwdData => BACKWARD_DATA,
        Direction::BwdFilter => BACKWARD_FILTER,
    }
}

/// What of the GPU and the environment decides the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Compute capability.
    pub capability: (u32, u32),
    /// NVIDIA_TF32_OVERRIDE=0.
    pub tf32_forbidden: bool,
}

impl Machine {
    /// The tensor cores of this GPU; `None` before Volta.
    pub fn generation(self) -> Option<Generation> {
        match self.capability {
            (0..=6, _) => None,
            (7, _) => Some(Generation::Volta),
            (8, _) => Some(Generation::Ampere),
            // sm_100 and sm_103 follow sm_90; sm_110 and sm_120 were not measured.
            (9 | 10, _) => Some(Generation::Hopper),
            _ => Some(Generation::Unknown),
        }
    }

    /// The tensor cores that `math` permits `algorithm` to use on this problem.
    fn tensor_cores(
        self,
        problem: &ConvProblem,
        algorithm: Algorithm,
        math: MathType,
    ) -> Option<Generation> {
        let permitted = match math {
            MathType::Fma => false,
            // Documented for DEFAULT: from A100 (sm_80) on TF32, else nothing.
            MathType::Default => self.capability >= (8, 0) && has_fp32_operand(problem),
            MathType::TensorOp | MathType::TensorOpAllowConversion => true,
        };
        self.generation().filter(|_| permitted && algorithm.tensor)
    }
}

/// The math type that `math` cannot differ from here, and why. Math types do
/// nothing but permit tensor cores and conversions on the way into them:
/// - an algorithm that cannot use tensor cores, or a GPU without any, has one
///   arithmetic;
/// - DEFAULT permits TF32 from sm_80 on and nothing else, so without fp32
///   operands, and before sm_80, it is FMA;
/// - ALLOW_CONVERSION differs from TENSOR_OP only in converting fp32 operands.
///
/// All other pairs may differ and are run.
pub fn same_as(
    problem: &ConvProblem,
    algorithm: Algorithm,
    machine: Machine,
    math: MathType,
) -> Option<(MathType, &'static str)> {
    use MathType::{Default, Fma, TensorOp, TensorOpAllowConversion};
    if math != Default && !algorithm.tensor {
        return Some((Default, "this algorithm does not use tensor cores"));
    }
    if math != Default && machine.generation().is_none() {
        return Some((Default, "this GPU has no tensor cores"));
    }
    match math {
        Fma if machine.capability < (8, 0) => {
            Some((Default, "before compute capability 8.0 they are the same"))
        }
        Fma if !has_fp32_operand(problem) => {
            Some((Default, "there are no fp32 operands to make TF32 of"))
        }
        TensorOpAllowConversion if !has_fp32_operand(problem) => {
            Some((TensorOp, "there are no fp32 operands to convert"))
        }
        _ => None,
    }
}

fn operand_types(problem: &ConvProblem) -> [DType; 2] {
    problem.direction.operands().map(|role| problem.dtype(role))
}

fn has_fp32_operand(problem: &ConvProblem) -> bool {
    operand_types(problem).contains(&DType::Fp32)
}

/// What a candidate may do to the numbers.
pub fn arithmetic(
    problem: &ConvProblem,
    algorithm: Algorithm,
    math: MathType,
    machine: Machine,
) -> Arithmetic {
    let cores = machine.tensor_cores(problem, algorithm, math);
    let accumulator = accumulator(problem, algorithm);
    let units = units(problem, math, machine, cores);
    Arithmetic {
        family: algorithm.family,
        operands: fp32_operands(problem, math, machine, cores).max(transformed(
            problem,
            algorithm.family,
            units,
        )),
        accumulator,
        units,
        partials: accumulator,
        // Kernels for single precision are commonly built to flush; double and
        // half precision instructions keep subnormals.
        flush_to_zero: accumulator == Accumulator::Fp32,
    }
}

/// The compute type is what the documentation promises for all internal
/// computation, partial sums of a split reduction included: single compute
/// keeps single sums, half compute may keep half. Atomic sums go through the
/// result tensor itself, and are rounded to its type each time.
fn accumulator(problem: &ConvProblem, algorithm: Algorithm) -> Accumulator {
    match (problem.compute, problem.result_type()) {
        (Compute::Fp16, _) => Accumulator::Fp16,
        (_, DType::Fp16) if algorithm.atomics => Accumulator::Fp16,
        (_, DType::Bf16) if algorithm.atomics => Accumulator::Bf16,
        (Compute::Fp32, _) => Accumulator::Fp32,
        (Compute::Fp64, _) => Accumulator::Fp64,
    }
}

/// What may happen to fp32 operands on their way into tensor cores: with
/// ALLOW_CONVERSION they may become fp16, else, from sm_80 on, TF32.
fn fp32_operands(
    problem: &ConvProblem,
    math: MathType,
    machine: Machine,
    cores: Option<Generation>,
) -> OperandRounding {
    if cores.is_none() || !has_fp32_operand(problem) || problem.compute == Compute::Fp64 {
        OperandRounding::None
    } else if math == MathType::TensorOpAllowConversion {
        OperandRounding::Fp16
    } else if machine.capability >= (8, 0) && !machine.tf32_forbidden {
        OperandRounding::Tf32
    } else {
        OperandRounding::None
    }
}

/// Winograd and FFT multiply transformed operands. They are kept in the compute
/// type, or in the type that tensor cores take.
fn transformed(problem: &ConvProblem, family: Family, units: Units) -> OperandRounding {
    let types = operand_types(problem);
    let half = problem.compute == Compute::Fp16 || units != Units::Simt;
    if family == Family::InnerProduct || !half {
        OperandRounding::None
    } else if types.contains(&DType::Bf16) {
        OperandRounding::Bf16
    } else if types.contains(&DType::Fp16) {
        OperandRounding::Fp16
    } else {
        OperandRounding::None
    }
}

/// Tensor cores where they are permitted and can take both operands: fp16 from
/// Volta, bf16 and TF32 from Ampere, other fp32 only by conversion.
/// Double-precision tensor cores round every step like scalar units.
fn units(
    problem: &ConvProblem,
    math: MathType,
    machine: Machine,
    cores: Option<Generation>,
) -> Units {
    let usable = |dtype| match dtype {
        DType::Fp16 => true,
        DType::Bf16 => machine.capability >= (8, 0),
        DType::Fp32 => fp32_operands(problem, math, machine, cores) != OperandRounding::None,
        // The legacy API has no FP8 convolutions; were there one, scalar units
        // would be the narrower bound.
        DType::Fp64 | DType::Fp8E4m3 | DType::Fp8E5m2 => false,
    };
    match cores {
        Some(generation) if operand_types(problem).into_iter().all(usable) => {
            Units::TensorCore(generation)
        }
        _ => Units::Simt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Machine = Machine {
        capability: (9, 0),
        tf32_forbidden: false,
    };
    const V100: Machine = Machine {
        capability: (7, 0),
        tf32_forbidden: false,
    };

    fn problem(dtype: DType) -> ConvProblem {
        ConvProblem::new(32, 32, &[16, 16], &[3, 3]).with_type(dtype)
    }

    fn declared(dtype: DType, number: usize, math: MathType, machine: Machine) -> Arithmetic {
        arithmetic(&problem(dtype), FORWARD[number], math, machine)
    }

    #[test]
    fn algorithms_numbers_are_positions() {
        for direction in Direction::ALL {
            for (i, algorithm) in algorithms(direction).iter().enumerate() {
                assert_eq!(usize::from(algorithm.number), i);
            }
        }
    }

    #[test]
    fn arithmetic_fp32_default_allows_tf32_from_ampere_on() {
        let on = |machine| declared(DType::Fp32, 1, MathType::Default, machine);
        assert_eq!(on(H200).operands, OperandRounding::Tf32);
        assert_eq!(on(H200).units, Units::TensorCore(Generation::Hopper));
        assert_eq!(on(V100).operands, OperandRounding::None);
        assert_eq!(on(V100).units, Units::Simt);
    }

    #[test]
    fn arithmetic_override_forbids_tf32_but_not_conversion() {
        let machine = Machine {
            tf32_forbidden: true,
            ..H200
        };
        let with = |math| declared(DType::Fp32, 1, math, machine);
        assert_eq!(with(MathType::Default).operands, OperandRounding::None);
        assert_eq!(with(MathType::Default).units, Units::Simt);
        let converted = with(MathType::TensorOpAllowConversion);
        assert_eq!(converted.operands, OperandRounding::Fp16);
    }

    #[test]
    fn arithmetic_fma_math_is_scalar_for_every_type() {
        for dtype in DType::ALL {
            let fma = declared(dtype, 1, MathType::Fma, H200);
            assert_eq!(fma.units, Units::Simt);
            assert_eq!(fma.operands, OperandRounding::None);
        }
    }

    #[test]
    fn arithmetic_half_data_uses_tensor_cores_only_when_asked_to() {
        let with = |dtype, math, machine| declared(dtype, 1, math, machine).units;
        for machine in [V100, H200] {
            assert_eq!(with(DType::Fp16, MathType::Default, machine), Units::Simt);
        }
        assert_eq!(
            with(DType::Fp16, MathType::TensorOp, V100),
            Units::TensorCore(Generation::Volta)
        );
        assert_eq!(with(DType::Bf16, MathType::TensorOp, V100), Units::Simt);
        assert_eq!(
            with(DType::Bf16, MathType::TensorOp, H200),
            Units::TensorCore(Generation::Hopper)
        );
    }

    #[test]
    fn arithmetic_algorithms_without_tensor_cores_keep_fp32_operands() {
        for number in [0, 2, 4, 5, 6] {
            for math in MathType::ALL {
                let plain = declared(DType::Fp32, number, math, H200);
                assert_eq!(plain.operands, OperandRounding::None);
                assert_eq!(plain.units, Units::Simt);
            }
        }
    }

    #[test]
    fn arithmetic_true_half_sums_in_half() {
        let mut half = problem(DType::Fp16);
        half.compute = Compute::Fp16;
        let declared = arithmetic(&half, FORWARD[1], MathType::TensorOp, H200);
        assert_eq!(declared.accumulator, Accumulator::Fp16);
        assert_eq!(declared.partials, Accumulator::Fp16);
    }

    #[test]
    fn arithmetic_fp64_is_exact_about_its_operands() {
        let double = declared(DType::Fp64, 5, MathType::TensorOpAllowConversion, H200);
        assert_eq!(double.operands, OperandRounding::None);
        assert_eq!(double.accumulator, Accumulator::Fp64);
        assert_eq!(double.units, Units::Simt);
        assert!(!double.flush_to_zero);
    }

    #[test]
    fn arithmetic_winograd_tiles_are_half_on_tensor_cores_or_in_half_compute() {
        let with = |dtype, math| declared(dtype, 7, math, H200).operands;
        assert_eq!(with(DType::Fp16, MathType::TensorOp), OperandRounding::Fp16);
        assert_eq!(with(DType::Bf16, MathType::TensorOp), OperandRounding::Bf16);
        assert_eq!(with(DType::Fp16, MathType::Default), OperandRounding::None);
        let mut half = problem(DType::Fp16);
        half.compute = Compute::Fp16;
        let declared = arithmetic(&half, FORWARD[7], MathType::Default, H200);
        assert_eq!(declared.operands, OperandRounding::Fp16);
    }

    #[test]
    fn arithmetic_atomics_round_to_the_result_type() {
        let mut backward = problem(DType::Fp16);
        backward.direction = Direction::BwdFilter;
        let of = |number: usize| {
            let algorithm = BACKWARD_FILTER[number];
            arithmetic(&backward, algorithm, MathType::Default, H200).accumulator
        };
        assert_eq!(of(0), Accumulator::Fp16);
        assert_eq!(of(1), Accumulator::Fp32);
        backward.y_type = DType::Bf16;
        backward.w_type = DType::Bf16;
        let bf16 = arithmetic(&backward, BACKWARD_FILTER[0], MathType::Default, H200);
        assert_eq!(bf16.accumulator, Accumulator::Bf16);
    }

    fn merged(dtype: DType, number: usize, machine: Machine, math: MathType) -> Option<MathType> {
        same_as(&problem(dtype), FORWARD[number], machine, math).map(|(twin, _)| twin)
    }

    #[test]
    fn same_as_keeps_all_four_for_fp32_tensor_algorithms_on_hopper() {
        for math in MathType::ALL {
            assert_eq!(merged(DType::Fp32, 1, H200, math), None);
            assert_eq!(merged(DType::Fp32, 7, H200, math), None);
        }
    }

    #[test]
    fn same_as_merges_what_cannot_differ() {
        use MathType::{Default, Fma, TensorOp, TensorOpAllowConversion};
        assert_eq!(merged(DType::Fp32, 1, V100, Fma), Some(Default));
        assert_eq!(merged(DType::Fp16, 1, H200, Fma), Some(Default));
        assert_eq!(merged(DType::Fp16, 1, H200, TensorOp), None);
        let converted = merged(DType::Fp16, 1, H200, TensorOpAllowConversion);
        assert_eq!(converted, Some(TensorOp));
        for math in [TensorOp, TensorOpAllowConversion, Fma] {
            assert_eq!(merged(DType::Fp32, 0, H200, math), Some(Default));
        }
    }

    #[test]
    fn same_as_merged_math_types_declare_the_same_arithmetic() {
        for dtype in DType::ALL {
            for machine in [V100, H200] {
                for &algorithm in FORWARD {
                    for math in MathType::ALL {
                        let problem = problem(dtype);
                        let declared = |m| arithmetic(&problem, algorithm, m, machine);
                        if let Some((twin, _)) = same_as(&problem, algorithm, machine, math) {
                            assert_eq!(declared(math), declared(twin), "{math:?} {algorithm:?}");
                        }
                    }
                }
            }
        }
    }
}
