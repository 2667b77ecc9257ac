//! A worker process as its campaign sees it.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::memory;
use super::protocol::{Reply, Request, receive, send};
use crate::backend::Combination;
use crate::error::{Error, Result};

/// Lines of a worker's stdout and stderr that are kept as evidence, of each.
const LAST_LINES: usize = 5;

/// Longest time for a worker to open its backend.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// How often a worker's memory is looked at.
const MEMORY_INTERVAL: Duration = Duration::from_millis(50);

/// The exit code of a bug of convfuzz, as of [`Error::exit_code`].
const BUG: i32 = 70;

/// This program, though its file be replaced or removed while it runs.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// SIGKILL: what the system sends when memory runs out.
const KILL: i32 = 9;

/// A running worker. What is said goes over a socket of its own: whatever a
/// library prints is evidence, and no part of the protocol.
pub struct Worker {
    child: Child,
    socket: UnixStream,
    replies: Receiver<Reply>,
    stdout: Tail,
    stderr: Tail,
    /// Most memory it may hold, bytes.
    memory: u64,
    looked: Instant,
    /// What its backend runs on.
    pub combination: Combination,
    /// Memory that is free on the GPU, bytes; `None` without one.
    pub device_memory: Option<u64>,
}

/// How a worker is started.
pub struct Start<'a> {
    /// The convfuzz it runs.
    pub program: &'a Path,
    /// The first request.
    pub setup: &'a Request,
    /// More environment variables.
    pub variables: &'a [(&'a str, PathBuf)],
    /// Most memory it may hold, bytes.
    pub memory: u64,
}

/// How waiting for a reply ended.
pub enum Heard {
    /// A reply.
    Reply(Reply),
    /// The worker died; how, in words.
    Died(String),
    /// It said nothing for too long, and was killed.
    Silent,
    /// It took more memory than it may, and was killed; how much, in words.
    Full(String),
}

impl Worker {
    /// Starts `program worker` and waits until its backend is open.
    pub fn start(start: &Start<'_>) -> Result<Self> {
        let mut worker = Self::spawn(start)
            .map_err(|e| Error::environment("cannot start a worker process").with_source(e))?;
        worker.ask(start.setup);
        match worker.hear(START_TIMEOUT) {
            Heard::Reply(Reply::Ready {
                combination,
                device_memory,
            }) => {
                (worker.combination, worker.device_memory) = (combination, device_memory);
            }
            Heard::Reply(Reply::Failed { code, message }) => return Err(failure(code, message)),
            Heard::Reply(_) => return Err(Error::internal("a worker spoke out of turn")),
            Heard::Died(how) | Heard::Full(how) => {
                return Err(Error::environment(format!(
                    "a worker did not get as far as opening its backend: {how}"
                )));
            }
            Heard::Silent => {
                return Err(Error::environment(
                    "a worker did not open its backend in two minutes",
                ));
            }
        }
        Ok(worker)
    }

    fn spawn(start: &Start<'_>) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut child = Command::new(start.program)
            .arg0("convfuzz")
            .arg("worker")
            .envs(start.variables.iter().map(|(name, value)| (name, value)))
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the campaign, which then ends its workers.
            .process_group(0)
            .spawn()?;
        Ok(Worker {
            stdout: Tail::of(child.stdout.take()),
            stderr: Tail::of(child.stderr.take()),
            replies: read_replies(ours.try_clone()?),
            child,
            socket: ours,
            memory: start.memory,
            looked: Instant::now(),
            combination: Combination::default(),
            device_memory: None,
        })
    }

    /// Sends a request. A worker that is gone is noticed when it is heard.
    pub fn ask(&mut self, request: &Request) {
        let _ = send(&mut self.socket, request);
    }

