//! Where the libraries of a machine may lie, in the order they are tried.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Serialize;

/// One place that was tried, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// Path, or name given to the system's loader.
    pub place: String,
    /// `loaded`, `not there`, or the loader's words.
    pub result: String,
}

impl Attempt {
    /// Whether simply nothing was there.
    pub fn is_absence(&self) -> bool {
        self.result == "not there"
    }
}

/// What the search looks at: taken from the environment once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// A file or folder the user named: nothing else is tried for cuDNN.
    pub given: Option<PathBuf>,
    /// Folders of LD_LIBRARY_PATH.
    pub library_path: Vec<PathBuf>,
    /// Folders that hold Python packages: site-packages and the like.
    pub packages: Vec<PathBuf>,
    /// Folders where CUDA and drivers are installed, which the system's loader
    /// may not know.
    pub installed: Vec<PathBuf>,
}

/// A place to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file.
    File(PathBuf),
    /// A name for the system's loader.
    Name(String),
}

/// Folders the CUDA toolkit and drivers install to.
const INSTALLED: &[&str] = &[
    "/usr/local/cuda/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/opt/cuda/lib64",
];

/// Folders below a Python packages folder in which NVIDIA's wheels put
/// libraries.
const WHEEL_FOLDERS: &[&str] = &[
    "nvidia/cudnn/lib",
    "nvidia/cu13/lib",
    "nvidia/cublas/lib",
    "nvidia/cuda_nvrtc/lib",
];

/// Prints where the `python3` on the path looks for packages.
const PYTHON_PATHS: &str = "import sys; print('\\n'.join(sys.path))";

impl Surroundings {
    /// Reads the environment, and asks `python3` where its packages lie.
    pub fn read(given: Option<&Path>) -> Self {
        let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].map(env::var_os);
        let mut packages: Vec<PathBuf> = prefixes
            .into_iter()
            .flatten()
            .flat_map(|prefix| package_folders(Path::new(&prefix)))
            .collect();
        packages.extend(python_packages());
        dedupe(&mut packages);
        Surroundings {
            given: given.map(Path::to_owned),
            library_path: env::var_os("LD_LIBRARY_PATH")
                .map(|list| {
                    env::split_paths(&list)
                        .filter(|p| !p.as_os_str().is_empty())
                        .collect()
                })
                .unwrap_or_default(),
            packages,
            installed: INSTALLED.iter().map(PathBuf::from).collect(),
        }
    }

    /// Where to look for cuDNN. A given path is the only place tried.
    pub fn cudnn(&self) -> Vec<Place> {
        let names: Vec<String> = ["libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"]
            .map(str::to_owned)
            .to_vec();
        match &self.given {
            Some(path) if path.is_dir() => in_folders(std::slice::from_ref(path), &names),
            Some(path) => vec![Place::File(path.clone())],
            None => self.places(&names, &[]),
        }
    }

    /// Where to look for another library, given its names in order; `beside`
    /// is tried first.
    pub fn places(&self, names: &[String], beside: &[PathBuf]) -> Vec<Place> {
        let mut places = in_folders(beside, names);
        places.extend(in_folders(&self.library_path, names));
        places.extend(names.iter().cloned().map(Place::Name));
        places.extend(in_folders(&self.wheel_folders(), names));
        places.extend(in_folders(&self.installed, names));
        places
    }

    fn wheel_folders(&self) -> Vec<PathBuf> {
        self.packages
            .iter()
            .flat_map(|packages| WHEEL_FOLDERS.iter().map(|w| packages.join(w)))
            .filter(|folder| folder.is_dir())
            .collect()
    }
}

impl Place {
    /// As shown to the user.
    pub fn text(&self) -> String {
        match self {
            Place::File(path) => path.display().to_string(),
            Place::Name(name) => format!("{name} (system loader)"),
        }
    }
}

