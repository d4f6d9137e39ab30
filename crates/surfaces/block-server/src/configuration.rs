//! The configuration of the server: read from the words of the command line, or from a file in
//! TOML.
//!
//! A file has the same words:
//! ```toml
//! listen = ["127.0.0.1:3260"]
//!
//! [[target]]
//! name = "iqn.2026-11.com.example:disks"
//! luns = ["0=file:/srv/disk,direct", "1=mem:1G,node=0"]
//! chap = ["host:/etc/weft/host.secret"]
//! nbd = ["unix:/run/weft/disks.nbd"]
//! ```

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use weft_block::iscsi::Credentials;
use weft_file_io::Way;

use crate::remote::RemoteLun;

/// Bytes of a secret; RFC 7143 section 12.1.3 asks for 96 bits at least.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 12..=255;

/// The bytes behind a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Memory, of a node if there is one.
    Memory {
        /// Its size.
        bytes: u64,
        /// The node.
        node: Option<u32>,
    },
    /// A file or a block device.
    File {
        /// Its path.
        path: PathBuf,
        /// Past the page cache, in this way.
        direct: Option<Way>,
    },
    /// A LUN of another server, over the fabric.
    Remote(RemoteLun),
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { .. } => f.write_str("mem"),
            Self::File { path, .. } => write!(f, "file:{}", path.display()),
            Self::Remote(at) => at.fmt(f),
        }
    }
}

/// A unit to be served, as `N=mem:SIZE[,node=K]`, `N=file:PATH[,direct]` or
/// `N=weft://HOST[:PORT]/IQN/N`, each with `ro` or `removable` behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LunSpec {
    /// The number of the unit.
    pub number: u64,
    /// The bytes behind it.
    pub backing: Backing,
    /// Whether it cannot be written.
    pub is_read_only: bool,
    /// Whether its medium can be taken out.
    pub is_removable: bool,
}

/// A size: a number with K, M, G or T behind it, in powers of 1024.
///
/// # Errors
/// The text is no size, or none in whole blocks of 512 bytes.
pub fn parse_size(text: &str) -> anyhow::Result<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => bail!("{text:?} is no size; use one such as 512M or 10G"),
    };
    let number: u64 =
        digits.parse().with_context(|| format!("{text:?} is no size; use one such as 512M"))?;
    let bytes = number.checked_mul(1 << shift).context("the size is too large")?;
    ensure!(bytes > 0 && bytes % 512 == 0, "the size {text} is no multiple of 512 bytes");
    Ok(bytes)
}

impl FromStr for LunSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        const FORM: &str = "use N=mem:SIZE[,node=K], N=file:PATH[,direct[,aio=io_uring|threads]] \
             or N=weft://HOST[:PORT]/IQN/N";
        let (number, rest) = text.split_once('=').with_context(|| format!("{text:?}: {FORM}"))?;
        let number = number.parse().with_context(|| format!("{number:?} is no LUN; {FORM}"))?;
        let (kind, rest) = rest.split_once(':').with_context(|| format!("{text:?}: {FORM}"))?;
        let mut words = rest.split(',');
        let first = words.next().unwrap_or_default();
        let mut backing = match kind {
            "mem" => Backing::Memory { bytes: parse_size(first)?, node: None },
            "file" if first.is_empty() => bail!("{text:?} has no path; {FORM}"),
            "file" => Backing::File { path: first.into(), direct: None },
            "weft" => Backing::Remote(format!("weft:{first}").parse()?),
            _ => bail!("{kind:?} is no kind of store; {FORM}"),
        };
        let (mut is_read_only, mut is_removable) = (false, false);
        for word in words {
            match (word, &mut backing) {
                ("ro", _) => is_read_only = true,
                ("removable", _) => is_removable = true,
                ("direct", Backing::File { direct, .. }) => *direct = Some(Way::Auto),
                ("aio=io_uring", Backing::File { direct: Some(way), .. }) => *way = Way::Uring,
                ("aio=threads", Backing::File { direct: Some(way), .. }) => *way = Way::Plain,
                (word, Backing::Memory { node, .. }) if word.starts_with("node=") => {
                    let number = word[5..].parse();
                    *node = Some(number.with_context(|| format!("{word:?} names no node"))?);
                }
                _ => bail!("{word:?} means nothing for {kind}; {FORM}"),
            }
        }
        Ok(Self { number, backing, is_read_only, is_removable })
    }
}

