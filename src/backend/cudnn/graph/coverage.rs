//! Which knob values of which engines were tried, and what the library said.

use std::collections::BTreeMap;

use serde::Serialize;

use super::names;

/// What became of one value of one knob of one engine; also of an engine with
/// its own knobs (`knob` empty).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Direction, since engines are numbered anew for each.
    pub direction: String,
    /// Engine.
    pub engine: i64,
    /// Name of the knob.
    pub knob: Option<String>,
    /// Its value.
    pub value: Option<i64>,
    /// Choices with it that the library accepted.
    pub accepted: u64,
    /// Choices with it that the library refused.
    pub refused: u64,
    /// Plans with it that were executed.
    pub executed: u64,
    /// Executions that failed.
    pub failed: u64,
}

/// What happened to a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The library accepted it.
    Accepted,
    /// The library refused it.
    Refused,
    /// Its plan was executed.
    Executed,
    /// Its plan was built but failed to execute.
    Failed,
}

/// Counts by direction, engine, knob and value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<Key, [u64; 4]>,
}

type Key = (&'static str, i64, Option<(u32, i64)>);

impl Coverage {
    /// Counts what happened to a choice of an engine.
    pub fn note(
        &mut self,
        direction: &'static str,
        engine: i64,
        choice: &[(u32, i64)],
        event: Event,
    ) {
        let values = choice.iter().map(|&value| Some(value));
        let own = choice.is_empty().then_some(None);
        for value in values.chain(own) {
            self.counts.entry((direction, engine, value)).or_default()[event as usize] += 1;
        }
    }

    /// All counts, in order.
    pub fn rows(&self) -> Vec<Row> {
        self.counts
            .iter()
            .map(|(&(direction, engine, value), counts)| Row {
                direction: direction.to_owned(),
                engine,
                knob: value.map(|(knob, _)| names::knob(knob as i32).into_owned()),
                value: value.map(|(_, value)| value),
                accepted: counts[0],
                refused: counts[1],
                executed: counts[2],
                failed: counts[3],
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_counts_every_value_of_a_choice() {
        let mut coverage = Coverage::default();
        coverage.note("fwd", 3, &[], Event::Accepted);
        coverage.note("fwd", 3, &[(2, 7), (17, 1)], Event::Refused);
        coverage.note("fwd", 3, &[(2, 7)], Event::Executed);
        let rows = coverage.rows();
        assert_eq!(rows.len(), 3);
        assert_eq!((rows[0].knob.clone(), rows[0].accepted), (None, 1));
        assert_eq!(rows[1].knob.as_deref(), Some("TILE_SIZE"));
        assert_eq!((rows[1].refused, rows[1].executed), (1, 1));
        assert_eq!((rows[2].value, rows[2].refused), (Some(1), 1));
    }
}
