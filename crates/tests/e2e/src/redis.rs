//! A client of the Redis protocol that tests use, and random commands for comparisons.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use weft_resp::{Protocol, Reply, Value};

/// A busy machine does not reach it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a server of this host.
pub struct Client {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Client {
    /// Connects to a port of loopback.
    ///
    /// # Errors
    /// When nothing listens.
    pub fn connect(port: u16) -> io::Result<Self> {
        Self::at(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// When nothing listens.
    pub fn at(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, answer: Vec::new() })
    }

    /// Waits no longer for answers from now on.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn set_patience(&mut self, most: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(most))
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// When the connection ends, or what comes is no answer.
    pub fn read(&mut self) -> io::Result<Value> {
        let mut part = [0; 16 << 10];
        loop {
            let found = Value::decode(&self.answer).map_err(io::Error::other)?;
            if let Some((value, length)) = found {
                self.answer.drain(..length);
                return Ok(value);
            }
            match self.stream.read(&mut part)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.answer.extend_from_slice(&part[..count]),
            }
        }
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// Those of both.
    pub fn words<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Value> {
        self.send(&request(words))?;
        self.read()
    }

    /// The same for words with spaces between.
    ///
    /// # Errors
    /// Those of both.
    pub fn ask(&mut self, line: &str) -> io::Result<Value> {
        self.words(&line.split(' ').collect::<Vec<_>>())
    }
}

/// The bytes of a command.
#[must_use]
pub fn request<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut reply = Reply::new(&mut bytes, Protocol::Resp2, usize::MAX);
    reply.array(words.len());
    words.iter().for_each(|word| reply.bulk(word.as_ref()));
    bytes
}

/// Random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 33).unwrap_or(0) % bound
    }

    /// One of the words.
    pub fn of<'w>(&mut self, words: &[&'w str]) -> &'w str {
        words[self.below(words.len())]
    }
}

/// Forms of commands. `K` is a key, `V` a value, `F` a field or member, `N` a number of any kind,
/// `I` a small one, `T` a time, and what is in brackets may be left out.
const FORMS: &[&str] = &[
    "GET K",
    "GET K",
    "SET K V",
    "SET K V",
    "SET K V [NX] [XX] [GET]",
    "SET K V [GET] EX T",
    "SET K V PX T000",
    "SET K V [KEEPTTL]",
    "SETEX K T V",
    "PSETEX K T000 V",
    "SETNX K V",
    "GETSET K V",
    "GETDEL K",
    "GETEX K",
    "GETEX K EX T",
    "GETEX K PERSIST",
    "MGET K K K",
    "MSET K V K V",
    "MSET K V K",
    "MSETNX K V K V",
    "INCR K",
    "DECR K",
    "INCRBY K N",
    "DECRBY K N",
    "INCRBYFLOAT K N",
    "INCRBYFLOAT fl N",
    "SET fl N",
    "APPEND K V",
    "STRLEN K",
    "GETRANGE K I I",
    "SETRANGE K I V",
    "DEL K K",
    "UNLINK K",
    "EXISTS K K",
    "TYPE K",
    "TTL K",
    "EXPIRETIME K",
    "EXPIRE K T [NX] [XX] [GT] [LT]",
    "PEXPIRE K T000 [GT]",
    "EXPIREAT K I",
    "PERSIST K",
    "KEYS *",
    "KEYS k[0-3]",
    "RENAME K K",
    "RENAMENX K K",
    "COPY K K [REPLACE]",
    "HSET K F V",
    "HSET h F V F V",
    "HSET h F",
    "HMSET K F V",
    "HGET K F",
    "HGET h F",
    "HMGET h F F",
    "HGETALL h",
    "HGETALL K",
    "HDEL h F F",
    "HDEL K F",
    "HLEN h",
    "HSETNX h F V",
    "HEXISTS h F",
    "HINCRBY h F N",
    "ZADD z [NX] [XX] [CH] N F",
    "ZADD z [GT] [LT] N F N F",
    "ZADD z N F",
    "ZADD z [INCR] N F",
    "ZADD K N F",
    "ZREM z F F",
    "ZCARD z",
    "ZSCORE z F",
    "ZRANGEBYSCORE z N N [WITHSCORES]",
    "ZRANGEBYSCORE z -inf +inf WITHSCORES LIMIT I I",
    "ZRANGEBYSCORE z (N +inf",
    "ZCOUNT z N N",
    "ZINCRBY z N F",
    "PING",
    "ECHO V",
    "ECHO",
    "NOSUCH V",
    "SELECT V",
    "CLIENT NOSUCH",
    "OBJECT REFCOUNT nokey",
    "SCAN 0 COUNT 1000",
    "SCAN x",
    "SCAN 0 MATCH k* COUNT 1000 TYPE hash",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH K",
    "UNWATCH",
    "COMMAND GETKEYS MSET a b c d",
    "RESTORE K 0 junk",
    "AUTH V",
    "HELLO 7",
];

