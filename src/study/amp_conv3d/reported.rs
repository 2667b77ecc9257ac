//! What was reported: eight comparisons of a Conv3d in single and mixed
//! precision, batch 4, input 8×16×16, no bias, data and weights ~ N(0, 1).

use crate::dtype::DType;
use crate::problem::ConvProblem;

/// One line of the report: mean |fp32 − fp16| of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Reported {
    /// Input channels.
    pub c: usize,
    /// Output channels.
    pub k: usize,
    /// Kernel; the padding keeps the size.
    pub kernel: [usize; 3],
    /// Smallest and largest figure on the V100.
    pub v100: (f64, f64),
    /// Figure on the P40.
    pub p40: f64,
}

/// Depth, height and width of the input.
pub const INPUT: [usize; 3] = [8, 16, 16];

/// Batch size.
pub const BATCH: usize = 4;

/// Half a unit of the last digit that the report prints of its small figures.
pub const HALF_DIGIT: f64 = 0.000_05;

/// The comparison that the V100 got wrong, in [`COMPARISONS`].
pub const EXCEPTION: usize = 4;

/// The eight comparisons, in the report's order.
pub const COMPARISONS: [Reported; 8] = [
    line(8, 4, [3, 1, 1], (0.0016, 0.0016), 0.0014),
    line(8, 4, [3, 3, 3], (0.0042, 0.0042), 0.0038),
    line(8, 4, [1, 1, 1], (0.0007, 0.0007), 0.0009),
    line(8, 4, [1, 3, 3], (0.0021, 0.0021), 0.0023),
    line(512, 128, [3, 1, 1], (34.65, 34.79), 0.0106),
    line(512, 128, [3, 3, 3], (0.0303, 0.0303), 0.0305),
    line(512, 128, [1, 1, 1], (0.0064, 0.0064), 0.0064),
    line(512, 128, [1, 3, 3], (0.0183, 0.0183), 0.0184),
];

const fn line(c: usize, k: usize, kernel: [usize; 3], v100: (f64, f64), p40: f64) -> Reported {
    Reported {
        c,
        k,
        kernel,
        v100,
        p40,
    }
}

/// How much of a comparison is computed. The figure is a mean over outputs that
/// are alike, so neither the batch nor the number of output channels changes what
/// it tends to, only how far single figures spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// As reported.
    Full,
    /// One sample and few output channels: what software does in seconds. The
    /// exceptional comparison keeps a multiple of 8 channels.
    Software,
}

impl Scale {
    /// Batch size.
    pub fn batch(self) -> usize {
        match self {
            Scale::Full => BATCH,
            Scale::Software => 1,
        }
    }

    /// Output channels computed.
    pub fn channels(self, of: &Reported) -> usize {
        match self {
            Scale::Full => of.k,
            Scale::Software if of.kernel == [3, 1, 1] => of.k.min(8),
            Scale::Software if of.c == 512 => 1,
            Scale::Software => of.k,
        }
    }
}

impl Reported {
    /// As the report names it.
    pub fn name(&self) -> String {
        let [d, h, w] = self.kernel;
        format!("{}→{} ({d},{h},{w})", self.c, self.k)
    }

    /// The convolution, with all tensors of `dtype`.
    pub fn problem(&self, scale: Scale, dtype: DType) -> ConvProblem {
        let mut problem =
            ConvProblem::new(self.c, scale.channels(self), &INPUT, &self.kernel).with_type(dtype);
        problem.n = scale.batch();
        problem.pad_before = self.kernel.iter().map(|extent| extent / 2).collect();
        problem.pad_after.clone_from(&problem.pad_before);
        problem
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_is_the_reports_and_keeps_the_size() {
        let exception = &COMPARISONS[EXCEPTION];
        let problem = exception.problem(Scale::Full, DType::Fp16);
        assert_eq!(
            problem.to_string(),
            "fwd n=4 c=512 k=128 in=8x16x16 ker=3x1x1 pad=1x0x0 type=fp16"
        );
        for reported in &COMPARISONS {
            let problem = reported.problem(Scale::Software, DType::Fp32);
            assert_eq!(problem.output_spatial(), INPUT);
            problem.validate().unwrap();
        }
        assert_eq!(exception.problem(Scale::Software, DType::Fp16).k % 8, 0);
    }

    #[test]
    fn exception_is_the_one_comparison_with_unlike_figures() {
        let unlike = |&i: &usize| COMPARISONS[i].v100.0 > 100.0 * COMPARISONS[i].p40;
        let exceptions: Vec<_> = (0..8).filter(unlike).collect();
        assert_eq!(exceptions, [EXCEPTION]);
    }
}