/// A place to listen at for NBD.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NbdPlace {
    /// A TCP port.
    Tcp(String),
    /// A socket of this host.
    Unix(PathBuf),
}

impl FromStr for NbdPlace {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text.strip_prefix("unix:") {
            Some("") => bail!("unix: has no path"),
            Some(path) => Ok(Self::Unix(path.into())),
            None => {
                addresses(text)?;
                Ok(Self::Tcp(text.to_owned()))
            }
        }
    }
}

/// The port of `weft:PORT`, a place to listen at over the fabric alone.
///
/// # Errors
/// It begins so, and has no port.
pub fn fabric_port(text: &str) -> anyhow::Result<Option<u16>> {
    let Some(port) = text.strip_prefix("weft:") else { return Ok(None) };
    let port = port.parse().ok().filter(|port| *port > 0);
    Ok(Some(port.with_context(|| format!("{text:?} is no weft:PORT, such as weft:3260"))?))
}

/// The addresses of ADDRESS:PORT.
///
/// # Errors
/// It is none, or a name that nobody knows.
pub fn addresses(text: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let all = text
        .to_socket_addrs()
        .with_context(|| format!("{text:?} is no ADDRESS:PORT, such as 127.0.0.1:3260"))?;
    Ok(all.collect())
}

/// A target to be served.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// Its iSCSI name.
    pub name: String,
    /// Its units, as [`LunSpec`] reads them.
    #[serde(default)]
    pub luns: Vec<String>,
    /// USER:FILE for each initiator that may log in.
    #[serde(default)]
    pub chap: Vec<String>,
    /// Where its units are exported by NBD.
    #[serde(default)]
    pub nbd: Vec<String>,
}

/// Files for TLS.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate chain in PEM.
    pub certificate: PathBuf,
    /// The private key in PEM.
    pub key: PathBuf,
}

/// All that is served.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where to listen for iSCSI, and over the fabric: ADDRESS:PORT, or weft:PORT for the fabric
    /// alone.
    #[serde(default)]
    pub listen: Vec<String>,
    /// Whether others than this host may come without a secret.
    #[serde(default)]
    pub insecure: bool,
    /// Where reservations are kept over a restart.
    pub state: Option<PathBuf>,
    /// The socket for `weft block stat` and the like.
    pub control: Option<PathBuf>,
    /// Reactors at most; one for each processor by default.
    pub reactors: Option<usize>,
    /// TLS for NBD over TCP.
    pub nbd_tls: Option<TlsFiles>,
    /// The targets.
    #[serde(default, rename = "target")]
    pub targets: Vec<TargetConfig>,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The text is no TOML of this form.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Something is missing, or others could come without a secret and nobody said that they may.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.targets.is_empty(), "there is no target; add --target IQN");
        for target in &self.targets {
            ensure!(!target.luns.is_empty(), "target {} has no LUN; add --lun", target.name);
        }
        let has_nbd = self.targets.iter().any(|target| !target.nbd.is_empty());
        ensure!(
            !self.listen.is_empty() || has_nbd,
            "nobody is listened to; add --listen ADDR:PORT, such as 127.0.0.1:3260"
        );
        if self.insecure {
            return Ok(());
        }
        let open = self.targets.iter().find(|target| target.chap.is_empty());
        if let Some(target) = open {
            for place in &self.listen {
                if fabric_port(place)?.is_some() {
                    // The fabric knows the user of each initiator.
                    continue;
                }
                refuse_others(place, &format!("{} by iSCSI without CHAP", target.name), "--chap")?;
            }
        }
        for target in &self.targets {
            for place in &target.nbd {
                if let NbdPlace::Tcp(place) = place.parse()? {
                    let what = format!("{} by NBD, which asks for no secret", target.name);
                    refuse_others(&place, &what, "a unix: socket")?;
                }
            }
        }
        Ok(())
    }
}

fn refuse_others(place: &str, what: &str, instead: &str) -> anyhow::Result<()> {
    let is_far = addresses(place)?.iter().any(|address| !address.ip().is_loopback());
    ensure!(
        !is_far,
        "everybody who reaches {place} could use {what}; use {instead}, listen at 127.0.0.1, or \
         say --insecure"
    );
    Ok(())
}

