//! One run per folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::report::csv_file::cannot_write;

/// Name of the lock file in a results folder.
pub const NAME: &str = ".convfuzz.lock";

/// A held lock; the file holds the process number of its holder. The system
/// drops the lock of a killed process, so no stale lock can stay behind.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    // Holds the lock until it is closed.
    _file: File,
}

impl Lock {
    /// Takes the lock of `folder`, or says who has it.
    pub fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(NAME);
        loop {
            let mut file = open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(in_use(folder, &mut file)),
                Err(TryLockError::Error(e)) => return Err(cannot_write(&path, &e)),
            }
            // The last holder may have removed the file between open and lock.
            if is_same(&path, &file) {
                write_holder(&path, &mut file)?;
                return Ok(Lock { path, _file: file });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked here, so nobody else's file is removed.
        let _ = fs::remove_file(&self.path);
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|e| cannot_write(path, &e))
}

fn is_same(path: &Path, file: &File) -> bool {
    match (fs::metadata(path), file.metadata()) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

fn write_holder(path: &Path, file: &mut File) -> Result<()> {
    file.set_len(0)
        .and_then(|()| write!(file, "{}", std::process::id()))
        .map_err(|e| cannot_write(path, &e))
}

fn in_use(folder: &Path, file: &mut File) -> Error {
    let mut holder = String::new();
    let holder = match file.read_to_string(&mut holder) {
        Ok(_) if holder.parse::<u32>().is_ok() => format!(" (process {holder})"),
        _ => String::new(),
    };
    Error::output(format!(
        "'{}' is in use by another run{holder}; wait for it or choose another folder with --out",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_held_lock_names_the_holder() {
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::take(folder.path()).unwrap();
        let error = Lock::take(folder.path()).unwrap_err().to_string();
        let holder = format!("process {}", std::process::id());
        assert!(error.contains(&holder), "{error}");
        drop(lock);
        assert!(!folder.path().join(NAME).exists());
        Lock::take(folder.path()).unwrap();
    }

    #[test]
    fn take_leftover_file_of_a_killed_run_is_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(NAME), "4000000000").unwrap();
        let _lock = Lock::take(folder.path()).unwrap();
        let holder = fs::read_to_string(folder.path().join(NAME)).unwrap();
        assert_eq!(holder, std::process::id().to_string());
    }
}
