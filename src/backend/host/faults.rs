//! Faults that can be planted in the host's matrix product: the harness's own
//! examination. Each is a mutation with a trigger; where the trigger does not
//! hold, the carrier computes as ever.

use super::arena::Arena;
use super::gemm::Site;
use super::process;
use super::sum::{Prepared, Sum};
use crate::bound::Accumulator;
use crate::dtype::{BF16, DType, FP16, Format, TF32};
use crate::geometry::split;
use crate::problem::{ConvProblem, Direction, Layout, Role};

/// A planted fault.
pub struct Fault {
    /// Name used on the command line and in repro lines.
    pub name: &'static str,
    /// What goes wrong, and when.
    pub what: &'static str,
    trigger: fn(&ConvProblem) -> bool,
    act: Act,
}

/// Where a fault steps in.
enum Act {
    /// Which elements of the image a patch holds.
    Patch(fn(&Site<'_>, usize, &mut [Option<usize>])),
    /// Which elements of the filter a row holds.
    Weights(fn(&Site<'_>, usize, &mut [usize])),
    /// Values before they are multiplied.
    Operand(fn(f64) -> f64),
    /// How products are summed.
    Sum(Sum),
    /// The sum of one output.
    After(fn(&Site<'_>, usize, f64, &Prepared, &Prepared) -> f64),
    /// alpha and beta.
    Scales(fn(f64, f64) -> (f64, f64)),
    /// The value to be stored; `None` leaves the output unwritten.
    Output(fn(&Site<'_>, usize, f64) -> Option<f64>),
    /// What stands in the padding.
    PaddingValue(f64),
    /// Padding keeps what the workspace held.
    PaddingUnwritten,
    /// The first patch's padding keeps what numbers the workspace held.
    PaddingLeftover,
    /// Padding is what lies behind the image, times zero.
    PaddingMasked,
    /// The result's old contents are read, times beta, though beta is 0.
    PriorRead,
    /// Memory after the run.
    Memory(fn(&mut Arena)),
    /// The plan was accepted and does not run.
    ExecutionFailure,
    /// The process does not survive, or does not end.
    Process(fn(&ConvProblem)),
    /// The same, and already when it is asked whether a problem can be run.
    Planning(fn(&ConvProblem)),
    /// The same of ranking candidates, which is no candidate's doing.
    Ranking(fn(&ConvProblem)),
}

/// The matrix product that carries every fault.
pub const CARRIER: &str = "gemm";

/// Images larger than this wrap in the fault `index_overflow`.
const SMALL_INDEX: usize = 4096;

macro_rules! fault {
    ($name:literal, $what:literal, $trigger:expr, $act:expr) => {
        Fault {
            name: $name,
            what: $what,
            trigger: $trigger,
            act: $act,
        }
    };
}

/// All faults, those that kill the process last.
pub static FAULTS: &[Fault] = &[
    fault!(
        "tap_dropped",
        "next to padding, the last tap inside the image is dropped",
        |p| forward(p) && taps(p) > 1 && padded(p),
        Act::Patch(drop_tap)
    ),
    fault!(
        "taps_flipped",
        "the kernel is applied as a convolution, not a correlation",
        |p| forward(p) && taps(p) > 1,
        Act::Weights(flip_taps)
    ),
    fault!(
        "taps_swapped",
        "the first two taps are swapped",
        |p| forward(p) && taps(p) > 1,
        Act::Weights(swap_taps)
    ),
    fault!(
        "filter_layout",
        "the filter is read channels-last",
        |p| forward(p) && taps(p) > 1 && group_channels(p) > 1,
        Act::Weights(filter_layout)
    ),
    fault!(
        "input_layout",
        "the image is read channels-last",
        |p| forward(p) && p.c > 1 && plane(p) > 1,
        Act::Patch(input_layout)
    ),
    fault!(
        "channel_tail_8",
        "with C % 8 != 0 the last channel repeats the one before",
        |p| forward(p) && group_channels(p) > 1 && p.c % 8 != 0,
        Act::Patch(repeat_channel)
    ),
    fault!(
        "channel_tail_16",
        "with C % 16 != 0 the last channel repeats the one before",
        |p| forward(p) && group_channels(p) > 1 && p.c % 16 != 0,
        Act::Patch(repeat_channel)
    ),
    fault!(
        "channel_tail_32",
        "with C % 32 != 0 the last channel repeats the one before",
        |p| forward(p) && group_channels(p) > 1 && p.c % 32 != 0,
        Act::Patch(repeat_channel)
    ),
    fault!(
        "slice_lost",
        "the last quarter of a sum of 8 or more is lost",
        |p| p.reduction_length() >= 8,
        Act::Patch(lose_slice)
    ),
    fault!(
        "summand_lost",
        "one product in the middle of a sum of 8 or more is lost",
        |p| p.reduction_length() >= 8,
        Act::Patch(lose_summand)
    ),
    fault!(
        "row_missing",
        "the last row of the output is zero",
        |p| forward(p) && rows_of_output(p) > 1,
        Act::Output(zero_last_row)
    ),
    fault!(
        "column_missing",
        "the last column of the output is zero",
        |p| forward(p) && columns_of_output(p) > 1,
        Act::Output(zero_last_column)
    ),
    fault!(
        "batch_wrapped",
        "the batch index wraps at 2, as at 2^16 in the wild",
        |p| forward(p) && p.n > 2,
        Act::Patch(wrap_batch)
    ),
    fault!(
        "index_overflow",
        "offsets into the image wrap at 4096, as at 2^31 in the wild",
        |p| forward(p) && p.elements(Role::X) > SMALL_INDEX,
        Act::Patch(wrap_index)
    ),
    fault!(
        "stride_dilation",
        "dilation is taken as 1 where stride is not 1",
        stride_and_dilation,
        Act::Patch(ignore_dilation)
    ),
    fault!(
        "groups_off",
        "every group reads its neighbour's channels",
        |p| forward(p) && p.groups > 1,
        Act::Patch(next_group)
    ),
    fault!(
        "padding_garbage",
        "padding is 1 instead of 0",
        |p| forward(p) && padded(p),
        Act::PaddingValue(1.0)
    ),
    fault!(
        "padding_replicate",
        "padding repeats the border",
        |p| forward(p) && padded(p),
        Act::Patch(replicate_border)
    ),
    fault!(
        "padding_swapped",
        "padding before and after change places",
        |p| forward(p) && p.pad_before != p.pad_after,
        Act::Patch(swap_padding)
    ),
    fault!(
        "alpha_ignored",
        "alpha is taken as 1",
        |p| p.alpha.0 != 1.0,
        Act::Scales(|_, beta| (1.0, beta))
    ),
    fault!(
        "beta_ignored",
        "beta is taken as 0",
        |p| p.beta.0 != 0.0,
        Act::Scales(|alpha, _| (alpha, 0.0))
    ),
    fault!(
        "nan_for_inf",
        "overflow gives NaN",
        any,
        Act::Output(nan_for_inf)
    ),
    fault!(
        "inf_for_large",
        "half the largest finite value and more gives infinity",
        any,
        Act::Output(inf_for_large)
    ),
    fault!(
        "flush_to_zero",
        "subnormal results become zero",
        any,
        Act::Output(flush)
    ),
    fault!(
        "saturation",
        "overflow gives the largest finite value",
        any,
        Act::Output(saturate)
    ),
    fault!(
        "stale_output",
        "one output in 13 is not written",
        |p| outputs(p) > 13,
        Act::Output(leave_some)
    ),
    fault!(
        "write_past_end",
        "one element behind the output is written",
        any,
        Act::Memory(write_past_end)
    ),
    fault!(
        "write_before_start",
        "one element before the output is written",
        any,
        Act::Memory(write_before_start)
    ),
    fault!(
        "input_modified",
        "the first element of the first operand is changed",
        any,
        Act::Memory(modify_input)
    ),
    fault!(
        "workspace_read",
        "padding is never cleared in the workspace",
        |p| forward(p) && padded(p),
        Act::PaddingUnwritten
    ),
    fault!(
        "workspace_leftover",
        "the first patch of a run keeps in its padding what numbers the workspace held",
        |p| forward(p) && padded(p),
        Act::PaddingLeftover
    ),
    fault!(
        "workspace_overrun",
        "one element behind the workspace is written",
        any,
        Act::Memory(write_past_workspace)
    ),
    fault!(
        "input_overrun",
        "one element behind the first operand is written",
        any,
        Act::Memory(write_past_input)
    ),
    fault!(
        "read_past_end",
        "padding is read behind the image and multiplied by zero",
        |p| forward(p) && padded(p),
        Act::PaddingMasked
    ),
    fault!(
        "prior_read",
        "the old result is read though beta is 0",
        |p| p.beta.0 == 0.0,
        Act::PriorRead
    ),
    fault!(
        "order_nondeterministic",
        "every other run sums backwards",
        |p| p.reduction_length() >= 4,
        Act::After(alternate_order)
    ),
    fault!(
        "race_rare",
        "one run in 20 gets one output wrong",
        any,
        Act::After(rare_race)
    ),
    fault!(
        "fp16_accumulate",
        "fp16 data is summed in fp16 though fp32 is declared",
        |p| half_data(p) && p.reduction_length() >= 8,
        Act::Sum(Sum::Sequential(Accumulator::Fp16))
    ),
    fault!(
        "fp16_partials",
        "slices of 16 products keep their sums in fp16",
        |p| half_data(p) && p.reduction_length() > 16,
        Act::Sum(HALF_PARTIALS)
    ),
    fault!(
        "tf32_rounded",
        "fp32 operands are rounded to TF32",
        single_data,
        Act::Operand(|v| TF32.round(v))
    ),
    fault!(
        "tf32_truncated",
        "fp32 operands are truncated to TF32",
        single_data,
        Act::Operand(|v| TF32.truncate(v))
    ),
    fault!(
        "bf16_operands",
        "fp32 operands are rounded to bf16",
        single_data,
        Act::Operand(|v| BF16.round(v))
    ),
    fault!(
        "fp16_operands",
        "fp32 operands are rounded to fp16, with its range",
        single_data,
        Act::Operand(|v| FP16.round(v))
    ),
    fault!(
        "conv3d_8x8",
        "fp16 (3,1,1) kernels with C and K multiples of 8: outer taps change places and read past the depth border",
        conv3d_8x8,
        Act::Patch(mispair_depth)
    ),
    fault!(
        "one_ulp",
        "one output in 100 is off by one ulp",
        |p| outputs(p) >= 100,
        Act::Output(nudge_some)
    ),
    fault!(
        "spoiled_in_batch",
        "with N > 1 one output of every plane is wrong",
        |p| p.n > 1 && p.direction != Direction::BwdFilter,
        Act::Output(spoil_one)
    ),
    fault!(
        "spoiled_with_padding",
        "with padding one output of every plane is wrong",
        padded,
        Act::Output(spoil_one)
    ),
    fault!(
        "spoiled_channels_last",
        "in NHWC one output of every plane is wrong",
        |p| p.layout == Layout::Nhwc,
        Act::Output(spoil_one)
    ),
    fault!(
        "spoiled_in_groups",
        "with groups one output of every plane is wrong",
        |p| p.groups > 1,
        Act::Output(spoil_one)
    ),
    fault!(
        "double_rounding",
        "half results are rounded to one bit more first",
        half_result,
        Act::Output(round_twice)
    ),
    fault!(
        "execution_failure",
        "with odd C an accepted plan fails to execute",
        |p| p.c % 2 == 1,
        Act::ExecutionFailure
    ),
    fault!(
        "exit",
        "one problem in 20 ends the process with code 7",
        one_in_20,
        Act::Process(|_| process::exit())
    ),
    fault!(
        "abort",
        "one problem in 20 aborts the process",
        one_in_20,
        Act::Process(|_| process::abort())
    ),
    fault!(
        "segfault",
        "one problem in 20 ends the process by SIGSEGV",
        one_in_20,
        Act::Process(|_| process::segfault())
    ),
    fault!(
        "hang",
        "one problem in 20 never ends",
        one_in_20,
        Act::Process(|_| process::hang())
    ),
    fault!(
        "allocate",
        "one problem in 20 takes memory without end",
        one_in_20,
        Act::Process(|_| process::allocate())
    ),
    fault!(
        "dies",
        "one problem in 20 ends the process: by exit, abort or SIGSEGV",
        one_in_20,
        Act::Process(|p| process::die(hash(p) >> 40))
    ),
    fault!(
        "plan_segfault",
        "one problem in 20 ends the process by SIGSEGV while it is planned",
        one_in_20,
        Act::Planning(|_| process::segfault())
    ),
    fault!(
        "plan_deadly",
        "every problem aborts the process while it is planned",
        any,
        Act::Planning(|_| process::abort())
    ),
    fault!(
        "rank_segfault",
        "one problem in 4 ends the process by SIGSEGV while candidates are ranked",
        |p| hash(p) >> 32 & 3 == 0,
        Act::Ranking(|_| process::segfault())
    ),
    fault!(
        "deadly",
        "every problem aborts the process",
        any,
        Act::Process(|_| process::abort())
    ),
];

const HALF_PARTIALS: Sum = Sum::Split {
    slice: 16,
    accumulator: Accumulator::Fp32,
    partials: Accumulator::Fp16,
};

impl Fault {
    /// Whether the fault shows on a problem.
    pub fn triggers(&self, problem: &ConvProblem) -> bool {
        (self.trigger)(problem)
    }

    /// Whether it ends the process instead of giving wrong numbers.
    pub fn kills(&self) -> bool {
        matches!(
            self.act,
            Act::Process(_) | Act::Planning(_) | Act::Ranking(_)
        )
    }

    /// Whether an accepted plan fails.
    pub fn fails_execution(&self) -> bool {
        matches!(self.act, Act::ExecutionFailure)
    }

    /// What happens before it is said whether the problem can be run.
    pub fn planning(&self, problem: &ConvProblem) {
        if let Act::Planning(act) = self.act
            && self.triggers(problem)
        {
            act(problem);
        }
    }

    /// Whether it shows while candidates are ranked.
    pub fn fails_ranking(&self) -> bool {
        matches!(self.act, Act::Ranking(_))
    }

    /// What happens while candidates are ranked.
    pub fn ranking(&self, problem: &ConvProblem) {
        if let Act::Ranking(act) = self.act
            && self.triggers(problem)
        {
            act(problem);
        }
    }

    /// What happens before anything is computed.
    pub fn before(&self, problem: &ConvProblem) {
        if let Act::Process(act) = self.act {
            act(problem);
        }
    }

    /// What happens to memory once all is computed.
    pub fn after(&self, arena: &mut Arena) {
        if let Act::Memory(act) = self.act {
            act(arena);
        }
    }

    pub(super) fn patch(&self, site: &Site<'_>, position: usize, index: &mut [Option<usize>]) {
        if let Act::Patch(act) = self.act {
            act(site, position, index);
        }
    }

    pub(super) fn weights(&self, site: &Site<'_>, channel: usize, index: &mut [usize]) {
        if let Act::Weights(act) = self.act {
            act(site, channel, index);
        }
    }

    pub(super) fn operand(&self, value: f64) -> f64 {
        match self.act {
            Act::Operand(act) => act(value),
            _ => value,
        }
    }

    pub(super) fn replaced_sum(&self) -> Option<Sum> {
        match self.act {
            Act::Sum(sum) => Some(sum),
            _ => None,
        }
    }

    pub(super) fn sum_of(
        &self,
        site: &Site<'_>,
        output: usize,
        sum: f64,
        row: &Prepared,
        patch: &Prepared,
    ) -> f64 {
        match self.act {
            Act::After(act) => act(site, output, sum, row, patch),
            _ => sum,
        }
    }

    pub(super) fn scales(&self, alpha: f64, beta: f64) -> (f64, f64) {
        match self.act {
            Act::Scales(act) => act(alpha, beta),
            _ => (alpha, beta),
        }
    }

    pub(super) fn output(&self, site: &Site<'_>, output: usize, value: f64) -> Option<f64> {
        match self.act {
            Act::Output(act) => act(site, output, value),
            _ => Some(value),
        }
    }

    pub(super) fn padding_value(&self) -> f64 {
        match self.act {
            Act::PaddingValue(value) => value,
            _ => 0.0,
        }
    }

    pub(super) fn keeps_leftovers(&self) -> bool {
        matches!(self.act, Act::PaddingLeftover)
    }

    pub(super) fn masks_padding(&self) -> bool {
        matches!(self.act, Act::PaddingMasked)
    }

    pub(super) fn reads_prior(&self) -> bool {
        matches!(self.act, Act::PriorRead)
    }

    pub(super) fn leaves_padding(&self) -> bool {
        matches!(self.act, Act::PaddingUnwritten)
    }
}

// Triggers.

fn any(_: &ConvProblem) -> bool {
    true
}

fn forward(p: &ConvProblem) -> bool {
    p.direction == Direction::Fwd
}

fn taps(p: &ConvProblem) -> usize {
    p.kernel.iter().product()
}

fn plane(p: &ConvProblem) -> usize {
    p.spatial.iter().product()
}

fn group_channels(p: &ConvProblem) -> usize {
    p.c / p.groups
}

fn padded(p: &ConvProblem) -> bool {
    p.pad_before.iter().chain(&p.pad_after).any(|&pad| pad > 0)
}

fn outputs(p: &ConvProblem) -> usize {
    p.elements(p.direction.result())
}

fn rows_of_output(p: &ConvProblem) -> usize {
    let out = p.output_spatial();
    if out.len() < 2 { 1 } else { out[out.len() - 2] }
}

fn columns_of_output(p: &ConvProblem) -> usize {
    p.output_spatial().last().copied().unwrap_or(1)
}

fn stride_and_dilation(p: &ConvProblem) -> bool {
    let both = |d: usize| p.stride[d] > 1 && p.dilation[d] > 1 && p.kernel[d] > 1;
    forward(p) && (0..p.rank()).any(both)
}

fn half_data(p: &ConvProblem) -> bool {
    p.x_type == DType::Fp16 && p.w_type == DType::Fp16 && p.compute.dtype() == DType::Fp32
}

fn single_data(p: &ConvProblem) -> bool {
    p.x_type == DType::Fp32 && p.w_type == DType::Fp32
}

fn half_result(p: &ConvProblem) -> bool {
    matches!(p.result_type(), DType::Fp16 | DType::Bf16)
}

fn conv3d_8x8(p: &ConvProblem) -> bool {
    let eights = p.c.is_multiple_of(8) && p.k.is_multiple_of(8);
    forward(p) && p.kernel == [3, 1, 1] && eights && p.x_type == DType::Fp16
}

fn one_in_20(p: &ConvProblem) -> bool {
    (hash(p) >> 32).is_multiple_of(20)
}

/// FNV-1a (Fowler, Noll, Vo) of the problem's line.
fn hash(p: &ConvProblem) -> u64 {
    let line = p.to_string();
    line.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

// Patches: r = channel · inner + tap.

fn drop_tap(site: &Site<'_>, _: usize, index: &mut [Option<usize>]) {
    if index[..site.inner].iter().all(Option::is_some) {
        return;
    }
    for channel in index.chunks_mut(site.inner) {
        if let Some(last) = channel.iter_mut().rev().find(|i| i.is_some()) {
            *last = None;
        }
    }
}

fn input_layout(site: &Site<'_>, _: usize, index: &mut [Option<usize>]) {
    let (c, plane) = (site.inputs.problem.c, site.plane);
    for i in index.iter_mut().flatten() {
        let (sample, channel, at) = (*i / (c * plane), *i / plane % c, *i % plane);
        *i = sample * c * plane + at * c + channel;
    }
}

fn repeat_channel(site: &Site<'_>, _: usize, index: &mut [Option<usize>]) {
    let depth = index.len();
    for i in index[depth - site.inner..].iter_mut().flatten() {
        *i -= site.plane;
    }
}

fn lose_slice(_: &Site<'_>, _: usize, index: &mut [Option<usize>]) {
    let depth = index.len();
    index[depth - depth / 4..].fill(None);
}

fn lose_summand(_: &Site<'_>, _: usize, index: &mut [Option<usize>]) {
    let middle = index.len() / 2;
    index[middle] = None;
}

fn wrap_batch(site: &Site<'_>, _: usize, index: &mut [Option<usize>]) {
    let sample = site.inputs.problem.c * site.plane;
    for i in index.iter_mut().flatten() {
        *i %= 2 * sample;
    }
}

fn wrap_index(_: &Site<'_>, _: usize, index: &mut [Option<usize>]) {
    for i in index.iter_mut().flatten() {
        *i %= SMALL_INDEX;
    }
}

fn next_group(site: &Site<'_>, _: usize, index: &mut [Option<usize>]) {
    let p = &site.inputs.problem;
    let sample = p.c * site.plane;
    let shift = group_channels(p) * site.plane;
    for i in index.iter_mut().flatten() {
        *i = *i / sample * sample + (*i % sample + shift) % sample;
    }
}

/// Rebuilds a forward patch with `place` giving each tap's padded position.
fn rebuild(
    site: &Site<'_>,
    position: usize,
    index: &mut [Option<usize>],
    place: impl Fn([usize; 3], [usize; 3]) -> Option<[usize; 3]>,
) {
    let g = site.geometry;
    let (n, at) = split(position, g.output);
    let cg = g.c / g.groups;
    for (r, slot) in index.iter_mut().enumerate() {
        let (channel, t) = (r / site.inner, r % site.inner);
        let base = (n * g.c + site.group * cg + channel) * site.plane;
        *slot = place(at, split(t, g.kernel).1)
            .map(|[d, h, w]| base + (d * g.input[1] + h) * g.input[2] + w);
    }
}

fn ignore_dilation(site: &Site<'_>, position: usize, index: &mut [Option<usize>]) {
    let mut dense = site.geometry.clone();
    for d in 0..3 {
        if dense.stride[d] > 1 {
            dense.dilation[d] = 1;
        }
    }
    rebuild(site, position, index, |at, tap| {
        dense.input_position(at, tap)
    });
}

fn swap_padding(site: &Site<'_>, position: usize, index: &mut [Option<usize>]) {
    let mut swapped = site.geometry.clone();
    swapped.pad = crate::geometry::to_3d(&site.inputs.problem.pad_after, 0);
    rebuild(site, position, index, |at, tap| {
        swapped.input_position(at, tap)
    });
}

fn replicate_border(site: &Site<'_>, position: usize, index: &mut [Option<usize>]) {
    let g = site.geometry;
    rebuild(site, position, index, |at, tap| {
        let nearest = |d: usize| {
            let padded = at[d] * g.stride[d] + tap[d] * g.dilation[d];
            padded.saturating_sub(g.pad[d]).min(g.input[d] - 1)
        };
        Some([nearest(0), nearest(1), nearest(2)])
    });
}

fn mispair_depth(site: &Site<'_>, position: usize, index: &mut [Option<usize>]) {
    let g = site.geometry;
    rebuild(site, position, index, |at, tap| {
        let depth = at[0] * g.stride[0] + (2 - tap[0]) * g.dilation[0];
        let depth = depth.saturating_sub(g.pad[0]).min(g.input[0] - 1);
        let [_, h, w] = g.input_position([0, at[1], at[2]], [g.pad[0], 0, 0])?;
        Some([depth, h, w])
    });
}

// Filters: r = channel · taps + tap.

fn flip_taps(site: &Site<'_>, _: usize, index: &mut [usize]) {
    index
        .chunks_mut(taps(&site.inputs.problem))
        .for_each(<[usize]>::reverse);
}

fn swap_taps(site: &Site<'_>, _: usize, index: &mut [usize]) {
    for channel in index.chunks_mut(taps(&site.inputs.problem)) {
        channel.swap(0, 1);
    }
}

fn filter_layout(site: &Site<'_>, _: usize, index: &mut [usize]) {
    let p = &site.inputs.problem;
    let (taps, cg) = (taps(p), group_channels(p));
    for i in index {
        let (k, r) = (*i / (taps * cg), *i % (taps * cg));
        *i = k * taps * cg + r % taps * cg + r / taps;
    }
}

// Sums.

fn alternate_order(site: &Site<'_>, _: usize, sum: f64, row: &Prepared, patch: &Prepared) -> f64 {
    if site.run.is_multiple_of(2) {
        return sum;
    }
    let reversed = |p: &Prepared| p.values().iter().rev().copied().collect::<Vec<f64>>();
    let accumulator = match site.inputs.problem.compute.dtype() {
        DType::Fp64 => Accumulator::Fp64,
        DType::Fp16 => Accumulator::Fp16,
        _ => Accumulator::Fp32,
    };
    let order = Sum::Sequential(accumulator);
    order.of(
        &Prepared::Values(reversed(row)),
        &Prepared::Values(reversed(patch)),
    )
}

fn rare_race(site: &Site<'_>, output: usize, sum: f64, _: &Prepared, _: &Prepared) -> f64 {
    if site.run % 20 == 7 && output == 0 {
        2.0 * sum + 1.0
    } else {
        sum
    }
}

// Outputs.

fn result_format(site: &Site<'_>) -> Format {
    site.inputs.problem.result_type().format()
}

fn zero_last_row(site: &Site<'_>, output: usize, value: f64) -> Option<f64> {
    let g = site.geometry;
    let row = output / g.output[2] % g.output[1];
    Some(if row == g.output[1] - 1 { 0.0 } else { value })
}

fn zero_last_column(site: &Site<'_>, output: usize, value: f64) -> Option<f64> {
    let columns = site.geometry.output[2];
    Some(if output % columns == columns - 1 {
        0.0
    } else {
        value
    })
}

fn nan_for_inf(site: &Site<'_>, _: usize, value: f64) -> Option<f64> {
    let overflows = value.is_finite() && result_format(site).round(value).is_infinite();
    Some(if overflows { f64::NAN } else { value })
}

fn inf_for_large(site: &Site<'_>, _: usize, value: f64) -> Option<f64> {
    let large = value.abs() >= 0.5 * result_format(site).max_finite();
    Some(if large {
        f64::INFINITY.copysign(value)
    } else {
        value
    })
}

fn flush(site: &Site<'_>, _: usize, value: f64) -> Option<f64> {
    let tiny = value.abs() < result_format(site).min_normal();
    Some(if tiny { 0.0 } else { value })
}

fn saturate(site: &Site<'_>, _: usize, value: f64) -> Option<f64> {
    let largest = result_format(site).max_finite();
    Some(if value.is_nan() {
        value
    } else {
        value.clamp(-largest, largest)
    })
}

fn leave_some(_: &Site<'_>, output: usize, value: f64) -> Option<f64> {
    (output % 13 != 5).then_some(value)
}

fn nudge_some(site: &Site<'_>, output: usize, value: f64) -> Option<f64> {
    let format = result_format(site);
    let rounded = format.round(value);
    let nudge = output % 100 == 42 && rounded.is_finite();
    Some(if nudge {
        rounded + format.ulp(rounded)
    } else {
        value
    })
}

fn spoil_one(site: &Site<'_>, output: usize, value: f64) -> Option<f64> {
    let p = &site.inputs.problem;
    let plane: usize = p.dims(p.direction.result())[2..].iter().product();
    let wrong = output % plane == plane * 3 / 8;
    Some(if wrong { 2.0 * value + 1.0 } else { value })
}

fn round_twice(site: &Site<'_>, _: usize, value: f64) -> Option<f64> {
    let format = result_format(site);
    let wider = Format {
        precision: format.precision + 1,
        ..format
    };
    Some(wider.round(value))
}

// Memory.

fn write_past_end(arena: &mut Arena) {
    arena.store(arena.len() as isize, 1.0);
}

fn write_before_start(arena: &mut Arena) {
    arena.store(-1, 1.0);
}

fn write_past_workspace(arena: &mut Arena) {
    let end = arena.workspace.len() as isize;
    arena.workspace.write(end, 1.0);
}

fn write_past_input(arena: &mut Arena) {
    let end = arena.first.len() as isize;
    arena.first.write(end, 1.0);
}

fn modify_input(arena: &mut Arena) {
    arena.first[0] += 1.0;
}
