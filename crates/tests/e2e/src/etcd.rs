//! An etcd for one case: some members on loopback, each with its ports and its data, or each on a
//! host of its own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::namespace::Namespace;
use crate::node::Node;
use crate::process::{Running, free_port};
use crate::program;
use crate::suite::Skip;

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(30);

/// An etcd.
#[derive(Debug)]
pub struct Etcd {
    /// Keeps the directory of the members.
    node: Node,
    /// `http` or `https`.
    scheme: &'static str,
    places: Vec<Place>,
    arguments: Vec<String>,
    members: Vec<Option<Running>>,
}

/// The place of a member.
#[derive(Debug)]
struct Place {
    address: String,
    /// For clients and for the other members.
    ports: [u16; 2],
    /// The network that it is in, if it is another than that of the test.
    network: Option<Namespace>,
}

impl Etcd {
    /// Starts so many members, with further arguments for each.
    ///
    /// # Errors
    /// [`Skip`] when etcd is not installed.
    pub fn start(count: usize, scheme: &'static str, arguments: Vec<String>) -> Result<Self, Skip> {
        let place = |_| {
            let ports = [free_port(), free_port()];
            Place { address: "127.0.0.1".to_owned(), ports, network: None }
        };
        Self::at((0..count).map(place).collect(), scheme, arguments)
    }

    /// Starts a member in each of these networks, where it has the address behind it.
    ///
    /// # Errors
    /// [`Skip`] when etcd is not installed.
    pub fn inside(networks: Vec<(Namespace, String)>) -> Result<Self, Skip> {
        let place =
            |(network, address)| Place { address, ports: [2379, 2380], network: Some(network) };
        Self::at(networks.into_iter().map(place).collect(), "http", Vec::new())
    }

    fn at(places: Vec<Place>, scheme: &'static str, arguments: Vec<String>) -> Result<Self, Skip> {
        program::find("etcd")?;
        let members = places.iter().map(|_| None).collect();
        let mut etcd = Self { node: Node::without_daemon(), scheme, places, arguments, members };
        for place in 0..etcd.places.len() {
            etcd.start_member(place)?;
        }
        Ok(etcd)
    }

    /// Starts a member, for the first time or again with its data.
    ///
    /// # Errors
    /// [`Skip`] when etcd is not installed.
    pub fn start_member(&mut self, place: usize) -> Result<(), Skip> {
        let peer_of =
            |Place { address, ports, .. }: &Place| format!("http://{address}:{}", ports[1]);
        let all = self.places.iter().enumerate();
        let all: Vec<_> = all.map(|(at, one)| format!("m{at}={}", peer_of(one))).collect();
        let (url, peer) = (self.url(&self.places[place]), peer_of(&self.places[place]));
        let data = self.node.directory().join(format!("m{place}"));
        let mut command = self.node.plain(program::find("etcd")?);
        command.arg("--data-dir").arg(data);
        for (flag, value) in [
            ("--name", &*format!("m{place}")),
            ("--listen-client-urls", &url),
            ("--advertise-client-urls", &url),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
            ("--initial-cluster", &all.join(",")),
            ("--heartbeat-interval", "100"),
            ("--election-timeout", "1000"),
        ] {
            command.args([flag, value]);
        }
        command.args(&self.arguments);
        let start = || self.node.start(command);
        let member = match &self.places[place].network {
            Some(network) => network.inside(start),
            None => start(),
        };
        self.members[place] = Some(member);
        Ok(())
    }

    /// Ends a member with SIGKILL.
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill_member(&mut self, place: usize) {
        let member = self.members[place].take().expect("it runs");
        member.signal(Signal::KILL);
        let _ = member.wait(LIMIT);
    }

    /// The URLs of all members, with commas between.
    #[must_use]
    pub fn urls(&self) -> String {
        self.places.iter().map(|place| self.url(place)).collect::<Vec<_>>().join(",")
    }

    fn url(&self, place: &Place) -> String {
        format!("{}://{}:{}", self.scheme, place.address, place.ports[0])
    }

    /// Calls the gateway of the first member, which has no TLS and is on loopback, until it answers
    /// with success.
    ///
    /// # Panics
    /// When it does not.
    pub fn call(&self, path: &str, body: &Value, token: Option<&str>) -> Value {
        let start = Instant::now();
        loop {
            let answer = self.try_call(path, body, token);
            if let Ok(answer) = answer {
                return answer;
            }
            assert!(start.elapsed() < LIMIT, "{path}: {answer:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn try_call(&self, path: &str, body: &Value, token: Option<&str>) -> Result<Value, String> {
        let text = |error: std::io::Error| error.to_string();
        let mut stream =
            TcpStream::connect(("127.0.0.1", self.places[0].ports[0])).map_err(text)?;
        stream.set_read_timeout(Some(LIMIT)).map_err(text)?;
        let body = body.to_string();
        let token = token.map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
        let length = body.len();
        let head = format!(
            "POST /v3/{path} HTTP/1.0\r\nHost: e\r\n{token}Content-Length: {length}\r\n\r\n"
        );
        stream.write_all((head + &body).as_bytes()).map_err(text)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(text)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        if !head.contains(" 200 ") {
            return Err(answer);
        }
        serde_json::from_str(body).map_err(|error| error.to_string())
    }

    /// Writes a key.
    pub fn put(&self, key: &str, value: &str) {
        let body = json!({ "key": STANDARD.encode(key), "value": STANDARD.encode(value) });
        self.call("kv/put", &body, None);
    }

    /// All that it holds, as text.
    ///
    /// # Panics
    /// When a key or a value is no text.
    #[must_use]
    pub fn content(&self) -> Vec<(String, String)> {
        let all = STANDARD.encode("\0");
        let answer = self.call("kv/range", &json!({ "key": all, "range_end": all }), None);
        let text = |value: &Value| {
            let bytes = STANDARD.decode(value.as_str().expect("a text")).expect("base 64");
            String::from_utf8(bytes).expect("text")
        };
        let kvs = answer["kvs"].as_array().cloned().unwrap_or_default();
        kvs.iter().map(|one| (text(&one["key"]), text(&one["value"]))).collect()
    }
}

/// Makes a certificate authority `ca.pem` in the directory of a node, and certificates with keys
/// for these names, each good for 127.0.0.1.
///
/// # Errors
/// [`Skip`] when openssl is not installed.
///
/// # Panics
/// When it fails.
pub fn certificates(node: &Node, names: &[&str]) -> Result<(), Skip> {
    let openssl = program::find("openssl")?;
    let run = |arguments: &str| {
        let mut command = Command::new(&openssl);
        command.args(arguments.split(' ')).current_dir(node.directory());
        let output = command.output().expect("openssl starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    run(&format!("req -x509 {key} -subj /CN=ca -keyout ca.key -out ca.pem"));
    for name in names {
        run(&format!(
            "req -x509 {key} -subj /CN={name} -CA ca.pem -CAkey ca.key -addext \
             subjectAltName=IP:127.0.0.1 -addext basicConstraints=CA:FALSE -addext \
             extendedKeyUsage=serverAuth,clientAuth -keyout {name}.key -out {name}.pem"
        ));
    }
    Ok(())
}
