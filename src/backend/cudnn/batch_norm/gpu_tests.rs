//! Tests that need an NVIDIA GPU and cuDNN:
//! `cargo test --lib batch_norm::gpu_tests -- --ignored --test-threads=1 --nocapture`.

use super::*;
use crate::batch_norm::{Algorithm, Fill, FillKind, Judgement, Reference, judge};
use crate::dtype::DType;
use crate::judge::Verdict;
use crate::problem::Layout;

fn backend() -> CudnnBatchNorm {
    CudnnBatchNorm::open(&CudnnOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn judged(
    backend: &mut CudnnBatchNorm,
    problem: &Problem,
    fill: Fill,
) -> Vec<(Candidate, Judgement)> {
    let inputs = Inputs::generate(problem, fill);
    let reference = Reference::of(&inputs);
    let options = RunOptions { repeats: 4 };
    let candidates = backend.candidates(problem).into_iter();
    candidates
        .map(|candidate| {
            let outcome = backend.run(&inputs, candidate, &options).unwrap();
            (candidate, judge(&inputs, &reference, &outcome))
        })
        .collect()
}

const SHAPES: [&str; 6] = [
    "n=4 c=8 in=16x16",
    "n=3 c=7 in=5x7x3",
    "n=64 c=33 in=1x1",
    "n=1 c=5 in=1x1",
    "n=1 c=2 in=91x91",
    "n=8 c=16 in=14x14",
];

/// All passes, modes, layouts, types, distributions: nothing may fail, and what
/// was refused is shown.
#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn every_pass_mode_layout_and_type_is_right_on_the_gpu() {
    let mut backend = backend();
    println!("on {:?}", backend.combination());
    let (mut failures, mut passed) = (Vec::new(), 0);
    for pass in Pass::ALL {
        for mode in Mode::ALL {
            for (dtype, layout) in types_and_layouts() {
                for shape in SHAPES {
                    let line = format!(
                        "{} {shape} type={dtype} mode={} layout={}",
                        pass.name(),
                        mode.name(),
                        layout.name()
                    );
                    for kind in FillKind::ALL {
                        let fill = Fill { kind, seed: 1 };
                        for (candidate, judgement) in
                            judged(&mut backend, &line.parse().unwrap(), fill)
                        {
                            passed += usize::from(judgement.verdict == Verdict::Passed);
                            if matches!(judgement.verdict, Verdict::Failed(_)) {
                                let words = format!(
                                    "{line} fill={fill} via={candidate}: {:?} {:?}",
                                    judgement.verdict, judgement.detail
                                );
                                println!("  WRONG {words}");
                                failures.push(words);
                            }
                        }
                    }
                }
            }
        }
    }
    println!("{passed} passed, {} failed", failures.len());
    assert!(passed > 1000, "only {passed} trials passed");
    assert!(failures.is_empty(), "{} failures", failures.len());
}

fn types_and_layouts() -> Vec<(DType, Layout)> {
    let layouts = [Layout::Nchw, Layout::Nhwc];
    let pairs = DType::USUAL.into_iter();
    pairs
        .flat_map(|dtype| layouts.map(|layout| (dtype, layout)))
        .collect()
}

/// Which algorithm the statistics come from, where the mean is a thousand
/// standard deviations: printed, and that one of the three explains them.
#[test]
#[ignore = "needs an NVIDIA GPU and cuDNN"]
fn statistics_are_explained_by_an_algorithm_on_the_gpu() {
    let mut backend = backend();
    for mode in Mode::ALL {
        for layout in ["nchw", "nhwc"] {
            let line = format!(
                "bn_train n=64 c=8 in=14x14 type=fp16 mode={} layout={layout}",
                mode.name()
            );
            let problem: Problem = line.parse().unwrap();
            let plain = Inputs::generate(&problem, Fill::plain());
            let inputs = Inputs::from_x(&problem, Fill::plain(), |i| 1000.0 + plain.x.get(i));
            let reference = Reference::of(&inputs);
            for candidate in backend.candidates(&problem) {
                let outcome = backend
                    .run(&inputs, candidate, &RunOptions { repeats: 0 })
                    .unwrap();
                let judgement = judge(&inputs, &reference, &outcome);
                let names = Algorithm::ALL.map(Algorithm::name);
                println!(
                    "{line} via={candidate}: {:?} {names:?} {:?}",
                    judgement.verdict, judgement.algorithms
                );
                let ran = !judgement.outputs.is_empty();
                assert!(
                    !ran || judgement
                        .algorithms
                        .iter()
                        .flatten()
                        .any(|ratio| *ratio <= 1.0)
                );
            }
        }
    }
}
