//! Finds and loads libcudnn as users have it: a named file, LD_LIBRARY_PATH,
//! the system's loader, Python wheels.
//!
//! cudarc would load the libraries by name on first use, panic when one or a
//! symbol is missing, and return enums that are undefined behaviour for values
//! they do not know. So cudarc supplies types and constants here, functions are
//! looked up by [`Library`], and statuses cross as `i32`.

use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};
use serde::Serialize;

use super::search::{Attempt, Place, Surroundings};
use super::status::{self, Failure};
use crate::error::{Error, Result};

/// The oldest cuDNN that is supported.
pub const OLDEST: Version = Version {
    major: 8,
    minor: 9,
    patch: 0,
};

/// Parts of cuDNN 9 that `libcudnn.so.9` loads by itself; it ends the process
/// when one it needs is missing, so all are asked for beforehand. The first
/// group must be there for anything, the rest for some engines.
const PARTS_9: &[&str] = &["graph", "ops", "cnn"];
const ENGINES_9: &[&str] = &[
    "engines_runtime_compiled",
    "engines_precompiled",
    "heuristic",
];
/// The same of cuDNN 8.
const PARTS_8: &[&str] = &["ops_infer", "cnn_infer", "ops_train", "cnn_train"];

/// A library that stays loaded until the process ends: cuDNN and CUDA do not
/// survive being unloaded.
pub struct Library {
    handle: std::mem::ManuallyDrop<Handle>,
    /// The file the loader mapped, or the name it was asked for.
    pub path: PathBuf,
}

/// A version of cuDNN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
    /// Patch level.
    pub patch: u32,
}

