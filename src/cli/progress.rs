//! The progress bar of a run.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::terminal::Terminal;
use crate::report::summary::Summary;
use crate::report::table::short;

/// How often a run without a bar says how far it is.
const NOTE_INTERVAL: Duration = Duration::from_secs(60);

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// So many cases.
    Cases(u64),
    /// So much time.
    Time(Duration),
}

/// Shows how far a run is: a bar on a terminal, else a line now and then.
pub struct Progress {
    bar: ProgressBar,
    budget: Budget,
    started: Instant,
    noted: Instant,
    terminal: Terminal,
}

impl Progress {
    /// Starts to show.
    pub fn start(budget: Budget, terminal: Terminal) -> Self {
        let (length, unit) = match budget {
            Budget::Cases(cases) => (cases, "{pos}/{len} cases"),
            Budget::Time(time) => (time.as_secs(), "{elapsed}/{len}s"),
        };
        let target = match terminal.progress {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        bar.set_style(style(unit));
        Progress {
            bar,
            budget,
            started: Instant::now(),
            noted: Instant::now(),
            terminal,
        }
    }

    /// Shows the state after `cases` cases.
    pub fn update(&mut self, cases: u64, summary: &Summary) {
        let elapsed = self.started.elapsed();
        self.bar.set_position(match self.budget {
            Budget::Cases(_) => cases,
            Budget::Time(_) => elapsed.as_secs(),
        });
        if !self.terminal.progress && self.noted.elapsed() >= NOTE_INTERVAL {
            self.noted = Instant::now();
            self.terminal
                .note(&format!("{cases} cases, {}", message(summary, elapsed)));
        } else if self.terminal.progress {
            self.bar.set_message(message(summary, elapsed));
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn style(unit: &str) -> ProgressStyle {
    ProgressStyle::with_template(&format!("{{bar:24}} {unit}, {{wide_msg}}"))
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Rate, counts by verdict and the worst ratio, on one line.
fn message(summary: &Summary, elapsed: Duration) -> String {
    let tally = &summary.tally;
    let rate = tally.trials as f64 / elapsed.as_secs_f64().max(0.1);
    let mut parts = vec![format!("{} trials ({rate:.0}/s)", tally.trials)];
    let counts = [
        (tally.failed, "FAILED"),
        (tally.crashed, "CRASHED"),
        (tally.timed_out, "TIMED OUT"),
        (tally.passed, "passed"),
        (tally.untrusted, "untrusted"),
        (tally.skipped, "skipped"),
    ];
    let present = counts.iter().filter(|(count, _)| *count > 0);
    parts.extend(present.map(|(count, name)| format!("{count} {name}")));
    if let Some(ratio) = summary.max_ratio() {
        parts.push(format!("worst {} of bound", short(ratio)));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{FailureKind, Verdict};
    use crate::record::TrialRecord;

    #[test]
    fn message_shows_what_there_is() {
        let mut summary = Summary::default();
        for verdict in [Verdict::Passed, Verdict::Failed(FailureKind::Mismatch)] {
            let mut record = TrialRecord {
                max_ratio: Some(0.25),
                ..TrialRecord::default()
            };
            record.set_verdict(verdict);
            summary.add(&record).unwrap();
        }
        let text = message(&summary, Duration::from_secs(2));
        let expected = "2 trials (1/s), 1 FAILED, 1 passed, worst 0.2500 of bound";
        assert_eq!(text, expected);
    }

    #[test]
    fn style_templates_parse() {
        for unit in ["{pos}/{len} cases", "{elapsed}/{len}s"] {
            assert!(ProgressStyle::with_template(unit).is_ok());
        }
    }
}
