//! A worker process as its campaign sees it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::protocol::{Reply, Request, receive, send};
use crate::backend::Combination;
use crate::error::{Error, Result};

/// Lines of a worker's stderr that are kept as evidence.
const STDERR_LINES: usize = 5;

/// Longest time for a worker to open its backend.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// The exit code of a bug of convfuzz, as of [`Error::exit_code`].
const BUG: i32 = 70;

/// A running worker.
pub struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    replies: Receiver<Reply>,
    stderr: Arc<Mutex<VecDeque<String>>>,
    /// What its backend runs on.
    pub combination: Combination,
}

/// How waiting for a reply ended.
pub enum Heard {
    /// A reply.
    Reply(Reply),
    /// The worker died; how, in words.
    Died(String),
    /// It said nothing for too long, and was killed.
    Silent,
}

impl Worker {
    /// Starts `program worker` and waits until its backend is open.
    pub fn start(program: &Path, setup: &Request) -> Result<Self> {
        Self::start_with(program, setup, &[])
    }

    /// The same with more environment variables.
    pub fn start_with(
        program: &Path,
        setup: &Request,
        variables: &[(&str, PathBuf)],
    ) -> Result<Self> {
        let mut child = Command::new(program)
            .arg("worker")
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the campaign, which then ends its workers.
            .process_group(0)
            .spawn()
            .map_err(|e| Error::environment("cannot start a worker process").with_source(e))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stderr = keep_tail(child.stderr.take());
        let mut worker = Worker {
            child,
            stdin,
            replies: read_replies(stdout),
            stderr,
            combination: Combination::default(),
        };
        worker.ask(setup);
        match worker.hear(START_TIMEOUT) {
            Heard::Reply(Reply::Ready(combination)) => worker.combination = combination,
            Heard::Reply(Reply::Failed { code, message }) => return Err(failure(code, message)),
            Heard::Reply(_) => return Err(Error::internal("a worker spoke out of turn")),
            Heard::Died(how) => {
                return Err(Error::environment(format!("a worker did not start: {how}")));
            }
            Heard::Silent => {
                return Err(Error::environment(
                    "a worker did not open its backend in two minutes",
                ));
            }
        }
        Ok(worker)
    }

    /// Sends a request. A worker that is gone is noticed when it is heard.
    pub fn ask(&mut self, request: &Request) {
        if let Some(stdin) = &mut self.stdin {
            let _ = send(stdin, request);
        }
    }

    /// Waits for the next reply.
    pub fn hear(&mut self, timeout: Duration) -> Heard {
        match self.replies.recv_timeout(timeout) {
            Ok(reply) => Heard::Reply(reply),
            Err(RecvTimeoutError::Timeout) => {
                let _ = self.child.kill();
                let _ = self.child.wait();
                Heard::Silent
            }
            Err(RecvTimeoutError::Disconnected) => self.ended(),
        }
    }

    /// What the end of its output means. A worker that ends with the code for
    /// a bug of convfuzz says nothing about the candidate it was running.
    fn ended(&mut self) -> Heard {
        // Its stdout is closed: it is ending, or must.
        let _ = self.child.kill();
        let status = self.child.wait();
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

    /// `how`, with the last it said on stderr.
    fn with_last_words(&self, how: String) -> String {
        let tail = self
            .stderr
            .lock()
            .map(|lines| lines.iter().cloned().collect::<Vec<_>>());
        match tail {
            Ok(lines) if !lines.is_empty() => format!("{how}; stderr: {}", lines.join(" | ")),
            _ => how,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Closing its input ends an idle worker; a busy one is killed.
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
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
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

fn read_replies(stdout: Option<impl Read + Send + 'static>) -> Receiver<Reply> {
    let (sender, receiver) = channel();
    if let Some(stdout) = stdout {
        std::thread::spawn(move || {
            let mut from = BufReader::new(stdout);
            while let Ok(Some(reply)) = receive(&mut from) {
                if sender.send(reply).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}

fn keep_tail(stderr: Option<impl Read + Send + 'static>) -> Arc<Mutex<VecDeque<String>>> {
    let tail = Arc::new(Mutex::new(VecDeque::new()));
    if let Some(stderr) = stderr {
        let kept = Arc::clone(&tail);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr)
                .lines()
                .map_while(std::io::Result::ok)
            {
                if let Ok(mut lines) = kept.lock() {
                    lines.push_back(line);
                    if lines.len() > STDERR_LINES {
                        lines.pop_front();
                    }
                }
            }
        });
    }
    tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::open::BackendSpec;
    use std::os::unix::fs::PermissionsExt;

    /// What is heard of a worker that gets ready and then ends with `code`.
    fn heard_after_exit(code: u8) -> Heard {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("worker");
        let ready = serde_json::to_string(&Reply::Ready(Combination::default())).unwrap();
        let script = format!("#!/bin/sh\nread setup\necho '{ready}'\necho boom >&2\nexit {code}\n");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let setup = Request::Setup {
            backend: BackendSpec::default(),
            repeats: 0,
            outputs: 1,
        };
        Worker::start(&program, &setup)
            .unwrap()
            .hear(Duration::from_secs(60))
    }

    #[test]
    fn hear_end_by_a_bug_of_convfuzz_is_no_crash_of_a_candidate() {
        match heard_after_exit(70) {
            Heard::Reply(Reply::Failed { code, .. }) => {
                assert_eq!(failure(code, String::new()).exit_code(), 70);
            }
            _ => panic!("a bug must end the run"),
        }
        match heard_after_exit(7) {
            Heard::Died(how) => assert!(how.contains("code 7"), "{how}"),
            _ => panic!("any other code is the candidate's doing"),
        }
    }
}