/// Files are worth an entry only where something by that name lies, but a
/// folder without any must still show up as tried: its first name stands for it.
fn in_folders(folders: &[PathBuf], names: &[String]) -> Vec<Place> {
    let mut places = Vec::new();
    for folder in folders {
        let before = places.len();
        let files = names.iter().map(|name| folder.join(name));
        places.extend(files.filter(|file| file.exists()).map(Place::File));
        if places.len() == before {
            places.extend(names.first().map(|name| Place::File(folder.join(name))));
        }
    }
    places
}

/// `lib/python*/site-packages` below an environment's folder.
fn package_folders(prefix: &Path) -> Vec<PathBuf> {
    let Ok(entries) = prefix.join("lib").read_dir() else {
        return Vec::new();
    };
    let mut folders: Vec<PathBuf> = entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("python"))
        .map(|e| e.path().join("site-packages"))
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders
}

fn python_packages() -> Vec<PathBuf> {
    let output = Command::new("python3")
        .args(["-c", PYTHON_PATHS])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let Ok(output) = output else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(PathBuf::from)
        .filter(|path| path.join("nvidia").is_dir())
        .collect()
}

fn dedupe(paths: &mut Vec<PathBuf>) {
    let mut seen = std::collections::HashSet::new();
    paths.retain(|path| seen.insert(path.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn touch(folder: &Path, name: &str) -> PathBuf {
        fs::create_dir_all(folder).unwrap();
        let file = folder.join(name);
        fs::write(&file, b"").unwrap();
        file
    }

    #[test]
    fn cudnn_given_folder_is_the_only_place() {
        let root = tempfile::tempdir().unwrap();
        let nine = touch(root.path(), "libcudnn.so.9");
        let eight = touch(root.path(), "libcudnn.so.8");
        let around = Surroundings {
            given: Some(root.path().to_owned()),
            library_path: vec!["/elsewhere".into()],
            ..Surroundings::default()
        };
        assert_eq!(around.cudnn(), [Place::File(nine), Place::File(eight)]);
    }

    #[test]
    fn cudnn_given_file_is_the_only_place() {
        let around = Surroundings {
            given: Some("/opt/x/libcudnn.so.9.1".into()),
            ..Surroundings::default()
        };
        assert_eq!(
            around.cudnn(),
            [Place::File("/opt/x/libcudnn.so.9.1".into())]
        );
    }

    #[test]
    fn cudnn_order_is_library_path_loader_wheels_installed() {
        let root = tempfile::tempdir().unwrap();
        let first = touch(&root.path().join("ld"), "libcudnn.so.8");
        let packages = root.path().join("venv/lib/python3.12/site-packages");
        let wheel = touch(&packages.join("nvidia/cudnn/lib"), "libcudnn.so.9");
        let last = touch(&root.path().join("cuda"), "libcudnn.so");
        let around = Surroundings {
            given: None,
            library_path: vec![root.path().join("ld")],
            packages: package_folders(&root.path().join("venv")),
            installed: vec![root.path().join("cuda")],
        };
        let places = around.cudnn();
        let at = |p: &Path| places.iter().position(|q| *q == Place::File(p.to_owned()));
        let loader = places
            .iter()
            .position(|p| *p == Place::Name("libcudnn.so.9".into()));
        assert_eq!(at(&first), Some(0));
        assert!(at(&first) < loader && loader < at(&wheel) && at(&wheel) < at(&last));
        assert_eq!(at(&last), Some(places.len() - 1));
    }

    #[test]
    fn places_folder_without_the_library_is_still_named() {
        let around = Surroundings {
            library_path: vec!["/no/such/folder".into()],
            ..Surroundings::default()
        };
        assert_eq!(
            around.cudnn()[0],
            Place::File("/no/such/folder/libcudnn.so.9".into())
        );
    }

    #[test]
    fn places_beside_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let file = touch(root.path(), "libcudnn_graph.so.9");
        let around = Surroundings::default();
        let names = ["libcudnn_graph.so.9".to_owned()];
        let places = around.places(&names, &[root.path().to_owned()]);
        assert_eq!(places[0], Place::File(file));
    }
}
