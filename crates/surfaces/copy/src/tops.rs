//! The sources of a transfer: which directory each lies in, and under which name it arrives.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use weft_transfer::{TreePath, is_name};

use crate::destination::CONTENT;
use crate::error::CopyError;
use crate::root::{Root, path_of};

/// One source.
#[derive(Clone, Debug)]
pub(crate) struct Top {
    /// The directory that it lies in; itself, if what is in it is copied.
    pub root: Arc<Root>,
    /// Its name there; empty for the directory itself.
    pub name: Vec<u8>,
    /// The name under which it arrives; empty if what is in it goes into the destination.
    pub shown: Vec<u8>,
}

/// All sources.
#[derive(Clone, Debug)]
pub(crate) struct Tops(pub Vec<Top>);

impl Top {
    /// A path of the transfer as one below the root of the source.
    fn located(&self, path: &TreePath) -> Option<Vec<u8>> {
        if self.shown.is_empty() {
            return Some(path.bytes().to_vec());
        }
        let rest = path.bytes().strip_prefix(self.shown.as_slice())?;
        if !rest.is_empty() && !rest.starts_with(b"/") {
            return None;
        }
        Some([&self.name, rest].concat())
    }
}

impl Tops {
    /// The source at a place that the user of this process named. `follows` says that a link is
    /// copied as what it leads to.
    pub fn of_user(places: &[Vec<u8>], follows: bool) -> Result<Self, CopyError> {
        let mut tops = Vec::new();
        for place in places {
            let path = path_of(place);
            let failed = |why| CopyError::place(path.display(), why);
            let (parent, name, shown) = parted(path).map_err(failed)?;
            let is_link =
                follows && std::fs::symlink_metadata(path).is_ok_and(|at| at.is_symlink());
            let (parent, name) = if is_link {
                let real = std::fs::canonicalize(path).map_err(|why| failed(why.to_string()))?;
                let (parent, name, _) = parted(&real).map_err(failed)?;
                (parent, name)
            } else {
                (parent, name)
            };
            let root = Root::open(&parent).map_err(|why| failed(why.to_string()))?;
            tops.push(Top { root: Arc::new(root), name, shown });
        }
        Self(tops).checked()
    }

    /// The sources at places below a root which they must not leave.
    pub fn below(root: &Root, places: &[Vec<u8>]) -> Result<Self, CopyError> {
        let mut tops = Vec::new();
        for place in places {
            let path = path_of(place);
            let failed = |why: String| CopyError::place(path.display(), why);
            let inside = inside(path).map_err(failed)?;
            let takes_content = ends_in_dot(path) || inside.is_empty();
            let (parent, name) = match inside.iter().rposition(|byte| *byte == b'/') {
                _ if takes_content => (inside.as_slice(), &b""[..]),
                Some(slash) => (&inside[..slash], &inside[slash + 1..]),
                None => (&b""[..], inside.as_slice()),
            };
            let root = root.below(parent).map_err(|why| failed(why.to_string()))?;
            let name = name.to_vec();
            tops.push(Top { root: Arc::new(root), shown: name.clone(), name });
        }
        Self(tops).checked()
    }

    fn checked(self) -> Result<Self, CopyError> {
        for (index, top) in self.0.iter().enumerate() {
            if top.shown.is_empty() && self.0.len() > 1 {
                return Err(CopyError::place(".", "what is in a directory is copied alone"));
            }
            if self.0[..index].iter().any(|other| other.shown == top.shown) {
                let name = weft_transfer::shown(&top.shown);
                return Err(CopyError::place(name, "two sources have this name"));
            }
        }
        Ok(self)
    }

    /// How many there are, and whether what is in the one is copied, as the target hears it.
    pub fn word(&self) -> u32 {
        let count = u32::try_from(self.0.len()).expect("places are bounded");
        if self.is_bare() { count | CONTENT } else { count }
    }

    /// Whether what is in the one source is copied, and not itself.
    pub fn is_bare(&self) -> bool {
        self.0.iter().any(|top| top.shown.is_empty())
    }

    /// The root of a path of the transfer, and the path below it.
    pub fn locate(&self, path: &TreePath) -> Option<(&Root, Vec<u8>)> {
        self.0.iter().find_map(|top| Some((&*top.root, top.located(path)?)))
    }

    /// Opens a file for reading.
    pub fn open(
        &self,
        path: &TreePath,
        flags: OFlags,
    ) -> Result<std::os::fd::OwnedFd, rustix::io::Errno> {
        let (root, below) = self.locate(path).ok_or(rustix::io::Errno::NOENT)?;
        // A pipe that somebody put there must not stop this thread.
        root.open_below(&below, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | flags)
    }
}

fn ends_in_dot(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes == b"." || bytes.ends_with(b"/.")
}

/// The directory of a path, the name in it, and the name under which it arrives.
fn parted(path: &Path) -> Result<(PathBuf, Vec<u8>, Vec<u8>), String> {
    if path.as_os_str().is_empty() {
        return Err("an empty path names nothing".to_owned());
    }
    let dots = matches!(path.components().next_back(), Some(Component::ParentDir));
    let takes_content = ends_in_dot(path) || dots || path.file_name().is_none();
    if takes_content {
        return Ok((path.to_owned(), Vec::new(), Vec::new()));
    }
    let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    let parent = path.parent().map(Path::to_owned).unwrap_or_default();
    Ok((parent, name.clone(), name))
}

/// A path of a client as one below the root of a server. Slashes in front mean the root.
pub(crate) fn inside(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) if is_name(name.as_bytes()) => {
                if !bytes.is_empty() {
                    bytes.push(b'/');
                }
                bytes.extend_from_slice(name.as_bytes());
            }
            _ => return Err("it leads out of what the server offers".to_owned()),
        }
    }
    Ok(bytes)
}
