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
    let budget: KnobBudget = std::env::var("B").unwrap_or("default".into()).parse().unwrap();
    for text in text.split(';') {
        let start = Instant::now();
        let listings = list_offline(&planner, &text.parse().unwrap(), budget, 0);
        println!("{text}: {:?}", start.elapsed());
        let offered = listings.iter().filter(|l| matches!(l.support, Support::Offered{..})).count();
        println!("offered {offered} of {}", listings.len());
        if std::env::var_os("V").is_some() {
            for l in &listings { println!("{} {:?}", l.candidate, l.support); }
        }
    }
}
