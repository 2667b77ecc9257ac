//! Faults that take the process along, for the workers' tests.

use std::time::Duration;

/// Ends the process in the middle of a trial.
pub fn exit() -> ! {
    std::process::exit(7);
}

/// Ends it by SIGABRT, with words on both streams as libraries have them. Those on
/// stdout look like what a worker says to its campaign.
pub fn abort() -> ! {
    println!("{{\"done\":null}}\nplanted fault: abort");
    eprintln!("planted fault: abort");
    std::process::abort();
}

/// Ends it by SIGSEGV: by a signal to itself, since safe Rust has no wild
/// pointers. Rust's own handler gives way at the first and expects the fault to
/// come again.
pub fn segfault() -> ! {
    loop {
        let signal = rustix::process::Signal::SEGV;
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Never ends.
pub fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Takes memory, and uses it, until it is stopped.
pub fn allocate() -> ! {
    let mut taken: Vec<Vec<u8>> = Vec::new();
    loop {
        taken.push(vec![1; 16 << 20]);
        std::hint::black_box(&taken);
    }
}

/// Ends the process in one way or another.
pub fn die(way: u64) -> ! {
    match way % 3 {
        0 => exit(),
        1 => abort(),
        _ => segfault(),
    }
}
