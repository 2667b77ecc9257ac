//! Where cases come from: seeds of earlier failures first, then case after case
//! from generators of their own, so that the sequence depends on the run's seed
//! alone.

use std::path::{Path, PathBuf};

use proptest::prelude::Strategy;
use proptest::strategy::ValueTree;
use proptest::test_runner::{
    Config, FailurePersistence, FileFailurePersistence, PersistedSeed, RngAlgorithm, TestRng,
    TestRunner,
};

use crate::error::{Error, Result};
use crate::strategy::{Draw, Limits, draw};

/// 256 bits that a generator is made from.
type Seed = [u8; 32];

/// Draws the cases of a run.
pub struct Draws {
    limits: Limits,
    seed: u64,
    replayed: Vec<Seed>,
    file: Option<PathBuf>,
}

impl Draws {
    /// Cases within `limits`, after those of the seeds `replayed`, which are in
    /// hex; failing ones go to `file`, in proptest's format.
    pub fn new(limits: &Limits, seed: u64, replayed: &[String], file: Option<PathBuf>) -> Self {
        Draws {
            limits: limits.clone(),
            seed,
            replayed: replayed.iter().filter_map(|text| bytes(text)).collect(),
            file,
        }
    }

    /// Number of replayed cases; they have numbers −1, −2, ….
    pub fn replayed(&self) -> usize {
        self.replayed.len()
    }

    /// The case of that number.
    pub fn case(&self, number: i64) -> Result<Draw> {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &self.case_seed(number));
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        // Strategies cannot be shared between threads; making one is cheap.
        let tree = draw(&self.limits).new_tree(&mut runner);
        tree.map(|tree| tree.current()).map_err(|reason| {
            Error::internal(format!("a strategy rejected its own draw: {reason}"))
        })
    }

    /// Adds the seed of a failing case to the file, unless it came from there.
    pub fn persist(&self, number: i64, draw: &Draw) {
        let Some(file) = &self.file else { return };
        if number < 0 {
            return;
        }
        let words: Vec<String> = self
            .case_seed(number)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let Ok(seed) = format!("{CHACHA} {}", words.concat()).parse::<PersistedSeed>() else {
            return;
        };
        persistence(file).save_persisted_failure2(None, seed, &format_args!("{}", draw.problem));
    }

    fn case_seed(&self, number: i64) -> Seed {
        match usize::try_from(-1 - number) {
            Ok(replayed) => self.replayed[replayed],
            Err(_) => spread(self.seed, number as u64),
        }
    }
}

/// 256 bits from a run's seed and a case's number: four outputs of SplitMix64
/// (Steele, Lea, Flood, OOPSLA 2014) from each, mixed.
fn spread(seed: u64, number: u64) -> Seed {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.rotate_left(32) ^ number;
    let mut bytes = [0; 32];
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes
}

/// proptest's own reader and writer; it wants a path that lives for ever.
fn persistence(file: &Path) -> FileFailurePersistence {
    let path = file.to_string_lossy().into_owned();
    FileFailurePersistence::Direct(Box::leak(path.into_boxed_str()))
}

/// The seeds that a file in proptest's format holds, in hex; none where it does
/// not exist.
pub fn load(file: &Path) -> Vec<String> {
    persistence(file)
        .load_persisted_failures2(None)
        .iter()
        .filter_map(|seed| Some(seed.to_string().strip_prefix(CHACHA)?.trim().to_owned()))
        .filter(|text| bytes(text).is_some())
        .collect()
}

/// The word before a ChaCha seed in proptest's files.
const CHACHA: &str = "cc";

/// The bytes of a seed in hex.
fn bytes(digits: &str) -> Option<Seed> {
    let mut seed = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (i, byte) in seed.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(seed: u64, file: Option<PathBuf>) -> Draws {
        let replayed = file.as_deref().map(load).unwrap_or_default();
        Draws::new(&Limits::default(), seed, &replayed, file)
    }

    #[test]
    fn case_depends_on_seed_and_number_alone() {
        let (a, b) = (draws(7, None), draws(7, None));
        assert_eq!(a.case(5).unwrap(), b.case(5).unwrap());
        assert_ne!(a.case(5).unwrap(), a.case(6).unwrap());
        assert_ne!(a.case(5).unwrap(), draws(8, None).case(5).unwrap());
    }

    #[test]
    fn persist_failures_are_replayed_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("fuzz.txt");
        let first = draws(3, Some(file.clone()));
        let failing = first.case(11).unwrap();
        first.persist(11, &failing);
        first.persist(12, &first.case(12).unwrap());
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(
            text.lines().filter(|l| l.starts_with("cc ")).count(),
            2,
            "{text}"
        );
        let second = draws(99, Some(file));
        assert_eq!(second.replayed(), 2);
        let replayed = [second.case(-1).unwrap(), second.case(-2).unwrap()];
        assert!(replayed.contains(&failing));
    }
}
