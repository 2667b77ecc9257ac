//! Faults planted in the host backend, from a failing trial to its report.

use super::subject::InProcess;
use super::*;
use crate::backend::host::{HostBackend, HostOptions};

fn minimized(start: &str, options: &Options) -> Option<Minimized> {
    let mut backend = HostBackend::new(&HostOptions::default()).unwrap();
    let mut steps = Vec::new();
    let start = start.parse().unwrap();
    let end = minimize(&mut InProcess(&mut backend), &start, options, &mut |step| {
        steps.push(step)
    });
    let end = end.unwrap();
    assert_eq!(steps[0], Step::Shrinking);
    end
}

#[test]
fn minimize_seed_1_ends_with_one_product_and_its_condition() {
    let start = "fwd n=2 c=16 k=24 in=5x4x3 ker=3x1x1 pad=1x0x0 type=fp16 fill=normal:5 \
                 via=host:gemm!conv3d_8x8";
    let end = minimized(start, &Options::default()).expect("it fails");
    assert_eq!(
        end.repro.to_string(),
        "fwd c=8 k=8 in=3x1x1 ker=3x1x1 type=fp16 fill=impulse:0 via=host:gemm!conv3d_8x8"
    );
    let data = end.data.expect("less data than an impulse and its weights");
    assert_eq!((data.first.len(), data.second.len()), (1, 1), "{data:?}");
    assert_eq!((data.first[0].1, data.second[0].1), (1.0, 1.0));
    assert_eq!(end.record.verdict, "failed");
    let trigger = end.trigger.expect("asked for");
    assert_eq!(
        trigger.to_string(),
        "c % 8 == 0 and k % 8 == 0 and kernel == (3,1,1) and type == fp16"
    );
}

#[test]
fn minimize_keeping_the_reporters_channels_gives_his_line() {
    let start = "fwd n=2 c=512 k=128 in=4x2x2 ker=3x1x1 pad=1x0x0 type=fp16 fill=normal:5 \
                 via=host:gemm!conv3d_8x8";
    let options = Options {
        shrink: shrink::Options {
            keep: vec![shrink::Field::C, shrink::Field::K],
            ..shrink::Options::default()
        },
        data_trials: 0,
        trigger: None,
    };
    let end = minimized(start, &options).expect("it fails");
    assert_eq!(
        end.repro.to_string(),
        "fwd c=512 k=128 in=3x1x1 ker=3x1x1 type=fp16 fill=impulse:0 via=host:gemm!conv3d_8x8"
    );
}

#[test]
fn minimize_a_passing_trial_is_none() {
    let line = "fwd c=2 k=2 in=4 ker=3 fill=ints:1 via=host:gemm";
    assert!(minimized(line, &Options::default()).is_none());
}

#[test]
fn fills_special_data_are_part_of_the_condition() {
    let fill = |text: &str| fills(text.parse().unwrap());
    assert_eq!(fill("inf:3"), [None]);
    let kinds: Vec<_> = fill("const:0").iter().flatten().map(|f| f.kind).collect();
    assert_eq!(kinds[0], FillKind::Constant);
    assert!(kinds.contains(&FillKind::Normal) && kinds.contains(&FillKind::Impulse));
}