const KEYS: &[&str] = &["k0", "k1", "k2", "k3", "k4", "k5", "", "{t}a", "{t}b", "\r\n\0"];
const VALUES: &[&str] = &["a", "hello", "", "12", "-7", "3.25", "1e5", "9223372036854775806"];
const FIELDS: &[&str] = &["f0", "f1", "f2", "f3", ""];
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "5",
    "-10",
    "100",
    "9223372036854775807",
    "-9223372036854775808",
    "x",
    "",
    "1.5",
    "-0.1",
    "1e3",
    "inf",
    "-inf",
    "nan",
    "0x10",
    " 1",
    "+5",
    "007",
    "0.1",
    "2.2e-5",
    "1000.1",
];
const SMALL: &[&str] = &["0", "1", "-1", "2", "7", "-3", "100", "x"];
const TIMES: &[&str] = &["100", "1000", "100000", "0", "-1", "x", "9223372036854775807"];

/// A random command.
pub fn command(random: &mut Random) -> Vec<String> {
    let form = FORMS[random.below(FORMS.len())];
    let mut words = Vec::new();
    for part in form.split(' ') {
        let optional = part.strip_prefix('[').and_then(|part| part.strip_suffix(']'));
        if let Some(part) = optional {
            if random.below(3) == 0 {
                words.push(part.to_owned());
            }
            continue;
        }
        words.push(match part {
            "K" => random.of(KEYS).to_owned(),
            "V" => random.of(VALUES).to_owned(),
            "F" => random.of(FIELDS).to_owned(),
            "N" => random.of(NUMBERS).to_owned(),
            "(N" => format!("({}", random.of(NUMBERS)),
            "I" => random.of(SMALL).to_owned(),
            "T" => random.of(TIMES).to_owned(),
            "T000" => format!("{}000", random.of(TIMES)),
            other => other.to_owned(),
        });
    }
    words
}

/// An answer in a form that can be compared: what has no order is in one.
#[must_use]
pub fn comparable(command: &[String], answer: Value) -> Value {
    let name = command.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
    let key = |value: &Value| format!("{value:?}");
    match (name.as_str(), answer) {
        ("KEYS", Value::Array(mut keys)) => {
            keys.sort_by_key(key);
            Value::Array(keys)
        }
        ("HGETALL", Value::Array(flat)) => {
            let (pairs, _) = flat.as_chunks::<2>();
            let mut pairs: Vec<Vec<Value>> = pairs.iter().map(|pair| pair.to_vec()).collect();
            pairs.sort_by_key(|pair| format!("{pair:?}"));
            Value::Array(pairs.into_iter().map(Value::Array).collect())
        }
        ("SCAN", Value::Array(parts)) => Value::Array(
            parts.into_iter().map(|part| comparable(&["KEYS".to_owned()], part)).collect(),
        ),
        (_, answer) => answer,
    }
}
