//! Against the real library, without a GPU: runs where cuDNN 9.8 or later is
//! found (`CONVFUZZ_CUDNN_LIB`, or the usual places), else says why it cannot.

use std::path::PathBuf;

use super::*;
use crate::bound::{Family, OperandRounding};

const H200: &str = include_str!("properties/h200.json");

fn planner() -> Option<Planner> {
    let library = std::env::var_os("CONVFUZZ_CUDNN_LIB").map(PathBuf::from);
    match Planner::offline(library.as_deref(), H200) {
        Ok(planner) => Some(planner),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn prepare(planner: &Planner, text: &str) -> Prepared {
    planner.prepare(&text.parse().unwrap()).unwrap()
}

#[test]
#[ignore]
fn explore() {
    let Some(planner) = planner() else { return };
    let text = std::env::var("P").unwrap_or("fwd n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1".into());
    let budget: KnobBudget = std::env::var("B")
        .unwrap_or("default".into())
        .parse()
        .unwrap();
    for text in text.split(';') {
        let start = Instant::now();
        let listings = list_offline(&planner, &text.parse().unwrap(), budget, 0);
        println!("{text}: {:?}", start.elapsed());
        let offered = listings
            .iter()
            .filter(|l| matches!(l.support, Support::Offered { .. }))
            .count();
        println!("offered {offered} of {}", listings.len());
        if std::env::var_os("V").is_some() {
            for l in &listings {
                println!("{} {:?}", l.candidate, l.support);
            }
        }
    }
}

#[test]
#[ignore]
fn explore_notes() {
    let Some(planner) = planner() else { return };
    for dir in ["fwd", "bwd_data", "bwd_filter"] {
        for ty in [
            "",
            "type=fp16",
            "type=fp16 compute=fp16",
            "type=bf16",
            "type=fp64",
            "type=fp16,fp16,fp32",
            "type=bf16,bf16,fp32",
            "type=fp32 beta=1",
            "type=fp16 alpha=0.5",
        ] {
            let mut seen: std::collections::BTreeMap<(i64, String), Vec<String>> =
                Default::default();
            for shape in [
                "n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1",
                "n=2 c=32 k=32 in=14x14 ker=5x5 pad=2x2",
                "n=2 c=32 k=32 in=14x14 ker=1x1",
                "n=3 c=7 k=5 in=13x11 ker=3x2 pad=1x0+1",
                "n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1 stride=2x2",
                "n=2 c=32 k=32 in=14x14 ker=3x3 pad=2x2 dil=2x2",
                "n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1 g=4",
                "n=2 c=32 k=32 in=14x14 ker=3x3 pad=1x1 g=32",
                "n=2 c=32 k=32 in=8x8x8 ker=3x1x1 pad=1x0x0",
                "n=2 c=32 k=32 in=8x8x8 ker=3x3x3 pad=1x1x1",
                "n=2 c=32 k=32 in=33 ker=3",
                "n=2 c=1 k=1 in=14x14 ker=3x3",
                "n=2 c=64 k=64 in=64x64 ker=7x7 pad=3x3",
            ] {
                for layout in ["", "layout=nhwc"] {
                    let line = format!("{dir} {shape} {ty} {layout}");
                    match planner.prepare(&line.parse().unwrap()) {
                        Ok(mut p) => {
                            let r = p.engines().count();
                            let c = p.count();
                            let l = planner.survey(
                                &mut p,
                                KnobBudget::Default,
                                0,
                                &mut Coverage::default(),
                            );
                            let off = l
                                .iter()
                                .filter(|l| matches!(l.support, Support::Offered { .. }))
                                .count();
                            println!("{line}: {r} engines of {c}, offered {off}");
                            for e in p.engines() {
                                seen.entry((e.index, e.notes().join("+")))
                                    .or_default()
                                    .push(
                                        e.knobs
                                            .iter()
                                            .map(|k| {
                                                format!(
                                                    "{}:{}..{}/{}",
                                                    names::knob(k.kind as i32),
                                                    k.minimum,
                                                    k.maximum,
                                                    k.stride
                                                )
                                            })
                                            .collect::<Vec<_>>()
                                            .join(" "),
                                    );
                            }
                        }
                        Err(f) => println!("{line}: {f}"),
                    }
                }
            }
            for ((e, n), v) in seen {
                println!("   {dir} {ty} | {e}: {n} x{} {}", v.len(), v[0]);
            }
        }
    }
}
