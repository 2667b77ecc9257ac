//! A panic is a bug of convfuzz: say so in one line, and end with its own code.

use std::panic::{self, AssertUnwindSafe, PanicHookInfo};

use crate::cli::exit::Exit;

/// Where bugs are reported.
const REPORT_AT: &str = "report it with the command line and this message";

/// Runs `work`; a panic in it becomes one line on stderr and [`Exit::Bug`].
pub fn guard(work: impl FnOnce() -> Exit) -> Exit {
    panic::set_hook(Box::new(|info| eprintln!("{}", message(info))));
    // Nothing of `work` is used after a panic, so nothing torn can be seen.
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or(Exit::Bug)
}

fn message(info: &PanicHookInfo<'_>) -> String {
    let what = info.payload_as_str().unwrap_or("panic");
    let place = info.location().map(|l| format!(" at {l}"));
    format!(
        "bug in convfuzz {}: {}{}; {REPORT_AT}",
        env!("CARGO_PKG_VERSION"),
        what.replace('\n', " "),
        place.unwrap_or_default()
    )
}