impl Version {
    /// From what `cudnnGetVersion` returns: 8907 is 8.9.7, 91900 is 9.19.0.
    pub fn from_number(number: usize) -> Self {
        let number = number as u32;
        let base = if number < 10_000 { 1_000 } else { 10_000 };
        Version {
            major: number / base,
            minor: number % base / 100,
            patch: number % 100,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Library {
    /// Loads the first of `places` that loads, noting each attempt.
    pub fn first_of(places: &[Place], tried: &mut Vec<Attempt>) -> Option<Library> {
        places.iter().find_map(|place| {
            let loaded = Library::load(place);
            tried.push(Attempt {
                place: place.text(),
                result: match &loaded {
                    Ok(_) => "loaded".to_owned(),
                    Err(words) => words.clone(),
                },
            });
            loaded.ok()
        })
    }

    fn load(place: &Place) -> std::result::Result<Library, String> {
        let name = match place {
            Place::File(path) if !path.exists() => return Err("not there".to_owned()),
            Place::File(path) => path.clone(),
            Place::Name(name) => PathBuf::from(name),
        };
        // RTLD_GLOBAL: a later load by soname, by cuDNN's own parts too, must
        // find this very file.
        // SAFETY: loading runs the initialisers of NVIDIA's libraries, which
        // are made to be loaded at run time; nothing is called yet.
        let handle = unsafe { Handle::open(Some(&name), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|e| loader_words(&e))?;
        Ok(Library {
            handle: std::mem::ManuallyDrop::new(handle),
            path: mapped(&name).unwrap_or(name),
        })
    }

    /// Looks up a function; the error names library and symbol.
    ///
    /// # Safety
    /// `F` must be the C signature of `symbol`, statuses and enums as `i32`.
    pub unsafe fn symbol<F: Copy>(&self, symbol: &'static str) -> Result<F> {
        // SAFETY: the caller vouches for the signature.
        unsafe { self.optional(symbol) }.ok_or_else(|| {
            Error::environment(format!(
                "{} has no function {symbol}: it is not a complete library of a supported version",
                self.path.display()
            ))
        })
    }

    /// Looks up a function that not every version has.
    ///
    /// # Safety
    /// As [`Library::symbol`].
    pub unsafe fn optional<F: Copy>(&self, symbol: &'static str) -> Option<F> {
        // SAFETY: the caller vouches for the signature; the library is never
        // unloaded, so the pointer stays good.
        unsafe { self.handle.get::<F>(symbol) }.ok().map(|s| *s)
    }
}

fn loader_words(error: &libloading::Error) -> String {
    let mut words = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        words = inner.to_string();
        source = inner.source();
    }
    words
}

/// The file behind a loaded library, from the process's memory map.
fn mapped(name: &Path) -> Option<PathBuf> {
    let file = name.file_name()?.to_str()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    mapped_in(&maps, file)
}

/// In the text of a memory map: the mapped file of that name, or of that name
/// and a longer version.
fn mapped_in(maps: &str, file: &str) -> Option<PathBuf> {
    let paths: Vec<&Path> = maps
        .lines()
        .filter_map(|line| line.split_once('/').map(|(before, _)| before.len()))
        .zip(maps.lines().filter(|line| line.contains('/')))
        .map(|(start, line)| Path::new(&line[start..]))
        .collect();
    let named = |path: &&&Path| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        name == file
            || name
                .strip_prefix(file)
                .is_some_and(|rest| rest.starts_with('.'))
    };
    paths.iter().find(named).map(|path| path.to_path_buf())
}

/// libcudnn, its parts, and the functions every part of this backend needs.
pub struct Cudnn {
    /// The library; look up further functions here.
    pub library: Library,
    /// Its version.
    pub version: Version,
    /// The CUDA version it was built with, such as 13000.
    pub cudart: usize,
    /// Parts of it that are missing and that some engines may need.
    pub missing: Vec<String>,
    error_string: Option<unsafe extern "C" fn(*mut std::ffi::c_char, usize)>,
}

impl Cudnn {
    /// Finds and loads cuDNN, its parts and cublasLt, and checks its version.
    /// Needs no GPU and no driver. Every place tried is noted.
    pub fn load(around: &Surroundings, tried: &mut Vec<Attempt>) -> Result<Cudnn> {
        let library = Library::first_of(&around.cudnn(), tried)
            .ok_or_else(|| not_found(around, "libcudnn", tried))?;
        let beside: Vec<PathBuf> = library
            .path
            .parent()
            .map(Path::to_owned)
            .into_iter()
            .collect();
        let split = is_split(&library);
        let missing = load_parts(&library, split, around, &beside, tried)?;
        // SAFETY: both take nothing and return size_t, in every version.
        let (version, cudart) = unsafe {
            let version: unsafe extern "C" fn() -> usize = library.symbol("cudnnGetVersion")?;
            let cudart: unsafe extern "C" fn() -> usize =
                library.symbol("cudnnGetCudartVersion")?;
            (Version::from_number(version()), cudart())
        };
        check_version(version, &library.path)?;
        if split == Split::Nine {
            load_cublas_lt(cudart, around, &beside, &library.path, tried)?;
        }
        Ok(Cudnn {
            // SAFETY: void (char *, size_t), since 9.0.
            error_string: unsafe { library.optional("cudnnGetLastErrorString") },
            library,
            version,
            cudart,
            missing,
        })
    }

    /// Turns a status into a result; a failure carries the library's words.
    pub fn check(&self, call: &'static str, status: i32) -> std::result::Result<(), Failure> {
        if status == status::SUCCESS {
            return Ok(());
        }
        Err(Failure::cudnn(call, status, self.last_error()))
    }

    /// What the library says of the last failed call of this thread.
    fn last_error(&self) -> String {
        let Some(error_string) = self.error_string else {
            return String::new();
        };
        let mut text = [0u8; 512];
        // SAFETY: the buffer is `text.len()` bytes long; the library writes at
        // most that many and ends them with 0.
        unsafe { error_string(text.as_mut_ptr().cast(), text.len()) };
        let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).trim().to_owned()
    }
}

/// How a cuDNN is cut into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    Eight,
    Nine,
}

fn is_split(library: &Library) -> Split {
    type Anything = unsafe extern "C" fn();
    // SAFETY: only asked whether it is there, never called.
    let nine = unsafe { library.optional::<Anything>("cudnnGetLastErrorString") }.is_some();
    if nine { Split::Nine } else { Split::Eight }
}

