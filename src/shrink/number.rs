//! The least number that keeps a failure.

use super::Shrinker;
use crate::candidate::Repro;
use crate::error::Result;

/// Below this, every smaller value is tried.
const EXHAUSTIVE: usize = 12;

impl<C: PartialEq> Shrinker<'_, '_, C> {
    /// Lowers the number that `get` reads and `set` writes, not below `least`.
    ///
    /// First the least, powers of two and divisors in ascending order (which
    /// finds a condition such as "a multiple of 8" at once), then steps of
    /// falling powers of two (which find thresholds), at last, when the number
    /// is small, every value below it.
    pub(super) fn minimise(
        &mut self,
        get: impl Fn(&Repro) -> usize,
        set: impl Fn(&mut Repro, usize),
        least: usize,
    ) -> Result<()> {
        for value in landmarks(get(&self.best), least) {
            if self.edit(|r| set(r, value))? {
                break;
            }
        }
        self.step_down(&get, &set, least)?;
        let end = get(&self.best).min(EXHAUSTIVE + 1);
        for value in least..end {
            if self.edit(|r| set(r, value))? {
                break;
            }
        }
        Ok(())
    }

    fn step_down(
        &mut self,
        get: impl Fn(&Repro) -> usize,
        set: impl Fn(&mut Repro, usize),
        least: usize,
    ) -> Result<()> {
        let room = get(&self.best).saturating_sub(least);
        let mut step = (room / 2 + 1).next_power_of_two();
        while step > 0 {
            let current = get(&self.best);
            let lower = current.checked_sub(step).filter(|v| *v >= least);
            let taken = match lower {
                Some(value) => self.edit(|r| set(r, value))?,
                None => false,
            };
            if !taken {
                step /= 2;
            }
        }
        Ok(())
    }
}

/// Powers of two and divisors of `value` from `least` on, ascending.
fn landmarks(value: usize, least: usize) -> Vec<usize> {
    /// Divisors above this are left to the steps.
    const MOST: usize = 128;
    let special = |v: &usize| v.is_power_of_two() || value.is_multiple_of(*v);
    let mut list = vec![least];
    list.extend((least + 1..value.min(MOST)).filter(special));
    list.retain(|v| *v < value);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn landmarks_are_ascending_powers_and_divisors() {
        assert_eq!(landmarks(24, 1), [1, 2, 3, 4, 6, 8, 12, 16]);
        assert_eq!(landmarks(35, 3), [3, 4, 5, 7, 8, 16, 32]);
        assert!(landmarks(1, 1).is_empty() && landmarks(0, 0).is_empty());
        assert_eq!(landmarks(3, 0), [0, 1, 2]);
    }
}
