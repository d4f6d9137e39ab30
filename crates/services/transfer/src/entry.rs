//! One entry of a tree, with all that `cp -a` keeps of it.

use crate::codec::{InvalidBytes, Reader, Writer};
use crate::path::{PATH_BYTES_MAX, TreePath};

/// Most extended attributes of an entry, and most bytes of a name and a value (`XATTR_NAME_MAX`,
/// `XATTR_SIZE_MAX`).
pub const ATTRIBUTES_MAX: usize = 1_024;
const ATTRIBUTE_NAME_BYTES_MAX: usize = 255;
const ATTRIBUTE_BYTES_MAX: usize = 65_536;
/// Most bytes of all attributes of an entry. A file system keeps a few pages of them.
pub const ATTRIBUTES_BYTES_MAX: usize = 256 << 10;
/// Nanoseconds of a second.
const SECOND_NS: u32 = 1_000_000_000;

/// A moment of a file: seconds since 1970 and nanoseconds below a second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment {
    /// Seconds, also before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10⁹.
    pub nanoseconds: u32,
}

/// Which bytes a file had: if all of it is the same, the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FileId {
    /// The device.
    pub device: u64,
    /// The inode.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// When its bytes were last changed.
    pub modified: Moment,
    /// When it was last changed in any way.
    pub changed: Moment,
}

/// An extended attribute; an ACL is one, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attribute {
    /// Its name.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// The properties that are kept of any entry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Metadata {
    /// Permissions, 12 bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// When it was last read.
    pub accessed: Moment,
    /// When it was last changed.
    pub modified: Moment,
    /// Extended attributes.
    pub attributes: Vec<Attribute>,
}

/// The kind of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file with bytes.
    File(FileId),
    /// Another name of a file that came before.
    HardLink {
        /// The first name.
        first: TreePath,
    },
    /// A symbolic link.
    Symlink {
        /// Its text. It may lead anywhere, as nobody follows it.
        text: Vec<u8>,
    },
    /// A named pipe.
    Fifo,
    /// A name of a socket.
    Socket,
    /// A device.
    Device {
        /// Whether it is a block device.
        is_block: bool,
        /// Major and minor number, as the kernel packs them.
        number: u64,
    },
}

/// An entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its number, by which it is named from then on. Numbers rise by one.
    pub number: u64,
    /// Its path.
    pub path: TreePath,
    /// Its properties that are kept.
    pub metadata: Metadata,
    /// Its kind.
    pub kind: Kind,
}

impl Moment {
    pub(crate) fn put(self, into: &mut Writer) {
        into.i64(self.seconds).u32(self.nanoseconds);
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, InvalidBytes> {
        let (seconds, nanoseconds) = (from.i64()?, from.u32()?);
        if nanoseconds >= SECOND_NS {
            return Err(InvalidBytes::Field("a time"));
        }
        Ok(Self { seconds, nanoseconds })
    }
}

impl FileId {
    pub(crate) fn put(&self, into: &mut Writer) {
        into.u64(self.device).u64(self.inode).u64(self.size);
        self.modified.put(into);
        self.changed.put(into);
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, InvalidBytes> {
        let (device, inode, size) = (from.u64()?, from.u64()?, from.u64()?);
        if i64::try_from(size).is_err() {
            return Err(InvalidBytes::Field("the size of a file"));
        }
        let (modified, changed) = (Moment::take(from)?, Moment::take(from)?);
        Ok(Self { device, inode, size, modified, changed })
    }
}

impl Metadata {
    fn put(&self, into: &mut Writer) {
        into.u32(self.mode).u32(self.uid).u32(self.gid);
        self.accessed.put(into);
        self.modified.put(into);
        into.list(&self.attributes, |into, attribute| {
            into.blob(&attribute.name).blob(&attribute.value);
        });
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, InvalidBytes> {
        let (mode, uid, gid) = (from.u32()?, from.u32()?, from.u32()?);
        if mode > 0o7777 {
            return Err(InvalidBytes::Field("a mode"));
        }
        let (accessed, modified) = (Moment::take(from)?, Moment::take(from)?);
        let mut bytes = 0;
        let attributes = from.list(ATTRIBUTES_MAX, "the number of attributes", |from| {
            let name = from.blob(ATTRIBUTE_NAME_BYTES_MAX, "an attribute's name")?;
            if name.is_empty() || name.contains(&0) {
                return Err(InvalidBytes::Field("an attribute's name"));
            }
            let value = from.blob(ATTRIBUTE_BYTES_MAX, "an attribute")?;
            bytes += value.len();
            if bytes > ATTRIBUTES_BYTES_MAX {
                return Err(InvalidBytes::Field("the bytes of attributes"));
            }
            Ok(Attribute { name, value })
        })?;
        Ok(Self { mode, uid, gid, accessed, modified, attributes })
    }
}

pub(crate) fn put_path(path: &TreePath, into: &mut Writer) {
    into.blob(path.bytes());
}

pub(crate) fn take_path(from: &mut Reader<'_>) -> Result<TreePath, InvalidBytes> {
    let bytes = from.blob(PATH_BYTES_MAX, "a path")?;
    TreePath::new(bytes).map_err(|_| InvalidBytes::Field("a path"))
}

impl Entry {
    /// Bytes that it takes in a message, about.
    #[must_use]
    pub fn weight(&self) -> usize {
        let attributes = self.metadata.attributes.iter();
        let attributes: usize = attributes.map(|one| one.name.len() + one.value.len() + 8).sum();
        let more = match &self.kind {
            Kind::Symlink { text } => text.len(),
            Kind::HardLink { first } => first.bytes().len(),
            _ => 64,
        };
        self.path.bytes().len() + attributes + more + 64
    }

    pub(crate) fn put(&self, into: &mut Writer) {
        into.u64(self.number);
        put_path(&self.path, into);
        self.metadata.put(into);
        match &self.kind {
            Kind::Directory => into.u8(0),
            Kind::File(id) => {
                into.u8(1);
                id.put(into);
                into
            }
            Kind::HardLink { first } => into.u8(2).blob(first.bytes()),
            Kind::Symlink { text } => into.u8(3).blob(text),
            Kind::Fifo => into.u8(4),
            Kind::Socket => into.u8(5),
            Kind::Device { is_block, number } => into.u8(6).flag(*is_block).u64(*number),
        };
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, InvalidBytes> {
        let (number, path, metadata) = (from.u64()?, take_path(from)?, Metadata::take(from)?);
        let kind = match from.u8()? {
            0 => Kind::Directory,
            1 => Kind::File(FileId::take(from)?),
            2 => Kind::HardLink { first: take_path(from)? },
            3 => {
                let text = from.blob(PATH_BYTES_MAX, "a link")?;
                if text.is_empty() || text.contains(&0) {
                    return Err(InvalidBytes::Field("a link"));
                }
                Kind::Symlink { text }
            }
            4 => Kind::Fifo,
            5 => Kind::Socket,
            6 => Kind::Device { is_block: from.flag("a kind of device")?, number: from.u64()? },
            _ => return Err(InvalidBytes::Field("the kind of an entry")),
        };
        Ok(Self { number, path, metadata, kind })
    }
}