/// Loads the parts; an error names the required one that is missing, the
/// optional ones come back.
fn load_parts(
    library: &Library,
    split: Split,
    around: &Surroundings,
    beside: &[PathBuf],
    tried: &mut Vec<Attempt>,
) -> Result<Vec<String>> {
    let (required, optional, major) = match split {
        Split::Eight => (PARTS_8, &[][..], 8),
        Split::Nine => (PARTS_9, ENGINES_9, 9),
    };
    if split == Split::Eight {
        preload_cublas(around, beside, tried);
    }
    for part in required {
        let name = format!("libcudnn_{part}.so.{major}");
        if !load_part(&name, around, beside, tried) {
            return Err(part_missing(&library.path, &name, tried));
        }
    }
    Ok(optional
        .iter()
        .map(|part| format!("libcudnn_{part}.so.{major}"))
        .filter(|name| !load_part(name, around, beside, tried))
        .collect())
}

fn load_part(
    name: &str,
    around: &Surroundings,
    beside: &[PathBuf],
    tried: &mut Vec<Attempt>,
) -> bool {
    let mut attempts = Vec::new();
    let found = Library::first_of(&around.places(&[name.to_owned()], beside), &mut attempts);
    tried.append(&mut attempts);
    found.is_some()
}

fn part_missing(cudnn: &Path, name: &str, tried: &[Attempt]) -> Error {
    let why = tried
        .iter()
        .filter(|a| a.place.contains(name) && a.result != "not there")
        .map(|a| a.result.as_str())
        .next()
        .unwrap_or("no such file");
    Error::environment(format!(
        "{} is there but its part {name} cannot be loaded ({why}): cuDNN would end the process \
         without it. Install the whole of cuDNN, all files in one folder",
        cudnn.display()
    ))
}

/// cuDNN 8's parts link against cublas, which wheels keep in a folder the
/// loader does not know; where it is missing, loading the part says so.
fn preload_cublas(around: &Surroundings, beside: &[PathBuf], tried: &mut Vec<Attempt>) {
    for major in [12, 11] {
        for name in ["cublasLt", "cublas"] {
            load_part(&format!("lib{name}.so.{major}"), around, beside, tried);
        }
    }
}

/// cuDNN 9 loads cublasLt of its own CUDA major when first needed, and ends the
/// process when it is not there.
fn load_cublas_lt(
    cudart: usize,
    around: &Surroundings,
    beside: &[PathBuf],
    cudnn: &Path,
    tried: &mut Vec<Attempt>,
) -> Result<()> {
    let major = cudart / 1000;
    let name = format!("libcublasLt.so.{major}");
    if load_part(&name, around, beside, tried) {
        // For engines compiled at run time; cuDNN says so itself when missing.
        load_part(&format!("libnvrtc.so.{major}"), around, beside, tried);
        return Ok(());
    }
    Err(Error::environment(format!(
        "{} needs {name}, which is nowhere to be found: cuDNN would end the process without it. \
         Install cuBLAS of CUDA {major} (pip: {}), or put its folder on LD_LIBRARY_PATH",
        cudnn.display(),
        if major >= 13 {
            "nvidia-cublas".to_owned()
        } else {
            format!("nvidia-cublas-cu{major}")
        }
    )))
}

fn check_version(version: Version, path: &Path) -> Result<()> {
    if version >= OLDEST {
        return Ok(());
    }
    Err(Error::environment(format!(
        "{} is cuDNN {version}; convfuzz needs {}.{} or later",
        path.display(),
        OLDEST.major,
        OLDEST.minor
    )))
}

fn not_found(around: &Surroundings, what: &str, tried: &[Attempt]) -> Error {
    let places: Vec<String> = tried
        .iter()
        .map(|a| format!("{} ({})", a.place, a.result))
        .collect();
    let mend = if around.given.is_some() {
        "check the path given with --cudnn-lib"
    } else {
        "install cuDNN 8.9 or later (pip install nvidia-cudnn-cu13), or name its file or folder \
         with --cudnn-lib"
    };
    Error::environment(format!(
        "{what} was not found: {mend}. Tried: {}",
        places.join("; ")
    ))
}

