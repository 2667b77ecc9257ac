//! Every planted fault must be named, and never another one.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rayon::prelude::*;

use super::*;
use crate::backend::host::faults::FAULTS;
use crate::backend::host::{HostBackend, HostOptions, carrier, fault_named};
use crate::backend::{Backend, RunOptions, Support};
use crate::strategy::{Limits, draw};

/// Repeats of each run: two of every kind at least, and enough for a rare race.
const REPEATS: u32 = 16;

/// What may be named for each fault.
fn expected(fault: &str) -> &'static [Kind] {
    match fault {
        "tap_dropped" => &[Kind::TapDropped],
        // Two taps that are mirrored have changed places.
        "taps_flipped" => &[Kind::TapsFlipped, Kind::TapsSwapped],
        "taps_swapped" => &[Kind::TapsSwapped, Kind::TapsFlipped],
        "filter_layout" => &[Kind::FilterLayout],
        "input_layout" => &[Kind::InputLayout],
        "channel_tail_8" | "channel_tail_16" | "channel_tail_32" => &[Kind::ChannelTail],
        "slice_lost" | "summand_lost" => &[Kind::LostProducts],
        "row_missing" | "column_missing" => &[Kind::Zeroed],
        "batch_wrapped" => &[Kind::BatchWrapped],
        "index_overflow" => &[Kind::IndexWrapped],
        "stride_dilation" => &[Kind::StrideDilation],
        "groups_off" => &[Kind::WrongGroups],
        // Zero times what lies behind the image, which is NaN here.
        "padding_garbage" | "read_past_end" => &[Kind::PaddingValue],
        "padding_replicate" => &[Kind::PaddingReplicated],
        "padding_swapped" => &[Kind::PaddingSwapped],
        "alpha_ignored" => &[Kind::AlphaIgnored],
        "beta_ignored" => &[Kind::BetaIgnored],
        "nan_for_inf" => &[Kind::OverflowNan],
        "inf_for_large" => &[Kind::EarlyOverflow],
        "flush_to_zero" => &[Kind::FlushedToZero],
        "saturation" => &[Kind::Saturated],
        "stale_output" => &[Kind::Unwritten],
        "write_past_end" | "write_before_start" | "workspace_overrun" | "input_overrun" => {
            &[Kind::OutOfBoundsWrite]
        }
        "input_modified" => &[Kind::InputChanged],
        "workspace_read" | "workspace_leftover" | "prior_read" => &[Kind::Uninitialised],
        "order_nondeterministic" => &[Kind::NondeterministicOrder],
        "race_rare" => &[Kind::Race],
        "fp16_accumulate" => &[Kind::NarrowSums],
        "fp16_partials" => &[Kind::NarrowPartials],
        "tf32_rounded" | "tf32_truncated" | "bf16_operands" | "fp16_operands" => {
            &[Kind::OperandsRounded]
        }
        "conv3d_8x8" => &[Kind::TapsMispaired],
        "one_ulp" => &[Kind::OneUlp],
        "double_rounding" => &[Kind::DoubleRounding],
        // Twice the value and one: within rounding that may be a factor of two.
        "spoiled_in_batch"
        | "spoiled_with_padding"
        | "spoiled_channels_last"
        | "spoiled_in_groups" => &[Kind::Scaled],
        "execution_failure" => &[Kind::ExecutionFailed],
        _ => &[],
    }
}

/// Attributions of up to `count` random cases in which a fault shows.
fn attributions(fault: &str, count: usize) -> Vec<(String, Attribution)> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[5; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let limits = Limits {
        max_macs: 30_000,
        ..Limits::default()
    };
    let strategy = (draw(&limits), 0..2usize);
    let planted = fault_named(fault).unwrap();
    let cases = std::iter::repeat_with(|| strategy.new_tree(&mut runner).unwrap().current());
    cases
        .take(1_500)
        .filter(|(drawn, _)| planted.triggers(&drawn.problem))
        .filter_map(|(drawn, fill)| {
            let inputs = Inputs::generate(&drawn.problem, drawn.fills[fill]);
            let attribution = attributed(fault, &inputs)?;
            let shows = attribution.wrong > 0
                || attribution.cause.is_some()
                || !attribution.indistinguishable.is_empty();
            shows.then(|| {
                (
                    format!("{} fill={}", inputs.problem, inputs.fill),
                    attribution,
                )
            })
        })
        .take(count)
        .collect()
}

fn attributed(fault: &str, inputs: &Inputs) -> Option<Attribution> {
    let mut backend = HostBackend::new(&HostOptions::default()).unwrap();
    let candidate = carrier((!fault.is_empty()).then_some(fault));
    let Support::Offered { arithmetic, .. } = backend.support(&inputs.problem, &candidate).unwrap()
    else {
        return None;
    };
    let options = RunOptions { repeats: REPEATS };
    let outcome = backend.run(inputs, &candidate, &options).unwrap();
    attribute_outcome(inputs, &arithmetic, &outcome, REPEATS)
}

/// Cases per fault.
const CASES: usize = 6;

#[test]
fn attribute_planted_faults_are_named_and_never_another() {
    let faults: Vec<_> = FAULTS.iter().filter(|f| !f.kills()).collect();
    let rows: Vec<(&str, usize, usize, Vec<String>)> = faults
        .par_iter()
        .map(|fault| {
            let right = |a: &Attribution| {
                a.cause
                    .as_ref()
                    .map(|c| expected(fault.name).contains(&c.kind))
            };
            let seen = attributions(fault.name, CASES);
            let named = seen.iter().filter(|(_, a)| right(a) == Some(true)).count();
            let wrong = seen.iter().filter(|(_, a)| right(a) == Some(false));
            let wrong = wrong.map(|(line, a)| format!("{line}: {a}")).collect();
            (fault.name, named, seen.len(), wrong)
        })
        .collect();
    let (mut missed, mut mistaken) = (Vec::new(), Vec::new());
    for (name, named, of, wrong) in &rows {
        println!("{name:24} {named} of {of}");
        if !wrong.is_empty() {
            mistaken.push(format!("{name} taken for another cause: {wrong:#?}"));
        }
        if *named == 0 {
            missed.push(*name);
        }
    }
    assert!(mistaken.is_empty(), "{}", mistaken.join("\n"));
    assert!(missed.len() * 10 <= rows.len(), "never named: {missed:?}");
}
