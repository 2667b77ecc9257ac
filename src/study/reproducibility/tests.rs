//! The study in one process on the host backend, with and without a fault.

use super::data::Run;
use super::trace::Cause;
use super::*;
use crate::backend::open::{BackendKind, BackendSpec};

fn measured<T>(fault: Option<&str>, measure: impl FnOnce(&mut Study<'_>) -> T) -> (T, Data) {
    let backend = BackendSpec {
        kind: BackendKind::Host,
        fault: fault.map(str::to_owned),
        ..BackendSpec::default()
    };
    let request = Request::new(backend, 7);
    let mut convolutions = open::open(&request.backend).unwrap();
    let mut norm = batch_norm::open(&without_fault(&request.backend)).unwrap();
    let mut study = Study {
        request: &request,
        size: network::tests::SMALL,
        repeats: 3,
        convolutions: &mut *convolutions,
        norm: &mut *norm,
        data: Data::default(),
    };
    let result = measure(&mut study);
    (result, study.data)
}

/// The comparison in one process of a policy's runs, and many of them where it is
/// the deterministic one.
fn compared(fault: Option<&str>, policy: Policy) -> Data {
    let precision = Precision::Mixed;
    let measure = |study: &mut Study<'_>| {
        let plan = plan::plan(study.convolutions, &study.size, precision, policy);
        let plan = plan.unwrap().unwrap();
        let first = study.train(precision, &plan, 0).unwrap();
        let again = |run| study.train(precision, &plan, run);
        let (runs, other) = until_other(&first, HERE, again).unwrap();
        study.data.add(&Pair {
            precision,
            choice: policy.name(),
            processes: 1,
            runs,
            first: &first,
            other: &other,
        });
        if policy == Policy::Deterministic {
            study.correct(precision, &plan, &first).unwrap();
        }
    };
    measured(fault, measure).1
}

#[test]
fn planted_nondeterminism_is_found_where_it_is_and_expected() {
    let data = compared(None, Policy::Unrestricted);
    let run = &data.runs[0];
    // The backward pass begins with the linear layer's filter.
    let place = (run.step, run.operation.as_deref(), run.tensor.as_deref());
    assert_eq!(place, (Some(1), Some("linear bwd_filter"), Some("dw")));
    assert_eq!(run.via.as_deref(), Some("host:gemm!order_nondeterministic"));
    assert_eq!(run.cause, Some(Cause::Nondeterministic));
    assert!(run.largest.unwrap() > 0.0 && run.elements.unwrap() > 0);
    assert!(data.unexpected().is_empty());
    let verdict = data.verdict();
    assert!(verdict.contains("That is expected"), "{verdict}");
    // What came before has the same bits, and the loss of step 1 with it.
    let parted = data.tensors.iter().position(|t| t.elements > 0).unwrap();
    assert_eq!(data.tensors[parted].operation, "linear bwd_filter");
    assert_eq!(data.steps[0].loss_relative, 0.0);
    assert!(data.steps[1..].iter().all(|s| s.loss_relative > 0.0));
}

#[test]
fn deterministic_algorithms_repeat_every_bit() {
    let data = compared(None, Policy::Deterministic);
    let Run {
        identical, runs, ..
    } = data.runs[0];
    assert_eq!((identical, runs), (true, HERE));
    assert_eq!(data.corrected[0].identical, 3);
    assert!(data.is_corrected() && data.tensors.is_empty());
    let verdict = data.verdict();
    assert!(verdict.contains("Nothing differed"), "{verdict}");
}

#[test]
fn a_fault_behind_a_promise_is_not_expected() {
    for policy in [Policy::Unrestricted, Policy::Deterministic] {
        let data = compared(Some(plan::FAULT), policy);
        assert_eq!(data.unexpected().len(), 1);
        assert_eq!(data.runs[0].cause, Some(Cause::BrokenPromise));
        assert_eq!(data.runs[0].operation.as_deref(), Some("linear bwd_filter"));
        let verdict = data.verdict();
        assert!(verdict.contains("NOT expected"), "{verdict}");
        assert!(verdict.contains("host:gemm!order"), "{verdict}");
        assert_eq!(policy == Policy::Deterministic, !data.is_corrected());
    }
}

#[test]
fn rates_tell_the_fault_from_what_promises_nothing() {
    let of = |fault| {
        let measure = |study: &mut Study<'_>| study.rates(Precision::Mixed).unwrap();
        measured(fault, measure).1
    };
    let honest = of(None);
    assert!(honest.findings().is_empty());
    let known: Vec<_> = honest.rates.iter().filter(|r| r.nondeterministic).collect();
    assert_eq!(known.len(), 3);
    assert!(
        known
            .iter()
            .all(|r| r.differed > 0 && r.largest_relative > 0.0)
    );
    let broken = of(Some(plan::FAULT));
    assert_eq!(broken.findings().len(), 3);
    assert!(broken.verdict().contains("NOT expected"));
}

#[test]
fn a_benchmark_that_chooses_otherwise_is_another_cause() {
    let measure = |study: &mut Study<'_>| study.benchmark(Precision::Mixed).unwrap();
    let ((), data) = measured(None, measure);
    assert!(!data.runs[0].identical && !data.changed().is_empty());
    assert_eq!(data.runs[0].cause, Some(Cause::OtherAlgorithm));
    assert!(data.unexpected().is_empty());
}
