//! What an engine's numerical notes, the types and the GPU say about its
//! arithmetic: the widest it may do by its own word, and no wider.
//!
//! Sources: the descriptions of cudnnBackendNumericalNote_t in NVIDIA's API
//! reference, and for what the notes mean in practice measurements on an H200
//! with cuDNN 9.19 (fp32 data: TENSOR_CORE alone computes in TF32, together
//! with DOWN_CONVERT_INPUTS through fp16; 16-bit data:
//! REDUCED_PRECISION_REDUCTION stores partial sums of a split reduction in 16
//! bits, and together with NONDETERMINISTIC adds them up in the result itself).

use crate::bound::{Accumulator, Arithmetic, Family, Generation, OperandRounding, Units};
use crate::dtype::DType;
use crate::problem::{Compute, ConvProblem, Direction};

const TENSOR_CORE: i32 = 0;
const DOWN_CONVERT_INPUTS: i32 = 1;
const REDUCED_PRECISION_REDUCTION: i32 = 2;
const FFT: i32 = 3;
const NONDETERMINISTIC: i32 = 4;
const WINOGRAD: i32 = 5;
const WINOGRAD_TILE_4X4: i32 = 6;
const WINOGRAD_TILE_6X6: i32 = 7;
const WINOGRAD_TILE_13X13: i32 = 8;

/// The notes of one engine, with what else decides its arithmetic.
#[derive(Clone, Copy, Debug)]
pub struct Declared<'a> {
    /// Numbers of cudnnBackendNumericalNote_t.
    pub notes: &'a [i32],
    /// The GPU's tensor cores.
    pub generation: Generation,
}

