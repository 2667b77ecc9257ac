use super::*;
use crate::dtype::DType;
use crate::fill::Regime;
use crate::problem::{Compute, Layout};

type Fault = fn(&Repro) -> bool;

fn seed_1(r: &Repro) -> bool {
    let p = &r.problem;
    p.c.is_multiple_of(8) && p.k.is_multiple_of(8) && p.kernel == [3, 1, 1] && half(r)
}

fn half(r: &Repro) -> bool {
    r.problem.x_type == DType::Fp16
}

/// Name, fault, minimal case, the condition in words.
const FAULTS: &[(&str, Fault, &str, &str)] = &[
    (
        "seed 1",
        seed_1,
        "fwd c=8 k=8 in=3x1x1 ker=3x1x1 type=fp16 fill=const:0",
        "c % 8 == 0 and k % 8 == 0 and kernel == (3,1,1) and type == fp16",
    ),
    (
        "always",
        |_| true,
        "fwd c=1 k=1 in=1 ker=1 fill=const:0",
        "always",
    ),
    (
        "threshold",
        |r| r.problem.c >= 17,
        "fwd c=17 k=1 in=1 ker=1 fill=const:0",
        "c >= 17",
    ),
    (
        "threshold and no multiple",
        |r| r.problem.k > 16 && !r.problem.k.is_multiple_of(4),
        "fwd c=1 k=17 in=1 ker=1 fill=const:0",
        "k >= 17 and k % 4 != 0",
    ),
    (
        "layout and compute",
        |r| r.problem.layout == Layout::Nhwc && r.problem.compute == Compute::Fp16,
        "fwd c=1 k=1 in=1 ker=1 layout=nhwc type=fp16 compute=fp16 fill=const:0",
        "compute == fp16 and layout == nhwc",
    ),
    (
        "any stride",
        |r| r.problem.stride.iter().any(|s| *s > 1) && r.problem.groups > 1,
        "fwd c=2 k=2 in=1 ker=1 stride=2 g=2 fill=const:0",
        "groups >= 2 and largest stride >= 2",
    ),
    (
        "dilated, two dimensions",
        |r| {
            let p = &r.problem;
            p.rank() == 2 && (0..2).any(|d| p.dilation[d] > 1 && p.kernel[d] > 1)
        },
        "fwd c=1 k=1 in=3x1 ker=2x1 dil=2x1 fill=const:0",
        "rank == 2 and largest dilation >= 2",
    ),
    (
        "odd batch",
        |r| r.problem.n % 2 == 1 && r.problem.n > 1,
        "fwd n=3 c=1 k=1 in=1 ker=1 fill=const:0",
        "n >= 3 and n % 2 != 0",
    ),
    (
        "two types",
        |r| half(r) || r.problem.x_type == DType::Bf16,
        "fwd c=1 k=1 in=1 ker=1 type=fp16 fill=const:0",
        "type in {bf16, fp16}",
    ),
    (
        "beta",
        |r| r.problem.beta.0 != 0.0 && r.problem.kernel.iter().product::<usize>() == 1,
        "fwd c=1 k=1 in=1 ker=1 beta=1 fill=const:0",
        "beta != 0 and kernel taps == 1",
    ),
    (
        "data",
        |r| r.fill.kind.regime() == Regime::RoundingSensitive && r.problem.reduction_length() >= 32,
        "fwd c=32 k=1 in=1 ker=1 fill=normal:0",
        "regime == rounding_sensitive and products per output >= 32",
    ),
    (
        "uneven padding",
        |r| r.problem.pad_before != r.problem.pad_after,
        "fwd c=1 k=1 in=1 ker=1 pad=0+1 fill=const:0",
        "uneven padding",
    ),
    (
        "depthwise in single",
        |r| {
            r.problem.groups > 1
                && r.problem.groups == r.problem.c
                && r.problem.x_type == DType::Fp32
        },
        "fwd c=2 k=2 in=1 ker=1 g=2 fill=const:0",
        "type == fp32 and depthwise",
    ),
    (
        "wide rows",
        |r| *r.problem.output_spatial().last().unwrap() > 8 && r.problem.k >= 5,
        "fwd c=1 k=5 in=9 ker=1 fill=const:0",
        "k >= 5 and out_w >= 9",
    ),
    (
        "a knob",
        |r| {
            r.via
                .as_ref()
                .is_some_and(|v| v.to_string().contains("/3=1"))
                && r.problem.c % 2 == 0
        },
        "fwd c=2 k=1 in=1 ker=1 fill=const:0 via=engine:7/3=1",
        "c % 2 == 0 and knob 3 == 1",
    ),
    (
        "square kernel",
        |r| r.problem.kernel == [3, 3],
        "fwd c=1 k=1 in=3x3 ker=3x3 fill=const:0",
        "kernel == (3,3)",
    ),
];

