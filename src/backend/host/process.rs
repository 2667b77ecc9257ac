//! Faults that take the process along, for the workers' tests.

use std::time::Duration;

/// Ends the process in the middle of a trial.
pub fn exit() {
    std::process::exit(7);
}

/// Ends it by SIGABRT.
pub fn abort() {
    std::process::abort();
}

/// Ends it by SIGSEGV: by a signal to itself, since safe Rust has no wild
/// pointers.
pub fn segfault() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::SEGV);
    hang();
}

/// Never ends.
pub fn hang() {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Takes memory until refused, or 64 GiB of address space are taken; then ends
/// the process as an allocation failure does.
pub fn allocate() {
    let mut taken: Vec<Vec<u8>> = Vec::new();
    for _ in 0..64 {
        let mut block = Vec::new();
        if block.try_reserve_exact(1 << 30).is_err() {
            break;
        }
        taken.push(block);
    }
    std::process::abort();
}
