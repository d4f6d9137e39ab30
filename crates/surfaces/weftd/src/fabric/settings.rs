//! The configuration of a daemon in a fabric: options, the key, and the fabric's file.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use weft_membership::{Admission, FabricKeys, is_name};
use weft_options::Seed;
use weft_options::runtime_path::{NODE_DEFAULT, SYSTEM_DIRECTORY};

use super::etcd::EtcdSettings;
use super::state::read_private;
use crate::Config;

/// Where root's daemon keeps its state: unlike its control socket, it outlives a restart of the
/// machine.
const SYSTEM_STATE: &str = "/var/lib/weft";

/// The configuration of a daemon in a fabric.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// The name of the fabric.
    pub fabric: String,
    /// The name of this node.
    pub name: String,
    /// The address at which this daemon listens, and that the others are told.
    pub listen: SocketAddr,
    /// Where other daemons may be.
    pub seeds: Vec<Seed>,
    /// How hosts are admitted.
    pub admission: Admission,
    /// The etcd that admits.
    pub etcd: Option<EtcdSettings>,
    /// A node of which nothing is heard for so long is down.
    pub silence: Duration,
    /// The keys of the fabric.
    pub keys: Arc<FabricKeys>,
    /// The directory of the state.
    pub state: PathBuf,
    /// Facts about the data path of this node, for the others.
    pub facts: Vec<String>,
}

/// The file that describes a fabric.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FabricFile {
    /// The name of the fabric.
    name: String,
    /// Its nodes. The first one admits.
    #[serde(rename = "node")]
    nodes: Vec<FileNode>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    name: String,
    /// An address, or the name of a host with a port. The own one is an address.
    address: String,
}

impl FileNode {
    fn seed(&self) -> anyhow::Result<Seed> {
        let parsed = self.address.parse::<Seed>();
        parsed
            .with_context(|| format!("the fabric's file has {:?} at {:?}", self.name, self.address))
    }
}

impl FabricConfig {
    /// The configuration that the options name; `None` if the daemon serves this host alone.
    ///
    /// # Errors
    /// An option is missing, or a file cannot be used.
    pub fn read(config: &Config) -> anyhow::Result<Option<Self>> {
        let options = &config.options;
        let name = name_of(config);
        let file = options.fabric_file().map(|path| read_file(Path::new(path))).transpose()?;
        let mut listen = options.fabric_listen();
        let mut seeds = options.fabric_seeds();
        let etcd = EtcdSettings::read(options)?;
        let mut is_first = seeds.is_empty();
        let mut fabric = options.fabric_name().unwrap_or("weft").to_owned();
        if let Some(file) = file {
            let mut nodes = file.nodes.iter();
            let own = nodes.position(|node| node.name == name).with_context(|| {
                format!("the fabric's file has no node {name:?}; --node names this one")
            })?;
            listen = match (listen, file.nodes[own].seed()?) {
                (Some(listen), _) | (None, Seed::Address(listen)) => Some(listen),
                (None, Seed::Name { .. }) => bail!(
                    "the fabric's file has the name of a host as the address of this one; set \
                     fabric.listen to the address that the others reach, as 10.9.0.2:7700"
                ),
            };
            let others = file.nodes.iter().filter(|node| node.name != name);
            seeds.extend(others.map(FileNode::seed).collect::<anyhow::Result<Vec<_>>>()?);
            is_first = own == 0;
            fabric = file.name;
        }
        let Some(listen) = listen else {
            ensure!(
                seeds.is_empty() && etcd.is_none(),
                "fabric.seeds or fabric.etcd is set, and fabric.listen is not; set it to the \
                 address of this host that the others reach, as 10.9.0.2:7700"
            );
            return Ok(None);
        };
        check_listen(listen)?;
        let admission = match (&etcd, is_first) {
            (Some(_), _) => Admission::ByDirectory,
            (None, true) => Admission::First,
            (None, false) => Admission::ByFirst,
        };
        if etcd.is_some() {
            ensure!(
                seeds.is_empty(),
                "fabric.etcd and addresses of daemons (fabric.seeds, fabric.file) are set; hosts \
                 find each other by one of the two, so take the other one away"
            );
            ensure!(
                !fabric.contains('/'),
                "fabric.name = {fabric:?} has a slash, which parts the keys of etcd; take another \
                 name on all hosts"
            );
        }
        ensure!(is_name(&fabric), "fabric.name is longer than 64 bytes, or not printable");
        let key = options.fabric_key().context(
            "fabric.listen is set, and fabric.key is not; make a key with `weft fabric key > \
             FILE`, copy it to all hosts, and name it with --fabric-key",
        )?;
        let keys = read_keys(Path::new(key))?;
        let state = match options.fabric_state() {
            Some(path) => PathBuf::from(path),
            None => default_state(&config.socket, &config.node),
        };
        Ok(Some(Self {
            fabric,
            name,
            listen,
            seeds,
            admission,
            etcd,
            silence: options.fabric_silence_ms(),
            keys: Arc::new(keys),
            state,
            facts: Vec::new(),
        }))
    }
}