/// What of cuDNN was found, for `doctor`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CudnnFound {
    /// The file that is mapped.
    pub path: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// CUDA version it was built with.
    pub cuda: Option<String>,
    /// Parts that are missing and that some engines may need.
    pub missing: Vec<String>,
    /// Why it cannot be used.
    pub error: Option<String>,
}

/// A CUDA version such as 13.0 from CUDA's number 13000.
pub fn cuda_version(number: usize) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

impl CudnnFound {
    /// From what loading gave.
    pub fn new(loaded: &Result<Cudnn>) -> Self {
        match loaded {
            Ok(cudnn) => CudnnFound {
                path: Some(cudnn.library.path.display().to_string()),
                version: Some(cudnn.version.to_string()),
                cuda: Some(cuda_version(cudnn.cudart)),
                missing: cudnn.missing.clone(),
                error: None,
            },
            Err(error) => CudnnFound {
                error: Some(error.to_string()),
                ..CudnnFound::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn given(path: &Path) -> Surroundings {
        Surroundings {
            given: Some(path.to_owned()),
            ..Surroundings::default()
        }
    }

    #[test]
    fn version_both_numberings_are_read() {
        let text = |n| Version::from_number(n).to_string();
        assert_eq!(text(8907), "8.9.7");
        assert_eq!(text(7605), "7.6.5");
        assert_eq!(text(90100), "9.1.0");
        assert_eq!(text(91900), "9.19.0");
        assert_eq!(text(92801), "9.28.1");
        assert!(Version::from_number(8907) > OLDEST);
        assert!(Version::from_number(8801) < OLDEST);
    }

    #[test]
    fn check_version_too_old_says_what_is_needed() {
        let error = check_version(Version::from_number(8500), Path::new("/x/libcudnn.so.8"));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Environment);
        assert_eq!(
            error.to_string(),
            "/x/libcudnn.so.8 is cuDNN 8.5.0; convfuzz needs 8.9 or later"
        );
    }

    #[test]
    fn cuda_version_is_major_and_minor() {
        assert_eq!(cuda_version(13000), "13.0");
        assert_eq!(cuda_version(12090), "12.9");
    }

    #[test]
    fn load_given_path_that_is_not_there_says_so() {
        let mut tried = Vec::new();
        let error = Cudnn::load(&given(Path::new("/no/libcudnn.so.9")), &mut tried).err();
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Environment);
        assert!(error.to_string().contains("--cudnn-lib"), "{error}");
        assert!(error.to_string().contains("/no/libcudnn.so.9 (not there)"));
        assert_eq!(tried.len(), 1);
    }

    #[test]
    fn load_file_that_is_no_library_gives_the_loaders_words() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("libcudnn.so.9");
        std::fs::write(&file, b"not a library").unwrap();
        let mut tried = Vec::new();
        let error = Cudnn::load(&given(&file), &mut tried).err().unwrap();
        assert!(error.to_string().contains("file too short"), "{error}");
    }

    #[test]
    fn load_library_that_is_not_cudnn_names_part_or_symbol() {
        // Any library of the system will do: it has none of cuDNN's parts.
        let libc = mapped_in(
            &std::fs::read_to_string("/proc/self/maps").unwrap(),
            "libc.so.6",
        )
        .unwrap();
        let error = Cudnn::load(&given(&libc), &mut Vec::new()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Environment);
        assert!(
            error.to_string().contains("libcudnn_ops_infer.so.8"),
            "{error}"
        );
    }

    #[test]
    fn mapped_in_finds_exact_and_longer_versions() {
        let maps = "7f0-7f1 r--p 0 fe:00 1   /usr/lib/libcudnn_ops.so.9.1\n\
                    7f2-7f3 rw-p 0 00:00 0\n\
                    7f4-7f5 r-xp 0 fe:00 2   /usr/my lib/libcudnn.so.9.19.0\n";
        assert_eq!(
            mapped_in(maps, "libcudnn.so.9"),
            Some("/usr/my lib/libcudnn.so.9.19.0".into())
        );
        assert_eq!(mapped_in(maps, "libcuda.so.1"), None);
    }
}