    /// Waits for the next reply.
    pub fn hear(&mut self, timeout: Duration) -> Heard {
        let end = Instant::now() + timeout;
        loop {
            if let Some(how) = self.over_its_memory() {
                let _ = self.kill();
                return Heard::Full(how);
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.replies.recv_timeout(left.min(MEMORY_INTERVAL)) {
                Ok(reply) => return Heard::Reply(reply),
                Err(RecvTimeoutError::Disconnected) => return self.ended(),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    let _ = self.kill();
                    return Heard::Silent;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// How much memory it holds, in words, if that is too much; looks now and then.
    fn over_its_memory(&mut self) -> Option<String> {
        if self.looked.elapsed() < MEMORY_INTERVAL {
            return None;
        }
        self.looked = Instant::now();
        let held = memory::held_by(self.child.id())?;
        (held > self.memory).then(|| {
            format!(
                "its worker held {} of memory and may have {} (--worker-memory); killed",
                memory::words(held),
                memory::words(self.memory)
            )
        })
    }

    fn kill(&mut self) -> io::Result<ExitStatus> {
        let _ = self.child.kill();
        self.child.wait()
    }

    /// What the end of its replies means. A worker that ends with the code for
    /// a bug of convfuzz says nothing about the candidate it was running.
    fn ended(&mut self) -> Heard {
        // Its socket is closed: it is ending, or must.
        let status = self.wait_or_kill();
        let how = match &status {
            Ok(status) => status_words(*status),
            Err(e) => format!("its end is unknown ({e})"),
        };
        let how = self.with_last_words(how);
        match status.ok().and_then(|s| s.code()) {
            Some(BUG) => Heard::Reply(Reply::Failed {
                code: BUG as u8,
                message: format!("a worker {how}"),
            }),
            _ => Heard::Died(how),
        }
    }

    /// A process closes its files a moment before it has ended: its own end
    /// says more than ours.
    fn wait_or_kill(&mut self) -> io::Result<ExitStatus> {
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kill()
    }

    /// `how`, with the last it said on stdout and stderr.
    fn with_last_words(&mut self, mut how: String) -> String {
        for (name, tail) in [("stdout", &mut self.stdout), ("stderr", &mut self.stderr)] {
            let lines = tail.lines();
            if !lines.is_empty() {
                how = format!("{how}; {name}: {}", lines.join(" | "));
            }
        }
        how
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Closing the socket ends an idle worker; a busy one is killed.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let _ = self.kill();
    }
}

/// The error that a worker ended with, as this process's own.
pub fn failure(code: u8, message: String) -> Error {
    match code {
        2 => Error::usage(message),
        3 => Error::environment(message),
        _ => Error::internal(message),
    }
}

fn status_words(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(KILL), _) => {
            "killed by signal 9 (SIGKILL), as the system does when memory runs out".to_owned()
        }
        (Some(signal), _) => format!("killed by signal {signal}{}", signal_name(signal)),
        (None, Some(code)) => format!("exited with code {code}"),
        (None, None) => "ended for an unknown reason".to_owned(),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

fn read_replies(socket: UnixStream) -> Receiver<Reply> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(socket);
        while let Ok(Some(reply)) = receive(&mut from) {
            if sender.send(reply).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The last lines of a stream, which is read to its end as it comes.
struct Tail {
    lines: Arc<Mutex<VecDeque<String>>>,
    /// Disconnected once all is read.
    open: Receiver<()>,
}

impl Tail {
    fn of(stream: Option<impl Read + Send + 'static>) -> Self {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, open) = channel();
        if let Some(stream) = stream {
            let kept = Arc::clone(&lines);
            std::thread::spawn(move || {
                keep_last(stream, &kept);
                drop(sender);
            });
        }
        Tail { lines, open }
    }

    /// The last lines of a process that has ended. A child that it left behind
    /// may hold the stream open: it is not waited for long.
    fn lines(&self) -> Vec<String> {
        let _ = self.open.recv_timeout(Duration::from_secs(1));
        let lines = self.lines.lock();
        lines.map_or_else(|_| Vec::new(), |lines| lines.iter().cloned().collect())
    }
}

fn keep_last(stream: impl Read, kept: &Mutex<VecDeque<String>>) {
    let mut lines = BufReader::new(stream).split(b'\n');
    while let Some(Ok(line)) = lines.next() {
        if let Ok(mut kept) = kept.lock() {
            kept.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
            if kept.len() > LAST_LINES {
                kept.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::open::BackendSpec;
    use std::os::unix::fs::PermissionsExt;

    /// A worker that gets ready and then does what the shell commands say. Its
    /// channel is its stdin.
    fn worker_of(commands: &str) -> Worker {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("worker");
        let ready = serde_json::to_string(&Reply::Ready {
            combination: Combination::default(),
            device_memory: None,
        })
        .unwrap();
        let script = format!("#!/bin/sh\nread setup\necho '{ready}' >&0\n{commands}\n");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let setup = Request::Setup {
            backend: BackendSpec::default(),
            repeats: 0,
            outputs: 1,
        };
        let start = Start {
            program: &program,
            setup: &setup,
            variables: &[],
            memory: u64::MAX,
        };
        Worker::start(&start).unwrap()
    }

    fn heard_of(commands: &str) -> Heard {
        worker_of(commands).hear(Duration::from_secs(60))
    }

    #[test]
    fn hear_end_by_a_bug_of_convfuzz_is_no_crash_of_a_candidate() {
        match heard_of("echo boom >&2; exit 70") {
            Heard::Reply(Reply::Failed { code, .. }) => {
                assert_eq!(failure(code, String::new()).exit_code(), 70);
            }
            _ => panic!("a bug must end the run"),
        }
        match heard_of("echo boom >&2; exit 7") {
            Heard::Died(how) => assert_eq!(how, "exited with code 7; stderr: boom"),
            _ => panic!("any other code is the candidate's doing"),
        }
    }

    #[test]
    fn hear_prints_of_a_library_are_evidence_and_no_reply() {
        let done = serde_json::to_string(&Reply::Done).unwrap();
        let mut worker = worker_of(&format!(
            "echo '{{\"done\"'; printf 'not a line'; echo '{done}' >&0; kill -SEGV $$"
        ));
        let heard = worker.hear(Duration::from_secs(60));
        assert!(matches!(heard, Heard::Reply(Reply::Done)));
        match worker.hear(Duration::from_secs(60)) {
            Heard::Died(how) => assert_eq!(
                how,
                "killed by signal 11 (SIGSEGV); stdout: {\"done\" | not a line"
            ),
            _ => panic!("it is dead"),
        }
    }

    #[test]
    fn hear_worker_that_takes_too_much_memory_is_killed() {
        let mut worker = worker_of("sleep 60");
        // A shell holds more than a page.
        worker.memory = 4096;
        match worker.hear(Duration::from_secs(60)) {
            Heard::Full(how) => assert!(how.contains("--worker-memory"), "{how}"),
            _ => panic!("nothing was said of memory"),
        }
        let end = Instant::now() + Duration::from_secs(30);
        match worker_of("sleep 60").hear(Duration::from_millis(200)) {
            Heard::Silent => assert!(Instant::now() < end),
            _ => panic!("it slept"),
        }
    }
}