/// Checks that others can reach an address, or that it is the loopback interface, where several
/// daemons of one machine try a fabric.
fn check_listen(listen: SocketAddr) -> anyhow::Result<()> {
    let cure = "set it to the address of this host that the others reach, as 10.9.0.1:7700 (`ip \
                address` lists them)";
    let fault = match listen.ip() {
        _ if listen.port() == 0 => "has no port",
        ip if ip.is_unspecified() => "is not one address",
        ip if ip.is_multicast() => "is the address of a group and of no host",
        IpAddr::V4(ip) if ip.is_broadcast() => "is the address of all hosts",
        IpAddr::V4(ip) if ip.is_loopback() && ip != Ipv4Addr::LOCALHOST => {
            "is the name that this host has for itself in /etc/hosts, and leads to no other host"
        }
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            "means another host on each link, so that no other host can be told of it"
        }
        _ => return Ok(()),
    };
    bail!("fabric.listen = {listen} {fault}; {cure}")
}

/// The name of this node: the one that was given, else that of the host.
fn name_of(config: &Config) -> String {
    if config.node != NODE_DEFAULT {
        return config.node.clone();
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if is_name(&host) { host } else { config.node.clone() }
}

fn default_state(socket: &Path, node: &str) -> PathBuf {
    if socket.parent() == Some(Path::new(SYSTEM_DIRECTORY)) {
        return Path::new(SYSTEM_STATE).join(node);
    }
    let mut beside = socket.to_owned().into_os_string();
    beside.push(".fabric");
    beside.into()
}

fn read_keys(path: &Path) -> anyhow::Result<FabricKeys> {
    let shown = path.display();
    let Some(bytes) = read_private(path)? else {
        bail!("fabric.key names {shown}, which is not there; `weft fabric key > {shown}` makes it");
    };
    let text = String::from_utf8(bytes).with_context(|| format!("{shown} is no text"))?;
    FabricKeys::parse(&text).with_context(|| shown.to_string())
}

fn read_file(path: &Path) -> anyhow::Result<FabricFile> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("fabric.file names {shown}, which cannot be read"))?;
    let file: FabricFile =
        toml::from_str(&text).with_context(|| format!("{shown} does not describe a fabric"))?;
    ensure!(!file.nodes.is_empty(), "{shown} has no [[node]]");
    ensure!(
        file.nodes.iter().all(|node| is_name(&node.name)),
        "{shown} has a node whose name is empty, longer than 64 bytes, or not printable"
    );
    for (number, node) in file.nodes.iter().enumerate() {
        let mut before = file.nodes[..number].iter();
        ensure!(
            before.all(|other| other.name != node.name && other.address != node.address),
            "{shown} has two nodes with the name {:?} or the address {}; correct one of them",
            node.name,
            node.address
        );
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use weft_membership::new_key_line;

    struct Given {
        directory: tempfile::TempDir,
        pairs: Vec<(&'static str, String)>,
    }

    impl Given {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let key = directory.path().join("key");
            std::fs::write(&key, new_key_line().expect("random")).expect("written");
            std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("our own");
            let pairs = vec![
                ("WEFT_FABRIC_KEY", key.display().to_string()),
                ("WEFT_FABRIC_LISTEN", "10.9.0.2:7700".to_owned()),
            ];
            Self { directory, pairs }
        }

        fn with(mut self, name: &'static str, value: &str) -> Self {
            self.pairs.retain(|(other, _)| *other != name);
            self.pairs.push((name, value.to_owned()));
            self
        }

        fn read(&self) -> anyhow::Result<Option<FabricConfig>> {
            let pairs = self.pairs.iter().map(|(name, value)| (*name, value.as_str()));
            let (options, problems) = weft_options::Options::from_environment(pairs);
            assert_eq!(problems, []);
            FabricConfig::read(&Config {
                socket: self.directory.path().join("n.sock"),
                node: "b".to_owned(),
                options,
                foreground: false,
                devices: Vec::new(),
                links: None,
            })
        }

        fn error(&self) -> String {
            format!("{:#}", self.read().expect_err("a fault"))
        }
    }

    #[test]
    fn without_an_address_there_is_no_fabric_and_without_seeds_the_daemon_is_the_first() {
        assert!(Given::new().with("WEFT_FABRIC_LISTEN", "").read().expect("nothing").is_none());
        let first = Given::new().read().expect("all is there").expect("an address");
        assert_eq!(first.admission, Admission::First);
        let seeds = Given::new().with("WEFT_FABRIC_SEEDS", "10.9.0.1:7700, [::1]:7");
        let next = seeds.read().expect("all is there").expect("an address");
        assert_eq!(next.admission, Admission::ByFirst);
        assert_eq!(next.seeds.len(), 2);
    }

    #[test]
    fn the_first_node_of_the_file_is_the_first_daemon_and_the_others_are_seeds() {
        let given = Given::new().with("WEFT_FABRIC_LISTEN", "");
        let path = given.directory.path().join("fabric.toml");
        let text = "name = \"f\"\n[[node]]\nname = \"a\"\naddress = \"10.9.0.1:7700\"\n\
                    [[node]]\nname = \"b\"\naddress = \"10.9.0.2:7700\"\n";
        std::fs::write(&path, text).expect("written");
        let given = given.with("WEFT_FABRIC_FILE", &path.display().to_string());
        let read = given.read().expect("all is there").expect("an address");
        assert_eq!((read.fabric.as_str(), read.admission), ("f", Admission::ByFirst));
        assert_eq!(read.listen.to_string(), "10.9.0.2:7700");
        assert_eq!(read.seeds, ["10.9.0.1:7700".parse().expect("an address")]);
        std::fs::write(&path, text.replace("\"b\"", "\"c\"")).expect("written");
        assert!(given.error().contains("no node \"b\""), "{}", given.error());
        std::fs::write(&path, text.replace("\"b\"", "\"a\"")).expect("written");
        assert!(given.error().contains("two nodes with the name \"a\""), "{}", given.error());
        let named = |own: &str| {
            let (a, b) = ("10.9.0.1:7700", "10.9.0.2:7700");
            std::fs::write(&path, text.replace(a, "first:7700").replace(b, own)).expect("written");
        };
        named("10.9.0.2:7700");
        let read = given.read().expect("all is there").expect("an address");
        assert_eq!(read.seeds, ["first:7700".parse().expect("a name")]);
        named("second:7700");
        assert!(given.error().contains("as the address of this one"), "{}", given.error());
        named("second");
        assert!(given.error().contains("a name of a host with a port"), "{}", given.error());
        std::fs::write(&path, "name = 3").expect("written");
        assert!(given.error().contains("does not describe a fabric"), "{}", given.error());
    }

    #[test]
    fn each_missing_thing_is_told_with_what_to_do() {
        let error = Given::new().with("WEFT_FABRIC_KEY", "").error();
        assert!(error.contains("weft fabric key > FILE"), "{error}");
        let error = Given::new().with("WEFT_FABRIC_KEY", "/nonexistent/key").error();
        assert!(error.contains("is not there"), "{error}");
        let error = Given::new().with("WEFT_FABRIC_LISTEN", "0.0.0.0:7700").error();
        assert!(error.contains("that the others reach"), "{error}");
        for wrong in [
            "127.0.1.1:7700",
            "127.0.0.2:7700",
            "255.255.255.255:7700",
            "224.0.0.1:7700",
            "239.9.9.9:7700",
            "[ff02::1]:7700",
            "[fe80::1]:7700",
            "[::]:7700",
            "[::ffff:127.0.1.1]:7700",
            "10.9.0.1:0",
        ] {
            let error = Given::new().with("WEFT_FABRIC_LISTEN", wrong).error();
            assert!(error.contains("that the others reach"), "{wrong}: {error}");
        }
        for right in ["127.0.0.1:7700", "[::1]:7700", "[2001:db8::1]:7700", "[::ffff:10.9.0.1]:7"] {
            assert!(Given::new().with("WEFT_FABRIC_LISTEN", right).read().is_ok(), "{right}");
        }
        let seeds = Given::new().with("WEFT_FABRIC_SEEDS", "10.9.0.1:7700");
        let error = seeds.with("WEFT_FABRIC_LISTEN", "").error();
        assert!(error.contains("fabric.listen is not"), "{error}");
    }

    #[test]
    fn etcd_stands_in_place_of_seeds_and_each_missing_thing_of_it_is_told() {
        let plain = || Given::new().with("WEFT_FABRIC_ETCD", "http://10.9.0.1:2379");
        let read = plain().read().expect("all is there").expect("an address");
        assert_eq!(read.admission, Admission::ByDirectory);
        let secure = || Given::new().with("WEFT_FABRIC_ETCD", "https://10.9.0.1:2379");
        for (given, told) in [
            (plain().with("WEFT_FABRIC_SEEDS", "10.9.0.1:7700"), "one of the two"),
            (plain().with("WEFT_FABRIC_NAME", "a/b"), "has a slash"),
            (plain().with("WEFT_FABRIC_LISTEN", ""), "fabric.listen is not"),
            (plain().with("WEFT_FABRIC_ETCD_USER", "u"), "fabric.etcd_password is not"),
            (secure(), "fabric.etcd_ca"),
            (secure().with("WEFT_FABRIC_ETCD_CA", "/nonexistent/ca"), "cannot be read"),
            (plain().with("WEFT_FABRIC_ETCD_CERT", "/nonexistent/cert"), "fabric.etcd_key is not"),
        ] {
            assert!(given.error().contains(told), "{}", given.error());
        }
        let given = secure();
        let path = given.directory.path().join("ca");
        std::fs::write(&path, "no certificate").expect("written");
        let error = given.with("WEFT_FABRIC_ETCD_CA", &path.display().to_string()).error();
        assert!(error.contains("no certificate (PEM)"), "{error}");
    }
}