fn effort(seed: u64) -> Effort {
    Effort {
        check: 1_000,
        seed,
        ..Effort::default()
    }
}

fn inferred(fault: Fault, minimum: &str, effort: &Effort) -> Trigger {
    let minimum: Repro = minimum.parse().unwrap();
    assert!(fault(&minimum), "{minimum} does not fail");
    let mut predicate = |r: &Repro| Ok(fault(r).then_some(()));
    infer(&minimum, &[], effort, &mut predicate)
        .unwrap()
        .unwrap()
}

#[test]
fn infer_planted_triggers_are_found_in_words_and_predict() {
    let (mut wrong, mut spent) = (Vec::new(), Vec::new());
    for (name, fault, minimum, words) in FAULTS {
        for seed in 0..3 {
            let trigger = inferred(*fault, minimum, &effort(seed));
            let (precision, recall) = (trigger.check.precision(), trigger.check.recall());
            let good = |share: Option<f64>| share.is_some_and(|s| s >= 0.99);
            spent.push(trigger.trials - trigger.checked());
            if !good(precision) || !good(recall) || trigger.to_string() != *words {
                wrong.push(format!(
                    "{name}/{seed}: {trigger}, {precision:?}, {recall:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    spent.sort_unstable();
    let (median, most) = (spent[spent.len() / 2], spent[spent.len() - 1]);
    println!(
        "{} triggers: median {median} trials to learn, most {most}",
        spent.len()
    );
    assert!(median < 250 && most < 1_000, "median {median}, most {most}");
}

#[test]
fn infer_every_clause_is_backed_by_trials_on_both_sides() {
    for (name, fault, minimum, _) in FAULTS {
        let trigger = inferred(*fault, minimum, &effort(7));
        for evidence in &trigger.clauses {
            assert!(evidence.failing >= 10, "{name}: {evidence:?}");
            assert!(evidence.passing >= 5, "{name}: {evidence:?}");
            let example = evidence.example.as_ref().expect("an example");
            assert!(
                !evidence.clause.holds(example) && !fault(example),
                "{name}: {example}"
            );
        }
        let check = &trigger.check;
        assert_eq!(
            check.counterexamples.len() as u32,
            check.false_fail + check.false_pass
        );
        assert_eq!(trigger.checked(), 1_000);
        let (failing, passing) = trigger.learnt_from;
        assert!(failing > 0 && failing + passing <= trigger.trials);
    }
}

#[test]
fn infer_what_no_conjunction_says_is_shown_by_the_check() {
    // Either of two unrelated conditions.
    let fault: Fault = |r| r.problem.c.is_multiple_of(8) || r.problem.n >= 3;
    let trigger = inferred(fault, "fwd c=8 k=1 in=1 ker=1 fill=const:0", &effort(1));
    let check = &trigger.check;
    let shares = [check.precision(), check.recall()].map(|s| s.expect("failures among the cases"));
    assert!(shares.iter().any(|s| *s < 0.95), "{trigger}: {shares:?}");
    assert!(!check.counterexamples.is_empty());
    for repro in &check.counterexamples {
        assert_ne!(trigger.holds(repro), fault(repro), "{repro}");
    }
}

#[test]
fn infer_is_deterministic_and_keeps_to_its_budget() {
    let small = Effort {
        max_trials: 40,
        check: 20,
        ..Effort::default()
    };
    let minimum = FAULTS[0].2;
    let run = || inferred(seed_1, minimum, &small);
    let (a, b) = (run(), run());
    assert_eq!((a.to_string(), a.trials), (b.to_string(), b.trials));
    assert!(!a.settled && a.trials <= 60, "{} trials", a.trials);
}

#[test]
fn infer_known_failures_help_and_passing_minima_are_none() {
    let known = ["fwd n=4 c=512 k=128 in=8x4x4 ker=3x1x1 pad=1x0x0 type=fp16"
        .parse()
        .unwrap()];
    let mut predicate = |r: &Repro| Ok(seed_1(r).then_some(()));
    let minimum = FAULTS[0].2.parse().unwrap();
    let trigger = infer(&minimum, &known, &Effort::default(), &mut predicate).unwrap();
    assert_eq!(trigger.unwrap().to_string(), FAULTS[0].3);
    let passing = "fwd c=7 k=8 in=3x1x1 ker=3x1x1".parse().unwrap();
    let none = infer(&passing, &known, &Effort::default(), &mut predicate).unwrap();
    assert!(none.is_none());
}

#[test]
fn infer_errors_end_the_search() {
    let mut runs = 0;
    let mut predicate = |_: &Repro| {
        runs += 1;
        match runs {
            0..20 => Ok(Some(())),
            _ => Err(crate::error::Error::environment("the GPU is gone")),
        }
    };
    let minimum = FAULTS[1].2.parse().unwrap();
    let error = infer(&minimum, &[], &Effort::default(), &mut predicate).unwrap_err();
    assert_eq!(error.to_string(), "the GPU is gone");
}

#[test]
fn infer_a_flaky_failure_is_inferred_all_the_same() {
    let mut runs = 0u64;
    let mut predicate = |r: &Repro| {
        runs += 1;
        let draw = runs.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        Ok((r.problem.c >= 17 && draw.is_multiple_of(2)).then_some(()))
    };
    let minimum = "fwd c=17 k=1 in=1 ker=1".parse().unwrap();
    let effort = Effort {
        max_trials: 3_000,
        ..Effort::default()
    };
    let trigger = infer(&minimum, &[], &effort, &mut predicate)
        .unwrap()
        .unwrap();
    assert_eq!(trigger.to_string(), "c >= 17");
    assert!(trigger.check.recall() >= Some(0.95));
}

#[test]
fn trigger_as_data_and_in_words_says_the_same() {
    let trigger = inferred(seed_1, FAULTS[0].2, &effort(0));
    let data = serde_json::to_value(&trigger).unwrap();
    let clause = &data["clauses"][0];
    assert_eq!(clause["clause"]["feature"], "c");
    assert_eq!(clause["clause"]["test"]["multiple"], 8);
    let example: Repro = clause["example"][0].as_str().unwrap().parse().unwrap();
    assert!(!seed_1(&example));
    assert_eq!(data["check"]["false_fail"], 0);
    let words = trigger.clauses[0].to_string();
    assert!(
        words.starts_with("c % 8 == 0: ") && words.contains("passing outside it alone, e.g. fwd")
    );
}

/// A candidate that takes fp16 only, and is wrong for c >= 17.
#[test]
fn infer_among_refused_cases_say_nothing() {
    let mut refused = 0;
    let mut predicate = |r: &Repro| {
        Ok(match (half(r), r.problem.c >= 17) {
            (false, _) => {
                refused += 1;
                Seen::Refused
            }
            (true, true) => Seen::Fails(()),
            (true, false) => Seen::Passes,
        })
    };
    let minimum = "fwd c=17 k=1 in=1 ker=1 type=fp16".parse().unwrap();
    let trigger = infer_among(&minimum, &[], &Effort::default(), &mut predicate)
        .unwrap()
        .unwrap();
    assert_eq!(trigger.to_string(), "c >= 17");
    assert!(refused > 0 && trigger.check.counterexamples.is_empty());
}

/// One case in fifty has data that does not show the fault.
#[test]
fn infer_data_that_hides_the_fault_now_and_then_adds_no_clauses() {
    let mut hidden = 0;
    let mut predicate = |r: &Repro| {
        let mut hash = std::hash::DefaultHasher::new();
        std::hash::Hash::hash(r, &mut hash);
        let shows = !std::hash::Hasher::finish(&hash).is_multiple_of(50);
        hidden += u32::from(!shows);
        Ok((r.problem.c >= 17 && shows).then_some(()))
    };
    let minimum = "fwd c=17 k=1 in=1 ker=1".parse().unwrap();
    let trigger = infer(&minimum, &[], &Effort::default(), &mut predicate)
        .unwrap()
        .unwrap();
    assert!(hidden > 5);
    assert_eq!(trigger.to_string(), "c >= 17", "{:?}", trigger.clauses);
    assert!(trigger.check.precision() >= Some(0.9));
}

#[test]
fn infer_alpha_or_beta_is_one_condition() {
    let fault: Fault = |r| (r.problem.alpha.0, r.problem.beta.0) != (1.0, 0.0);
    let trigger = inferred(fault, "fwd c=1 k=1 in=1 ker=1 alpha=-1", &effort(0));
    assert_eq!(trigger.to_string(), "(alpha,beta) != (1,0)");
}