impl Declared<'_> {
    fn has(&self, note: i32) -> bool {
        self.notes.contains(&note)
    }

    /// Whether two runs may differ in bits.
    pub fn nondeterministic(&self) -> bool {
        self.has(NONDETERMINISTIC)
    }

    /// What the engine may do to the numbers of `problem`.
    pub fn arithmetic(&self, problem: &ConvProblem) -> Arithmetic {
        let family = self.family(problem);
        let accumulator = self.accumulator(problem);
        Arithmetic {
            family,
            operands: self.operands(problem, family),
            accumulator,
            units: self.units(problem),
            partials: self.partials(problem).unwrap_or(accumulator),
            // Only single-precision instructions have a flush mode that
            // compilers set; half precision has one that they do not.
            flush_to_zero: accumulator == Accumulator::Fp32,
        }
    }

    fn family(&self, problem: &ConvProblem) -> Family {
        let tiles = [WINOGRAD_TILE_4X4, WINOGRAD_TILE_6X6, WINOGRAD_TILE_13X13];
        if self.has(FFT) {
            Family::Fft { tile: None }
        } else if self.has(WINOGRAD) || tiles.iter().any(|&tile| self.has(tile)) {
            Family::Winograd {
                tile: self.output_tile(problem),
            }
        } else {
            Family::InnerProduct
        }
    }

    /// The notes name the transformed tile t = m + r − 1 of F(m, r).
    fn output_tile(&self, problem: &ConvProblem) -> Option<u32> {
        let transformed = [
            (WINOGRAD_TILE_4X4, 4),
            (WINOGRAD_TILE_6X6, 6),
            (WINOGRAD_TILE_13X13, 13),
        ]
        .into_iter()
        .filter(|(note, _)| self.has(*note))
        .map(|(_, tile)| tile)
        .collect::<Vec<u32>>();
        let square = problem.kernel.iter().all(|&r| r == problem.kernel[0]);
        match transformed[..] {
            // The weight gradient swaps the parts of filter and output.
            [tile] if square && problem.direction != Direction::BwdFilter => tile
                .checked_sub(u32::try_from(problem.kernel[0]).ok()?)
                .map(|m| m + 1),
            _ => None,
        }
    }

    fn operands(&self, problem: &ConvProblem, family: Family) -> OperandRounding {
        let types = problem.direction.operands().map(|role| problem.dtype(role));
        if problem.compute == Compute::Fp64 {
            return OperandRounding::None;
        }
        let fp32 = types.contains(&DType::Fp32);
        if fp32 && self.has(DOWN_CONVERT_INPUTS) {
            OperandRounding::Fp16
        } else if fp32 && self.has(TENSOR_CORE) {
            OperandRounding::Tf32
        } else if family == Family::InnerProduct {
            OperandRounding::None
        } else if types.contains(&DType::Bf16) {
            // Transformed operands may be stored in the type of the data.
            OperandRounding::Bf16
        } else if types.contains(&DType::Fp16) {
            OperandRounding::Fp16
        } else {
            OperandRounding::None
        }
    }

    fn accumulator(&self, problem: &ConvProblem) -> Accumulator {
        match (problem.compute, problem.result_type()) {
            (Compute::Fp64, _) => Accumulator::Fp64,
            // Atomic sums are rounded to the result's type at every step.
            (_, DType::Bf16) if self.atomic() => Accumulator::Bf16,
            (_, DType::Fp16) if self.atomic() => Accumulator::Fp16,
            (Compute::Fp16, _) => Accumulator::Fp16,
            (Compute::Fp32, _) => Accumulator::Fp32,
        }
    }

    /// The type of partial sums, where it is narrower than the compute type.
    fn partials(&self, problem: &ConvProblem) -> Option<Accumulator> {
        let narrow = match (problem.compute, problem.result_type()) {
            (Compute::Fp64, _) => Accumulator::Fp32,
            (_, DType::Bf16) => Accumulator::Bf16,
            _ => Accumulator::Fp16,
        };
        // Engines that convert operands to fp16 store their results in fp16
        // too and convert back (seen on an H200 with cuDNN 9.19.0; no note says
        // so).
        let through_half = self.operands(problem, Family::InnerProduct) == OperandRounding::Fp16;
        if through_half {
            return Some(Accumulator::Fp16);
        }
        self.has(REDUCED_PRECISION_REDUCTION).then_some(narrow)
    }

    fn atomic(&self) -> bool {
        self.has(REDUCED_PRECISION_REDUCTION) && self.has(NONDETERMINISTIC)
    }

    /// Double-precision tensor cores round every step like scalar units.
    fn units(&self, problem: &ConvProblem) -> Units {
        let operands = problem.direction.operands();
        if operands.iter().any(|&role| problem.dtype(role).is_fp8()) {
            // No note tells FP8 steps from a conversion to fp16 before them.
            Units::TensorCore(Generation::Fp8)
        } else if self.has(TENSOR_CORE) && problem.compute != Compute::Fp64 {
            Units::TensorCore(self.generation)
        } else {
            Units::Simt
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arithmetic(text: &str, notes: &[i32]) -> Arithmetic {
        let problem: ConvProblem = text.parse().unwrap();
        Declared {
            notes,
            generation: Generation::Hopper,
        }
        .arithmetic(&problem)
    }

    const FP32: &str = "fwd c=4 k=4 in=8x8 ker=3x3";
    const FP16: &str = "fwd c=4 k=4 in=8x8 ker=3x3 type=fp16";
    const FP64: &str = "fwd c=4 k=4 in=8x8 ker=3x3 type=fp64";

    #[test]
    fn arithmetic_without_notes_is_plain_in_the_compute_type() {
        for (text, accumulator) in [
            (FP32, Accumulator::Fp32),
            (FP16, Accumulator::Fp32),
            (FP64, Accumulator::Fp64),
        ] {
            let plain = arithmetic(text, &[]);
            assert_eq!(plain.family, Family::InnerProduct);
            assert_eq!(plain.operands, OperandRounding::None);
            assert_eq!(plain.units, Units::Simt);
            assert_eq!(plain.accumulator, accumulator);
            assert_eq!(plain.partials, accumulator);
        }
    }

    /// FP8 products may be summed in 14 bits, which no note says.
    #[test]
    fn arithmetic_fp8_operands_are_judged_by_the_fp8_model() {
        for notes in [&[][..], &[TENSOR_CORE]] {
            let fp8 = arithmetic(
                "fwd c=4 k=4 in=8x8 ker=3x3 type=fp8_e4m3,fp8_e4m3,fp32",
                notes,
            );
            assert_eq!(fp8.units, Units::TensorCore(Generation::Fp8));
            assert_eq!(fp8.operands, OperandRounding::None);
        }
    }

    #[test]
    fn arithmetic_tensor_cores_round_single_operands_only() {
        let tensor = Units::TensorCore(Generation::Hopper);
        let tf32 = arithmetic(FP32, &[TENSOR_CORE]);
        assert_eq!((tf32.units, tf32.operands), (tensor, OperandRounding::Tf32));
        let down = arithmetic(FP32, &[TENSOR_CORE, DOWN_CONVERT_INPUTS]);
        assert_eq!(down.operands, OperandRounding::Fp16);
        let half = arithmetic(FP16, &[TENSOR_CORE]);
        assert_eq!((half.units, half.operands), (tensor, OperandRounding::None));
        let double = arithmetic(FP64, &[TENSOR_CORE]);
        assert_eq!(
            (double.units, double.operands),
            (Units::Simt, OperandRounding::None)
        );
    }

    #[test]
    fn arithmetic_reduced_reduction_stores_partial_sums_in_16_bits() {
        let reduced = [TENSOR_CORE, REDUCED_PRECISION_REDUCTION];
        let half = arithmetic(FP16, &reduced);
        assert_eq!(half.accumulator, Accumulator::Fp32);
        assert_eq!(half.partials, Accumulator::Fp16);
        let bf16 = arithmetic("fwd c=4 k=4 in=8 ker=3 type=bf16", &reduced);
        assert_eq!(bf16.partials, Accumulator::Bf16);
        assert_eq!(arithmetic(FP64, &reduced).partials, Accumulator::Fp32);
    }

    #[test]
    fn arithmetic_atomic_sums_round_to_the_result() {
        let atomic = [REDUCED_PRECISION_REDUCTION, NONDETERMINISTIC];
        assert_eq!(arithmetic(FP16, &atomic).accumulator, Accumulator::Fp16);
        assert_eq!(arithmetic(FP32, &atomic).accumulator, Accumulator::Fp32);
        let bf16 = "bwd_data c=4 k=4 in=8 ker=3 type=bf16";
        assert_eq!(arithmetic(bf16, &atomic).accumulator, Accumulator::Bf16);
        assert_eq!(arithmetic(bf16, &atomic).units, Units::Simt);
    }

    #[test]
    fn arithmetic_winograd_notes_name_the_transformed_tile() {
        let tile = |text: &str, notes: &[i32]| arithmetic(text, notes).family;
        let known = |m| Family::Winograd { tile: Some(m) };
        assert_eq!(tile(FP32, &[WINOGRAD, WINOGRAD_TILE_4X4]), known(2));
        assert_eq!(tile(FP32, &[WINOGRAD, WINOGRAD_TILE_6X6]), known(4));
        let five = "fwd c=4 k=4 in=8x8 ker=5x5";
        assert_eq!(tile(five, &[WINOGRAD_TILE_13X13]), known(9));
        assert_eq!(tile(FP32, &[WINOGRAD]), Family::Winograd { tile: None });
        let filter = "bwd_filter c=4 k=4 in=8x8 ker=3x3";
        assert_eq!(
            tile(filter, &[WINOGRAD, WINOGRAD_TILE_4X4]),
            Family::Winograd { tile: None }
        );
        assert_eq!(
            arithmetic(FP16, &[WINOGRAD]).operands,
            OperandRounding::Fp16
        );
    }

    #[test]
    fn nondeterministic_is_the_librarys_own_word() {
        let declared = |notes| Declared {
            notes,
            generation: Generation::Hopper,
        };
        assert!(declared(&[0, 4]).nondeterministic());
        assert!(!declared(&[0, 1, 2, 3, 5]).nondeterministic());
    }
}
