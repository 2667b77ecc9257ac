//! `environment.json`: what a run was made on and with.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::backend::Combination;
use crate::record;
use crate::report::tally::Tally;

/// Everything needed to say where the numbers of a folder come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// [`record::SCHEMA`].
    pub schema: u32,
    /// GPU, driver, cuDNN, CUDA and convfuzz.
    pub combination: Combination,
    /// Operating system and processor architecture.
    pub system: String,
    /// Seed of the campaign.
    pub seed: u64,
    /// The command line.
    pub command: Vec<String>,
    /// Every option, defaults filled in.
    pub options: serde_json::Value,
    /// When the run started, UTC.
    pub started: Timestamp,
    /// When it ended; absent while it runs, and after it was killed.
    pub finished: Option<Timestamp>,
    /// How it ended; absent while it runs, and after it was killed.
    pub ending: Option<Ending>,
    /// Trials by verdict; absent while it runs, and after it was killed.
    pub tally: Option<Tally>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It did all it was asked for.
    Completed,
    /// The user stopped it.
    Interrupted,
    /// An error stopped it.
    Error,
}

/// Operating system, kernel release and processor architecture.
pub fn system() -> String {
    let uname = rustix::system::uname();
    let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    format!(
        "{} {} {}",
        word(uname.sysname()),
        word(uname.release()),
        word(uname.machine())
    )
}

impl Environment {
    /// The environment of a run that starts now.
    pub fn starting(combination: Combination, seed: u64, options: serde_json::Value) -> Self {
        Environment {
            schema: record::SCHEMA,
            combination,
            system: system(),
            seed,
            command: command_line(),
            options,
            started: Timestamp::now(),
            finished: None,
            ending: None,
            tally: None,
        }
    }
}

/// The arguments, without the place the program lies in.
fn command_line() -> Vec<String> {
    let arguments = std::env::args_os().skip(1);
    std::iter::once("convfuzz".to_owned())
        .chain(arguments.map(|a| a.to_string_lossy().into_owned()))
        .collect()
}
