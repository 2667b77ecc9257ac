//! Finds and loads libcudnn as users have it: a named file, LD_LIBRARY_PATH,
//! the system's loader, Python wheels.
//!
//! cudarc would load the libraries by name on first use, panic when one or a
//! symbol is missing, and return enums that are undefined behaviour for values
//! they do not know. So cudarc supplies types and constants here, functions are
//! looked up by [`Library`], and statuses cross as `i32`.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};
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

/// What is noted of a file that ends too early.
const CUT_SHORT: &str = "the file is cut short";

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
    /// Loads the first of `places` that loads, noting each attempt. A file that
    /// is cut short ends the search: the system's loader, asked by name, might
    /// find the same file and end the process.
    pub fn first_of(places: &[Place], tried: &mut Vec<Attempt>) -> Option<Library> {
        for place in places {
            let loaded = Library::load(place);
            let result = match &loaded {
                Ok(_) => "loaded".to_owned(),
                Err(words) => words.clone(),
            };
            let cut_short = result == CUT_SHORT;
            tried.push(Attempt {
                place: place.text(),
                result,
            });
            if loaded.is_ok() || cut_short {
                return loaded.ok();
            }
        }
        None
    }

    fn load(place: &Place) -> std::result::Result<Library, String> {
        let name = match place {
            Place::File(path) if !path.exists() => return Err("not there".to_owned()),
            Place::File(path) if is_cut_short(path) => {
                return Err(CUT_SHORT.to_owned());
            }
            Place::File(path) => path.clone(),
            Place::Name(name) => PathBuf::from(name),
        };
        // RTLD_LOCAL: a later load by soname, by cuDNN's own parts too, finds
        // this very file all the same, and no symbol can shadow another's.
        // SAFETY: loading runs the initialisers of NVIDIA's libraries, which
        // are made to be loaded at run time; nothing is called yet.
        let handle = unsafe { Handle::open(Some(&name), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| loader_words(&e, &name))?;
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

/// Whether a 64-bit ELF file ends before its section headers, which linkers put
/// last: loading half a download would end the process with SIGBUS.
fn is_cut_short(path: &Path) -> bool {
    let read = || -> std::io::Result<(Vec<u8>, u64)> {
        let file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        let mut header = Vec::new();
        file.take(64).read_to_end(&mut header)?;
        Ok((header, length))
    };
    read().is_ok_and(|(header, length)| ends_before_its_sections(&header, length))
}

fn ends_before_its_sections(header: &[u8], length: u64) -> bool {
    if !header.starts_with(b"\x7FELF\x02") {
        return false; // The loader has words for that.
    }
    let field = |at: usize, bytes: usize| {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(header.get(at..at + bytes)?);
        Some(u64::from_le_bytes(value))
    };
    // e_shoff, e_shentsize and e_shnum of the ELF-64 header.
    match (field(0x28, 8), field(0x3A, 2), field(0x3C, 2)) {
        (Some(start), Some(size), Some(count)) => start.saturating_add(size * count) > length,
        _ => true,
    }
}

/// The loader's own words, without the name it puts in front.
fn loader_words(error: &libloading::Error, name: &Path) -> String {
    let words = match error {
        libloading::Error::DlOpen { source, .. } => source.to_string(),
        other => other.to_string(),
    };
    let prefix = format!("{}: ", name.display());
    match words.strip_prefix(&prefix) {
        Some(rest) if rest.contains("No such file") => "not there".to_owned(),
        Some(rest) => rest.to_owned(),
        None => words,
    }
}

/// The file behind a loaded library, from the process's memory map.
fn mapped(name: &Path) -> Option<PathBuf> {
    let file = name.file_name()?.to_str()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    mapped_in(&maps, file)
}

/// In the text of a memory map: the mapped file of that name or, the map showing
/// where symbolic links lead, of a longer version (`libcudnn.so.9.19.0` for
/// `libcudnn.so.9`) or of another (`libcuda.so.580.159.04` for `libcuda.so.1`).
fn mapped_in(maps: &str, file: &str) -> Option<PathBuf> {
    let paths: Vec<&Path> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|start| Path::new(&line[start..])))
        .collect();
    let begins = |start: &str| {
        let named = |path: &&&Path| {
            let name = path.file_name().and_then(|n| n.to_str());
            name.and_then(|n| n.strip_prefix(start))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        paths.iter().find(named).map(|path| path.to_path_buf())
    };
    let stem = &file[..file.find(".so").map_or(file.len(), |i| i + 3)];
    begins(file).or_else(|| begins(stem))
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
        let before = tried.len();
        let library = Library::first_of(&around.cudnn(), tried)
            .ok_or_else(|| not_found(around, &tried[before..]))?;
        let split = split(&library);
        let missing = load_parts(&library, split, around, tried)?;
        // SAFETY: both take nothing and return size_t, in every version.
        let (version, cudart) = unsafe {
            let version: unsafe extern "C" fn() -> usize = library.symbol("cudnnGetVersion")?;
            let cudart: unsafe extern "C" fn() -> usize =
                library.symbol("cudnnGetCudartVersion")?;
            (Version::from_number(version()), cudart())
        };
        check_version(version, &library.path)?;
        load_cublas(split, cudart, around, &library.path, tried)?;
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

fn split(library: &Library) -> Split {
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
    tried: &mut Vec<Attempt>,
) -> Result<Vec<String>> {
    let (required, optional, major) = match split {
        Split::Eight => (PARTS_8, &[][..], 8),
        Split::Nine => (PARTS_9, ENGINES_9, 9),
    };
    let beside = folder(&library.path);
    for part in required {
        let name = format!("libcudnn_{part}.so.{major}");
        if !load_part(&name, around, &beside, tried) {
            return Err(part_missing(&library.path, &name, tried));
        }
    }
    Ok(optional
        .iter()
        .map(|part| format!("libcudnn_{part}.so.{major}"))
        .filter(|name| !load_part(name, around, &beside, tried))
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
        .filter(|a| a.place.contains(name) && !a.is_absence())
        .map(|a| a.result.as_str())
        .next()
        .unwrap_or("no such file");
    Error::environment(format!(
        "{} is there but its part {name} cannot be loaded ({why}): cuDNN would end the process \
         without it. Install the whole of cuDNN, all files in one folder",
        cudnn.display()
    ))
}

/// cuDNN loads cuBLAS of its own CUDA major by name when first needed, and ends
/// the process when it is not there; wheels keep it in a folder the loader does
/// not know.
fn load_cublas(
    split: Split,
    cudart: usize,
    around: &Surroundings,
    cudnn: &Path,
    tried: &mut Vec<Attempt>,
) -> Result<()> {
    let major = cudart / 1000;
    let needed: &[&str] = match split {
        Split::Eight => &["cublasLt", "cublas"],
        Split::Nine => &["cublasLt"],
    };
    let beside = folder(cudnn);
    for library in needed {
        let name = format!("lib{library}.so.{major}");
        if !load_part(&name, around, &beside, tried) {
            return Err(cublas_missing(cudnn, &name, major));
        }
    }
    // For engines compiled at run time; cuDNN says so itself when missing.
    load_part(&format!("libnvrtc.so.{major}"), around, &beside, tried);
    Ok(())
}

fn cublas_missing(cudnn: &Path, name: &str, major: usize) -> Error {
    let wheel = match major {
        13.. => "nvidia-cublas".to_owned(),
        _ => format!("nvidia-cublas-cu{major}"),
    };
    Error::environment(format!(
        "{} needs {name}, which is nowhere to be found: cuDNN would end the process without it. \
         Install cuBLAS of CUDA {major} (pip install {wheel}), or put its folder on \
         LD_LIBRARY_PATH",
        cudnn.display()
    ))
}

/// The folder of a library, as the list of places beside it.
fn folder(library: &Path) -> Vec<PathBuf> {
    library.parent().map(Path::to_owned).into_iter().collect()
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

/// The error names the places only where one is more than empty; `doctor` shows
/// them all.
fn not_found(around: &Surroundings, tried: &[Attempt]) -> Error {
    let telling: Vec<String> = tried
        .iter()
        .filter(|a| around.given.is_some() || !a.is_absence())
        .map(|a| format!("{}: {}", a.place, a.result))
        .collect();
    let (what, mend) = match &around.given {
        Some(path) => (
            format!("no cuDNN can be loaded from {}", path.display()),
            "check the path given with --cudnn-lib",
        ),
        None => (
            format!("cuDNN was not found in {} places", tried.len()),
            "install cuDNN 8.9 or later (pip install nvidia-cudnn-cu13), or name its file or \
             folder with --cudnn-lib; `convfuzz doctor` shows every place tried",
        ),
    };
    let telling = match telling.is_empty() {
        true => String::new(),
        false => format!(" ({})", telling.join("; ")),
    };
    Error::environment(format!("{what}{telling}: {mend}"))
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
        assert!(error.to_string().contains("/no/libcudnn.so.9: not there"));
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

    /// A folder of made-up libraries, compiled from C.
    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new(libcudnn: &str, others: &[&str]) -> Fake {
            let fake = Fake(tempfile::tempdir().unwrap());
            fake.compile("libcudnn.so.9", libcudnn);
            for name in others {
                fake.compile(name, "int nothing;");
            }
            fake
        }

        fn compile(&self, name: &str, source: &str) {
            let text = self.0.path().join("source.c");
            std::fs::write(&text, source).unwrap();
            let status = std::process::Command::new("cc")
                .args(["-shared", "-fPIC", "-o"])
                .arg(self.0.path().join(name))
                .arg(&text)
                .status();
            assert!(status.unwrap().success(), "{name}");
        }

        fn error(&self) -> String {
            let error = Cudnn::load(&given(self.0.path()), &mut Vec::new()).err();
            let error = error.unwrap();
            assert_eq!(error.kind(), ErrorKind::Environment);
            error.to_string()
        }
    }

    const NINE: &str = "void cudnnGetLastErrorString(char *s, long n) { *s = 0; }
        long cudnnGetVersion(void) { return VERSION; }
        long cudnnGetCudartVersion(void) { return 77010; }";
    const PARTS: [&str; 3] = [
        "libcudnn_graph.so.9",
        "libcudnn_ops.so.9",
        "libcudnn_cnn.so.9",
    ];

    /// Runs `body`, the test of that name, in a process of its own: a cuDNN that
    /// another test has loaded into this one would lend its parts to a fake.
    fn alone(name: &str, body: fn()) {
        const ALONE: &str = "CONVFUZZ_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return body();
        }
        let test = format!("backend::cudnn::library::tests::{name}");
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }

    #[test]
    fn load_without_a_part_names_it() {
        alone("load_without_a_part_names_it", without_a_part);
    }

    fn without_a_part() {
        let fake = Fake::new(&NINE.replace("VERSION", "91900"), &PARTS[..2]);
        let error = fake.error();
        assert!(error.contains("its part libcudnn_cnn.so.9 cannot be loaded (no such file)"));
    }

    #[test]
    fn load_without_cublas_of_its_cuda_major_names_it() {
        let fake = Fake::new(&NINE.replace("VERSION", "91900"), &PARTS);
        assert!(fake.error().contains("needs libcublasLt.so.77"));
    }

    #[test]
    fn load_with_everything_lists_the_engines_that_are_missing() {
        alone(
            "load_with_everything_lists_the_engines_that_are_missing",
            with_everything,
        );
    }

    fn with_everything() {
        let fake = Fake::new(&NINE.replace("VERSION", "91900"), &PARTS);
        fake.compile("libcublasLt.so.77", "int nothing;");
        fake.compile("libcudnn_heuristic.so.9", "int nothing;");
        let mut tried = Vec::new();
        let cudnn = Cudnn::load(&given(fake.0.path()), &mut tried).unwrap();
        assert_eq!(cudnn.version.to_string(), "9.19.0");
        assert_eq!(cudnn.library.path, fake.0.path().join("libcudnn.so.9"));
        assert_eq!(
            cudnn.missing,
            [
                "libcudnn_engines_runtime_compiled.so.9",
                "libcudnn_engines_precompiled.so.9"
            ]
        );
        assert!(cudnn.check("f", 0).is_ok());
        assert_eq!(cudnn.check("f", 3000).unwrap_err().status, "NOT_SUPPORTED");
        type Anything = unsafe extern "C" fn();
        // SAFETY: only asked whether it is there, never called.
        let error = unsafe { cudnn.library.symbol::<Anything>("cudnnCreate") }.unwrap_err();
        assert!(error.to_string().contains("no function cudnnCreate"));
    }

    #[test]
    fn load_older_than_supported_says_what_is_needed() {
        let fake = Fake::new(&NINE.replace("VERSION", "8800"), &PARTS);
        assert!(fake.error().contains("is cuDNN 8.8.0; convfuzz needs 8.9"));
    }

    #[test]
    fn load_library_cut_short_is_refused_not_mapped() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("libcudnn.so.9");
        std::fs::write(&file, &program[..program.len() / 2]).unwrap();
        let error = Cudnn::load(&given(&file), &mut Vec::new()).err().unwrap();
        assert!(error.to_string().contains("cut short"), "{error}");
        std::fs::write(&file, &program[..40]).unwrap();
        assert!(is_cut_short(&file));
        std::fs::write(&file, &program).unwrap();
        assert!(!is_cut_short(&file));
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
        let maps = "7f0-7f1 r--p 0 fe:00 1   /usr/lib/libcuda.so.580.159.04\n";
        assert_eq!(
            mapped_in(maps, "libcuda.so.1"),
            Some("/usr/lib/libcuda.so.580.159.04".into())
        );
    }
}