/// The credentials of USER:FILE. The file has the user's secret in its first line. A second line,
/// NAME:SECRET, is what the target shows to initiators that ask for it.
///
/// # Errors
/// The file cannot be read, others may read it, or a secret has a wrong length.
pub fn credentials(text: &str) -> anyhow::Result<Credentials> {
    use std::os::unix::fs::MetadataExt;
    let (user, file) = text.split_once(':').context("--chap has the form USER:FILE")?;
    ensure!(!user.is_empty(), "--chap has the form USER:FILE");
    let path = Path::new(file);
    let shown = path.display();
    let mode = path.metadata().with_context(|| format!("{shown} cannot be read"))?.mode();
    ensure!(mode & 0o077 == 0, "others may read the secret in {shown}; run chmod 600 {shown}");
    let lines = std::fs::read_to_string(path).with_context(|| format!("{shown} cannot be read"))?;
    let mut lines = lines.lines();
    let secret = lines.next().unwrap_or_default().to_owned();
    let check = |secret: &str| {
        let length = secret.len();
        ensure!(
            SECRET_BYTES.contains(&length),
            "the secret in {shown} has {length} bytes; use 12 to 255"
        );
        Ok(())
    };
    check(&secret)?;
    let target = match lines.next().filter(|line| !line.is_empty()) {
        None => None,
        Some(line) => {
            let (name, own) = line.split_once(':').with_context(|| {
                format!("the second line of {shown} is no NAME:SECRET of the target")
            })?;
            check(own)?;
            ensure!(own != secret, "{shown} has one secret for both directions; use two");
            Some((name.to_owned(), own.to_owned()))
        }
    };
    Ok(Credentials { user: user.to_owned(), secret, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_in_their_forms() {
        let spec: LunSpec = "3=mem:1G,node=1,ro".parse().expect("a form");
        assert_eq!(spec.backing, Backing::Memory { bytes: 1 << 30, node: Some(1) });
        assert!(spec.number == 3 && spec.is_read_only && !spec.is_removable);
        let spec: LunSpec = "0=file:/srv/a=b,direct".parse().expect("a form");
        assert_eq!(
            spec.backing,
            Backing::File { path: "/srv/a=b".into(), direct: Some(Way::Auto) }
        );
        let remote = "0=weft://h:1/iqn.a/0,ro";
        let spec: LunSpec = remote.parse().expect("a form");
        assert!(spec.backing.to_string() == "weft://h:1/iqn.a/0" && spec.is_read_only);
        assert_eq!(fabric_port("weft:3260").expect("a port"), Some(3260));
        assert!(fabric_port("weft:").is_err() && fabric_port("127.0.0.1:1").unwrap().is_none());
        for text in [
            "mem:1G",
            "0=mem:",
            "0=mem:100",
            "0=mem:1G,direct",
            "x=mem:1G",
            "0=file:",
            "0=tape:/dev/st0",
            "0=mem:99999999999T",
            "0=weft://h:1/0",
            "0=weft://h:1/iqn.a/0,direct",
        ] {
            assert!(text.parse::<LunSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn others_are_kept_out_without_a_secret() {
        let mut config = Config::parse(
            "listen = [\"127.0.0.1:3260\"]\n[[target]]\nname = \"iqn.x\"\nluns = [\"0=mem:1M\"]",
        )
        .expect("TOML");
        assert!(config.check().is_ok());
        config.listen = vec!["0.0.0.0:3260".into()];
        let error = config.check().expect_err("everybody").to_string();
        assert!(error.contains("--insecure") && error.contains("--chap"), "{error}");
        config.targets[0].chap = vec!["a:/b".into()];
        assert!(config.check().is_ok());
        config.targets[0].nbd = vec!["0.0.0.0:10809".into()];
        assert!(config.check().is_err());
        config.targets[0].nbd = vec!["unix:/run/x".into()];
        assert!(config.check().is_ok());
        assert!(Config::parse("listn = []").is_err(), "a slip of the pen");
    }

    #[test]
    fn a_secret_that_others_read_or_that_is_short_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("secret");
        let write = |text: &str, mode| {
            std::fs::write(&path, text).expect("fresh");
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).expect("own");
            credentials(&format!("host:{}", path.display()))
        };
        let read = write("a long secret\ndisk:another secret\n", 0o600).expect("well");
        assert_eq!(read.target, Some(("disk".into(), "another secret".into())));
        assert!(write("a long secret", 0o644).is_err());
        assert!(write("short", 0o600).is_err());
        assert!(write("a long secret\nd:a long secret", 0o600).is_err(), "the same");
    }
}
