//! How much memory a worker may have, and how much it has.

use std::fs;

/// Share of the machine's memory that all workers together may have: three
/// quarters. The rest is for the campaign and the system.
const SHARE: (u64, u64) = (3, 4);

/// The least a worker is given: less does not hold a library such as cuDNN.
const LEAST: u64 = 1 << 30;

/// Most workers by default.
const MOST_JOBS: usize = 16;

/// Memory of the GPU that a worker is expected to take: its context, the kernels
/// of the library that were loaded, a workspace that is kept, and operands.
const DEVICE_SHARE: u64 = 2 << 30;

/// Workers by default: one per processor core, at most 16, and no more than the
/// free memory of the GPU, bytes, is enough for.
pub fn jobs(device: Option<u64>) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    jobs_on(cores, device)
}

fn jobs_on(cores: usize, device: Option<u64>) -> usize {
    let fit = device.map_or(usize::MAX, |free| {
        usize::try_from(free / DEVICE_SHARE).unwrap_or(usize::MAX)
    });
    cores.min(MOST_JOBS).min(fit).max(1)
}

/// Bytes for each of `jobs` workers: an even part of what this machine, or the
/// control group this process is in, allows.
pub fn share(jobs: usize) -> u64 {
    let total = allowed(
        fs::read_to_string("/proc/meminfo").ok().as_deref(),
        fs::read_to_string("/sys/fs/cgroup/memory.max")
            .ok()
            .as_deref(),
    );
    (total / SHARE.1 * SHARE.0 / jobs.max(1) as u64).max(LEAST)
}

/// The smaller of the machine's memory and the group's limit, bytes; without
/// either, no limit.
fn allowed(machine: Option<&str>, group: Option<&str>) -> u64 {
    let kibibytes = |text: &str| -> Option<u64> {
        let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let machine = machine.and_then(kibibytes).map(|k| k << 10);
    // "max" where there is no limit.
    let group = group.and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(group).min().unwrap_or(u64::MAX)
}

/// Bytes of memory that process `id` holds; `None` when it is gone.
pub fn held_by(id: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{id}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Bytes in words, such as `1.5 GiB`.
pub fn words(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_is_the_smaller_of_machine_and_group() {
        let machine = Some("MemTotal:       2048 kB\nMemFree:  1 kB\n");
        assert_eq!(allowed(machine, Some("max\n")), 2 << 20);
        assert_eq!(allowed(machine, Some("1048576\n")), 1 << 20);
        assert_eq!(allowed(machine, Some("4194304\n")), 2 << 20);
        assert_eq!(allowed(None, None), u64::MAX);
    }

    #[test]
    fn jobs_are_those_that_cores_and_the_gpu_have_room_for() {
        assert_eq!(jobs_on(4, None), 4);
        assert_eq!(jobs_on(64, Some(139 << 30)), MOST_JOBS);
        assert_eq!(jobs_on(64, Some(7 << 30)), 3);
        assert_eq!(jobs_on(64, Some(1 << 20)), 1);
    }

    #[test]
    fn share_halves_for_two_but_is_never_too_small() {
        assert_eq!(share(usize::MAX), LEAST);
        assert!(share(1) >= share(2));
    }

    #[test]
    fn held_by_this_process_is_more_than_nothing() {
        let held = held_by(std::process::id()).unwrap();
        assert!(held > 1 << 20, "{held}");
        assert_eq!(held_by(u32::MAX), None);
    }
}
