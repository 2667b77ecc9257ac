//! Writing files so that nothing is lost: rows appended one by one, whole files
//! replaced at once.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, Result};

/// A CSV file that grows row by row. Every row is handed to the system before
/// [`CsvFile::append`] returns, so a killed run keeps all rows before it.
#[derive(Debug)]
pub struct CsvFile {
    path: PathBuf,
    file: File,
    /// Bytes of complete rows.
    complete: u64,
}

impl CsvFile {
    /// Creates the file with the header of `T`; it must not exist.
    pub fn create<T: Serialize + Default>(path: &Path) -> Result<Self> {
        Self::open::<T>(path, OpenOptions::new().create_new(true))
    }

    /// The same in place of an earlier file.
    pub fn create_anew<T: Serialize + Default>(path: &Path) -> Result<Self> {
        Self::open::<T>(path, OpenOptions::new().create(true).truncate(true))
    }

    fn open<T: Serialize + Default>(path: &Path, how: &mut OpenOptions) -> Result<Self> {
        let file = how.write(true).open(path);
        let file = file.map_err(|e| cannot_write(path, &e))?;
        let mut created = CsvFile {
            path: path.to_owned(),
            file,
            complete: 0,
        };
        created.write(&header::<T>()?)?;
        Ok(created)
    }

    /// Has the disk keep all rows.
    pub fn sync(&self) -> Result<()> {
        let synced = self.file.sync_all();
        synced.map_err(|e| cannot_write(&self.path, &e))
    }

    /// Appends one row. When the disk is full, the part of the row that was
    /// written is taken back.
    pub fn append<T: Serialize>(&mut self, row: &T) -> Result<()> {
        self.write(&line(row, false)?)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.complete += bytes.len() as u64;
                Ok(())
            }
            Err(e) => {
                // Best effort: a torn row is also recognised when it is read.
                let _ = self.file.set_len(self.complete);
                Err(cannot_write(&self.path, &e))
            }
        }
    }
}

/// What the names of files begin with that are not yet in their place.
const UNFINISHED: &str = ".convfuzz-";

/// Removes what a process that was killed left of a [`replace`] in `folder`.
pub fn clean_up(folder: &Path) -> Result<()> {
    let entries = std::fs::read_dir(folder).map_err(|e| cannot_write(folder, &e))?;
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            let path = entry.path();
            std::fs::remove_file(&path).map_err(|e| cannot_write(&path, &e))?;
        }
    }
    Ok(())
}

/// Has the disk keep the names of the files in `folder`.
pub fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|file| file.sync_all());
    synced.map_err(|e| cannot_write(folder, &e))
}

/// Replaces `path` by `bytes` at once: readers see the old file or the new one.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || -> io::Result<()> {
        let mut file = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .permissions(permissions())
            .tempfile_in(folder)?;
        file.write_all(bytes)?;
        // A name must not be on the disk before what it names.
        file.as_file().sync_data()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|e| cannot_write(path, &e))
}

/// What an ordinary new file gets, before the umask; tempfile's own default
/// keeps others from reading.
fn permissions() -> std::fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    std::fs::Permissions::from_mode(0o666)
}

/// All rows with their header, as the bytes of a CSV file.
pub fn table<'a, T>(rows: impl IntoIterator<Item = &'a T>) -> Result<Vec<u8>>
where
    T: Serialize + Default + 'a,
{
    let mut bytes = header::<T>()?;
    for row in rows {
        bytes.extend(line(row, false)?);
    }
    Ok(bytes)
}

/// One row as text, without its header and line end.
pub fn row_text<T: Serialize>(row: &T) -> Result<String> {
    let text = String::from_utf8(line(row, false)?)
        .map_err(|e| Error::internal("a row is not UTF-8").with_source(e))?;
    Ok(text.trim_end_matches('\n').to_owned())
}

/// The column names of `T`, in order.
pub fn columns<T: Serialize + Default>() -> Result<Vec<String>> {
    let header = String::from_utf8(header::<T>()?)
        .map_err(|e| Error::internal("column names are not UTF-8").with_source(e))?;
    Ok(header.trim_end().split(',').map(str::to_owned).collect())
}

/// The header line of `T`: serde names the fields of any value, here the default.
fn header<T: Serialize + Default>() -> Result<Vec<u8>> {
    let mut bytes = line(&T::default(), true)?;
    let end = bytes.iter().position(|&b| b == b'\n').map_or(0, |i| i + 1);
    bytes.truncate(end);
    Ok(bytes)
}

fn line<T: Serialize>(row: &T, with_header: bool) -> Result<Vec<u8>> {
    let internal = |e: csv::Error| Error::internal("a record does not fit CSV").with_source(e);
    let mut writer = csv::WriterBuilder::new()
        .has_headers(with_header)
        .from_writer(Vec::new());
    writer.serialize(row).map_err(internal)?;
    writer
        .into_inner()
        .map_err(|e| Error::internal(format!("a record does not fit CSV: {e}")))
}

/// The error for any failed write: file, cause, mend.
pub fn cannot_write(path: &Path, cause: &io::Error) -> Error {
    let mend = match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space",
        io::ErrorKind::FileTooLarge => "raise the limit on the size of files (ulimit -f)",
        io::ErrorKind::AlreadyExists => "move it away",
        io::ErrorKind::ReadOnlyFilesystem => "make it writable",
        _ => "check its permissions",
    };
    Error::output(format!(
        "cannot write '{}': {cause}; {mend} or choose another folder with --out",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::report::tally::Tally;

    #[test]
    fn create_empty_file_still_names_its_columns() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let mut file = CsvFile::create::<Tally>(&path).unwrap();
        let header = "trials,passed,failed,skipped,untrusted,crashed,timed_out,suspects\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), header);
        file.append(&Tally::default()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{header}0,0,0,0,0,0,0,0\n"));
        assert_eq!(columns::<Tally>().unwrap().len(), 8);
    }

    #[test]
    fn create_existing_file_is_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, "precious").unwrap();
        let error = CsvFile::create::<Tally>(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Output);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn append_full_disk_is_one_clear_error() {
        // /dev/full accepts an open and answers every write with ENOSPC.
        let full = Path::new("/dev/full");
        let mut file = CsvFile {
            path: full.to_owned(),
            file: OpenOptions::new().write(true).open(full).unwrap(),
            complete: 0,
        };
        let error = file.append(&Tally::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Output);
        assert!(error.to_string().contains("free some space"), "{error}");
    }

    #[test]
    fn replace_failure_leaves_the_old_file_and_no_litter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        std::fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"new").is_err());
        assert!(path.is_dir());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
