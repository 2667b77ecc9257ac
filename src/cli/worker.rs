//! `convfuzz worker`: the process that runs trials for `fuzz`. Not for people.

use std::fs::{self, File};
use std::io::BufReader;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::time::Duration;

use clap::Args;

use crate::campaign::worker;
use crate::cli::exit::Exit;
use crate::error::{Error, Result};

/// Serve trials to the convfuzz that started this process
#[derive(Args, Debug)]
pub struct Worker {}

impl Worker {
    /// Serves until the other side hangs up.
    pub fn execute(self) -> Result<Exit> {
        end_with_parent();
        be_the_first_to_go();
        let channel = take_channel()
            .map_err(|e| Error::usage("a worker is started by 'convfuzz fuzz'").with_source(e))?;
        let input = channel
            .try_clone()
            .map_err(|e| Error::environment("the channel cannot be shared").with_source(e))?;
        worker::serve(BufReader::new(input), channel)?;
        Ok(Exit::Clean)
    }
}

/// The socket that this process was given as its stdin. From now on nothing else
/// in it can reach the socket: a library that prints writes to stdout, and one that
/// reads finds nothing.
fn take_channel() -> std::io::Result<UnixStream> {
    let channel = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    channel.peer_addr()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(channel)
}

/// When memory runs out, the system is to end this process, not the campaign.
fn be_the_first_to_go() {
    // A wish: where it is not granted, nothing else changes.
    let _ = fs::write("/proc/self/oom_score_adj", "900");
}

/// Ends this process soon after its parent, even from inside a kernel that
/// hangs: nobody else would. An idle worker ends by itself when its input does.
fn end_with_parent() {
    let parent = parent_id();
    std::thread::spawn(move || {
        while parent_id() == parent {
            std::thread::sleep(Duration::from_millis(500));
        }
        // Not exit: CUDA's own exit handlers would wait for the kernel.
        std::process::abort();
    });
}
