//! Against the real library, without a GPU: these tests run where cuDNN 9.8 or
//! later is found (`CONVFUZZ_CUDNN_LIB`, or the usual places), and say why they
//! did nothing elsewhere.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::knobs::combinations;
use super::*;
use crate::bound::{Accumulator, OperandRounding, Units};
use crate::candidate::Repro;
use crate::error::ErrorKind;

const H200: &str = include_str!("properties/h200.json");

fn open(properties: &str) -> Result<Planner> {
    let library = std::env::var_os("CONVFUZZ_CUDNN_LIB").map(PathBuf::from);
    Planner::offline(library.as_deref(), &DeviceProperties::parse(properties)?)
}

/// The planner for an H200; `None`, with the reason printed, without a library.
fn h200() -> Option<Planner> {
    match open(H200) {
        Ok(planner) => Some(planner),
        Err(error) if error.kind() == ErrorKind::Environment => {
            eprintln!("skipped, no engine was enumerated: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn list(planner: &Planner, line: &str, budget: KnobBudget, seed: u64) -> Vec<Listing> {
    list_offline(planner, &line.parse().unwrap(), budget, seed)
}

fn offered(listings: &[Listing]) -> Vec<&Listing> {
    listings
        .iter()
        .filter(|l| matches!(l.support, Support::Offered { .. }))
        .collect()
}

fn refusal(
    planner: &Planner,
    prepared: &mut Prepared,
    engine: i64,
    choice: &plan::Choice,
) -> String {
    match planner.plan(prepared, engine, choice) {
        Ok(_) => panic!("{engine} {choice:?} was accepted"),
        Err(failure) => failure.to_string(),
    }
}

#[test]
fn every_direction_rank_layout_and_type_has_engines() {
    let Some(planner) = h200() else { return };
    let shapes = [
        "n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1",
        "n=2 c=32 k=32 in=14x14 ker=3x3 pad=1+2x0+1 stride=2x1 dil=1x2",
        "n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1 g=4 alpha=0.5 beta=-2",
        "n=2 c=16 k=16 in=8x8x8 ker=3x1x1 pad=1x0x0",
        "n=2 c=32 k=32 in=33 ker=3",
    ];
    for direction in ["fwd", "bwd_data", "bwd_filter"] {
        for shape in shapes {
            for layout in ["nchw", "nhwc"] {
                for types in ["fp32", "fp16", "fp16 compute=fp16", "bf16", "fp64"] {
                    let line = format!("{direction} {shape} layout={layout} type={types}");
                    let listings = list(&planner, &line, KnobBudget::Default, 0);
                    assert!(!offered(&listings).is_empty(), "{line}: {listings:?}");
                }
            }
        }
    }
}

#[test]
fn list_single_precision_has_engines_of_every_arithmetic() {
    let Some(planner) = h200() else { return };
    let line = "fwd n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1";
    let listings = list(&planner, line, KnobBudget::Default, 0);
    let mut seen = BTreeSet::new();
    for listing in offered(&listings) {
        let Support::Offered {
            arithmetic, notes, ..
        } = &listing.support
        else {
            continue;
        };
        seen.insert(arithmetic.operands);
        let tensor = notes.iter().any(|note| note == "TENSOR_CORE");
        assert_eq!(matches!(arithmetic.units, Units::TensorCore(_)), tensor);
        assert_eq!(arithmetic.accumulator, Accumulator::Fp32);
    }
    for operands in [
        OperandRounding::None,
        OperandRounding::Tf32,
        OperandRounding::Fp16,
    ] {
        assert!(seen.contains(&operands), "{operands:?} in {seen:?}");
    }
}

#[test]
fn list_gives_every_index_once_and_refusals_have_words() {
    let Some(planner) = h200() else { return };
    let problem: ConvProblem = "fwd c=8 k=8 in=9x9 ker=3x3 type=fp16".parse().unwrap();
    let count = planner.prepare(&problem).unwrap().count();
    let listings = list(&planner, &problem.to_string(), KnobBudget::Default, 0);
    let own =
        |l: &&Listing| matches!(&l.candidate, Candidate::Engine { knobs, .. } if knobs.is_empty());
    assert_eq!(listings.iter().filter(own).count(), count);
    for listing in &listings {
        let text = listing.candidate.to_string();
        assert_eq!(text.parse::<Candidate>().unwrap(), listing.candidate);
        if let Support::Refused(words) = &listing.support {
            assert!(words.contains("NOT_SUPPORTED"), "{text}: {words}");
        }
    }
}

#[test]
fn offline_names_the_gpu_and_gives_the_knobs_of_every_engine_offered() {
    if h200().is_none() {
        return;
    }
    let library = std::env::var_os("CONVFUZZ_CUDNN_LIB").map(PathBuf::from);
    let properties = DeviceProperties::parse(H200).unwrap();
    let problem = "fwd c=8 k=8 in=9x9 ker=3x3 type=fp16".parse().unwrap();
    let budget = KnobBudget::Default;
    let found = offline(library.as_deref(), &properties, &problem, budget, 0).unwrap();
    assert_eq!(found.combination.device, "NVIDIA H200");
    assert_eq!(found.combination.sm, "9.0");
    for listing in offered(&found.listings) {
        let (index, choice) = parts(&listing.candidate).unwrap();
        let knobs = &found.knobs[&index];
        for (kind, _) in choice {
            assert!(knobs.iter().any(|k| k.knob == *kind), "{listing:?}");
        }
    }
    let ranges: Vec<_> = found.knobs.values().flatten().collect();
    assert!(ranges.len() > 10 && ranges.iter().all(|k| k.minimum <= k.maximum));
}

#[test]
fn list_marks_what_the_heuristics_choose_first() {
    let Some(planner) = h200() else { return };
    let line = "fwd n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1 type=fp16";
    let listings = list(&planner, line, KnobBudget::Default, 0);
    for first in ["heur_a:0", "heur_b:0", "heur_fallback:0"] {
        let marked = |l: &&&Listing| match &l.support {
            Support::Offered { notes, .. } => notes.iter().any(|note| note == first),
            Support::Refused(_) => false,
        };
        let listings = offered(&listings);
        assert_eq!(listings.iter().filter(marked).count(), 1, "{first}");
    }
}

#[test]
fn list_budget_is_kept_and_a_seed_gives_the_same_choices() {
    let Some(planner) = h200() else { return };
    let line = "bwd_filter n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1 type=fp16";
    let sampled = |budget, seed| list(&planner, line, budget, seed);
    let plain = offered(&sampled(KnobBudget::Default, 1)).len();
    let more = sampled(KnobBudget::Count(30), 1);
    assert_eq!(offered(&more).len(), plain + 30);
    assert_eq!(more, sampled(KnobBudget::Count(30), 1));
    assert_ne!(more, sampled(KnobBudget::Count(30), 2));
    let distinct: BTreeSet<String> = more.iter().map(|l| l.candidate.to_string()).collect();
    assert_eq!(distinct.len(), more.len());
}

#[test]
fn survey_all_tries_every_value_of_small_knobs() {
    let Some(planner) = h200() else { return };
    let problem: ConvProblem = "fwd c=2 k=2 in=3x3 ker=1x1 type=fp64".parse().unwrap();
    let mut prepared = planner.prepare(&problem).unwrap();
    let mut coverage = Coverage::default();
    let scope = Scope {
        budget: KnobBudget::All,
        seed: 0,
    };
    let steps = &mut Steps::unwatched();
    survey(&planner, &mut prepared, scope, &mut coverage, steps);
    let rows = coverage.rows();
    let mut checked = 0;
    for engine in planner
        .engines(&prepared)
        .filter(|e| combinations(&e.knobs) > 1)
    {
        for knob in engine.knobs.iter().filter(|k| k.count() <= knobs::SMALL) {
            for value in (0..knob.count()).map(|i| knob.value(i)) {
                let tried = rows.iter().any(|row| {
                    row.engine == engine.index
                        && row.knob.as_deref() == Some(&*names::knob(knob.kind as i32))
                        && row.value == Some(value)
                        && row.accepted + row.refused > 0
                });
                assert!(tried, "engine {} {knob:?} {value}", engine.index);
                checked += 1;
            }
        }
    }
    assert!(checked > 10, "{checked}");
}

#[test]
fn survey_never_asks_what_is_barred_and_lists_the_rest_as_ever() {
    let Some(planner) = h200() else { return };
    let problem: ConvProblem = "fwd c=32 k=32 in=14x14 ker=3x3 type=fp16".parse().unwrap();
    let scope = Scope {
        budget: KnobBudget::Default,
        seed: 0,
    };
    let list = |barred: &[String]| {
        let (mut told, mut coverage) = (Vec::new(), Coverage::default());
        let mut on = |step: &str| told.push(step.to_owned());
        let mut prepared = planner.prepare(&problem).unwrap();
        let steps = &mut Steps::new(barred, &mut on);
        let listings = survey(&planner, &mut prepared, scope, &mut coverage, steps);
        (listings, told)
    };
    let (all, told) = list(&[]);
    for step in ["heur_a", "heur_b", "heur_fallback"] {
        assert!(told.iter().any(|t| t == step), "{step}");
    }
    let offered = |l: &&Listing| matches!(l.support, Support::Offered { .. });
    let barred = all.iter().find(offered).unwrap().candidate.clone();
    let (rest, told) = list(&[barred.to_string()]);
    assert!(!told.contains(&barred.to_string()));
    let before: Vec<_> = all.iter().map(|l| &l.candidate).collect();
    let after: Vec<_> = rest.iter().map(|l| &l.candidate).collect();
    assert_eq!(before, after);
    for (before, after) in all.iter().zip(&rest) {
        match (before.candidate == barred, &after.support) {
            (true, Support::Refused(why)) => assert!(why.contains("did not come back"), "{why}"),
            (bars, _) => assert!(!bars && before == after, "{after:?}"),
        }
    }
    let (rest, told) = list(&["heur_a".to_owned()]);
    assert!(!told.contains(&"heur_a".to_owned()));
    let notes = |l: &Listing| match &l.support {
        Support::Offered { notes, .. } => notes.join(" "),
        Support::Refused(_) => String::new(),
    };
    assert!(all.iter().any(|l| notes(l).contains("heur_a:")));
    assert!(!rest.iter().any(|l| notes(l).contains("heur_a:")));
}

#[test]
fn plan_choices_outside_a_knob_are_refused_in_words() {
    let Some(planner) = h200() else { return };
    let problem: ConvProblem = "fwd c=8 k=8 in=9x9 ker=3x3".parse().unwrap();
    let mut prepared = planner.prepare(&problem).unwrap();
    let (index, knob) = planner
        .engines(&prepared)
        .find_map(|e| e.knobs.first().map(|k| (e.index, *k)))
        .unwrap();
    let beyond = vec![(knob.kind, knob.maximum + 1)];
    let words = refusal(&planner, &mut prepared, index, &beyond);
    assert!(words.contains(&format!("to {}", knob.maximum)), "{words}");
    let words = refusal(&planner, &mut prepared, index, &vec![(99, 0)]);
    assert!(words.contains("has no knob 99"), "{words}");
}

#[test]
fn check_index_beyond_the_count_is_a_usage_error_with_the_version() {
    let Some(planner) = h200() else { return };
    let problem: ConvProblem = "fwd c=8 k=8 in=9x9 ker=3x3".parse().unwrap();
    let prepared = planner.prepare(&problem).unwrap();
    let count = prepared.count() as i64;
    assert!(check_index(count - 1, &prepared, &planner).is_ok());
    for index in [-1, count, 1_000_000] {
        let error = check_index(index, &prepared, &planner).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains(&planner.version().to_string()));
    }
}

#[test]
fn reread_plan_asks_for_the_same_workspace() {
    let Some(planner) = h200() else { return };
    let problem: ConvProblem = "fwd c=32 k=32 in=14x14 ker=3x3 type=fp16".parse().unwrap();
    let mut prepared = planner.prepare(&problem).unwrap();
    let indices: Vec<i64> = planner.engines(&prepared).map(|e| e.index).collect();
    let mut reread = 0;
    for index in indices {
        let Ok(plan) = planner.plan(&mut prepared, index, &[]) else {
            continue;
        };
        if let Some(again) = planner.reread(&plan) {
            assert_eq!(again.workspace, plan.workspace, "engine {index}");
            reread += 1;
        }
    }
    assert!(reread > 0);
}

#[test]
fn prepare_impossible_alpha_is_refused_with_one_listing() {
    let Some(planner) = h200() else { return };
    let listings = list(
        &planner,
        "fwd c=4 k=4 in=8x8 ker=3x3 alpha=0.1",
        KnobBudget::All,
        0,
    );
    let [
        Listing {
            support: Support::Refused(words),
            ..
        },
    ] = &listings[..]
    else {
        panic!("{listings:?}");
    };
    assert!(words.contains("alpha=0.1"), "{words}");
}

#[test]
fn offline_unusable_properties_are_usage_errors() {
    if h200().is_none() {
        return;
    }
    let unknown_field = H200.replace("warpSize", "warpWidth");
    for properties in ["not json", "{}", "{\"deviceVer\":900}", &unknown_field] {
        let error = open(properties).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Usage, "{properties}: {error}");
    }
}

#[test]
fn offline_gpus_the_library_does_not_know_are_usage_errors() {
    if h200().is_none() {
        return;
    }
    for unknown in ["7770", "300"] {
        let properties = H200.replace("\"deviceVer\":900", &format!("\"deviceVer\":{unknown}"));
        let error = open(&properties).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("does not know"), "{error}");
    }
}

/// The committed cases parse, and where the library is the one they were found
/// with, it still takes their plans.
#[test]
fn corpus_lines_parse_and_their_plans_are_taken() {
    let corpus = include_str!("../../../../tests/corpus/cudnn-9.19.0-sm90.txt");
    let repros: Vec<Repro> = corpus
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let repro: Repro = line.parse().unwrap();
            assert_eq!(repro.to_string(), line);
            repro
        })
        .collect();
    assert!(repros.len() > 20);
    let Some(planner) = h200().filter(|p| p.version().to_string() == "9.19.0") else {
        return;
    };
    for repro in &repros {
        let Some(Candidate::Engine { index, knobs }) = &repro.via else {
            panic!("{repro} names no engine");
        };
        let mut prepared = planner.prepare(&repro.problem).unwrap();
        let plan = planner.plan(&mut prepared, *index, knobs).map(drop);
        // Engines that ask the GPU or its driver are missing without one.
        let missing = plan.as_ref().is_err_and(planner::declines);
        assert!(plan.is_ok() || missing, "{repro}: {plan:?}");
        println!("{repro}: {plan:?}");
    }
}
