//! A daemon's requests to an etcd in memory, which knows of them as much as it needs.

use proptest::prelude::*;

use super::*;
use crate::identity::Identity;
use crate::message::NodeAbout;
use crate::roster::Numbering;

/// Keys with their value, the revision of the last change, and the lease.
#[derive(Default)]
struct Store {
    keys: BTreeMap<String, (String, u64, Option<String>)>,
    revision: u64,
    leases: u64,
    is_away: bool,
}

impl Store {
    fn answer(&mut self, request: &Request) -> Result<(u16, Vec<u8>), String> {
        if self.is_away {
            return Err("no connection".to_owned());
        }
        let body: Value = serde_json::from_str(&request.body).expect("JSON");
        let path = request.url.split_once("/v3/").expect("the gateway's path").1;
        let revision = self.revision.to_string();
        let answer = match path {
            "auth/authenticate" if body["password"] == "right" => json!({ "token": "t.1" }),
            "auth/authenticate" => {
                let error = "etcdserver: authentication failed, invalid user ID or password";
                return Ok((400, json!({ "error": error }).to_string().into_bytes()));
            }
            "lease/grant" => {
                self.leases += 1;
                json!({ "ID": self.leases.to_string(), "TTL": "8" })
            }
            "lease/keepalive" if body["ID"] == json!(self.leases.to_string()) => {
                json!({ "result": { "ID": body["ID"], "TTL": "8" } })
            }
            "lease/keepalive" => json!({ "result": { "ID": body["ID"] } }),
            "kv/txn" => {
                let empty = Vec::new();
                let compares = body["compare"].as_array().unwrap_or(&empty);
                let succeeded = compares.iter().all(|compare| {
                    let wanted = &compare["mod_revision"];
                    let wanted =
                        if wanted.is_null() { &compare["create_revision"] } else { wanted };
                    let found = self.keys.get(&text(&compare["key"])).map_or(0, |found| found.1);
                    *wanted == json!(found.to_string())
                });
                let acts = body["success"].as_array().expect("something to do").iter();
                let responses: Vec<Value> = match succeeded {
                    true => acts.map(|act| self.act(act)).collect(),
                    false => Vec::new(),
                };
                let revision = self.revision.to_string();
                let header = json!({ "revision": revision });
                json!({ "header": header, "succeeded": succeeded, "responses": responses })
            }
            other => panic!("{other} at {revision}"),
        };
        Ok((200, answer.to_string().into_bytes()))
    }

    fn act(&mut self, act: &Value) -> Value {
        let put = &act["request_put"];
        if !put.is_null() {
            self.revision += 1;
            let lease = put["lease"].as_str().map(str::to_owned);
            let value = put["value"].as_str().expect("a value").to_owned();
            self.keys.insert(text(&put["key"]), (value, self.revision, lease));
            return json!({ "response_put": {} });
        }
        let range = &act["request_range"];
        let start = text(&range["key"]);
        let end = if range["range_end"].is_null() {
            start.clone() + "\0"
        } else {
            text(&range["range_end"])
        };
        let kvs: Vec<Value> = self
            .keys
            .range(start..end)
            .map(|(key, (value, revision, _))| {
                json!({ "key": STANDARD.encode(key), "value": value,
                    "mod_revision": revision.to_string(),
                    // No key is changed by those that make it.
                    "create_revision": revision.to_string() })
            })
            .collect();
        json!({ "response_range": { "kvs": kvs } })
    }

    /// The lease of the one daemon ends.
    fn forget_lease(&mut self) {
        self.leases += 1;
        self.keys.retain(|_, (_, _, lease)| lease.is_none());
    }
}

fn text(coded: &Value) -> String {
    let bytes = decoded(coded.as_str().expect("a text")).expect("base 64");
    String::from_utf8(bytes).expect("keys are text")
}

fn etcd(endpoints: usize, password: Option<&str>) -> Etcd {
    let user = |password: &str| EtcdUser { name: "u".to_owned(), password: password.to_owned() };
    Etcd::new(EtcdConfig {
        endpoints: (0..endpoints).map(|place| format!("http://e{place}:2379")).collect(),
        user: password.map(user),
        fabric: "f".to_owned(),
        incarnation: 77,
    })
}

fn founded(byte: u8) -> Roster {
    let about = NodeAbout {
        name: "h".to_owned(),
        address: "10.9.0.1:7700".parse().expect("an address"),
        release: "1".to_owned(),
        facts: Vec::new(),
    };
    Roster::founded(Identity([byte; 32]), &about, Numbering::Directory)
}

/// Asks until there is nothing to ask. Returns the news.
fn run(
    etcd: &mut Etcd,
    store: &mut Store,
    number: Option<u32>,
    now: Duration,
) -> Vec<DirectoryNews> {
    let mut news = Vec::new();
    for _ in 0..20 {
        let Some(request) = etcd.request(number.map(NodeId), now) else { return news };
        assert_eq!(etcd.request(number.map(NodeId), now), None, "one at a time");
        let answer = store.answer(&request);
        let answer = answer.as_ref().map(|(status, body)| (*status, &body[..]));
        news.extend(etcd.answered(answer.map_err(Clone::clone), now));
    }
    panic!("it asks without an end")
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn of_two_that_change_the_table_at_a_time_one_has_to_read_it_again() {
    let mut store = Store::default();
    let (mut one, mut other) = (etcd(1, None), etcd(1, None));
    let empty = [DirectoryNews::Table { table: None, version: 0, present: BTreeMap::new() }];
    assert_eq!(run(&mut one, &mut store, None, seconds(0)), empty);
    assert_eq!(run(&mut other, &mut store, None, seconds(0)), empty);
    one.propose(founded(1), 0);
    other.propose(founded(2), 0);
    let won = run(&mut one, &mut store, None, seconds(0));
    let lost = run(&mut other, &mut store, None, seconds(0));
    assert_eq!(won, lost, "both use the one that is there");
    let DirectoryNews::Table { table, version: 1, .. } = &won[0] else { panic!("{won:?}") };
    assert_eq!(table, &Some(founded(1)));
}

#[test]
fn the_presence_of_a_daemon_is_told_and_lasts_as_long_as_its_lease() {
    let mut store = Store::default();
    let mut one = etcd(1, None);
    run(&mut one, &mut store, Some(3), seconds(0));
    let seen = |news: &[DirectoryNews]| match news {
        [DirectoryNews::Table { present, .. }] => present.clone(),
        other => panic!("{other:?}"),
    };
    let own = BTreeMap::from([(3, 77)]);
    assert_eq!(seen(&run(&mut one, &mut store, Some(3), seconds(2))), own);
    store.forget_lease();
    assert_eq!(seen(&run(&mut one, &mut store, Some(3), seconds(4))), BTreeMap::new());
    assert_eq!(seen(&run(&mut one, &mut store, Some(3), seconds(6))), own, "told anew");
    // One that is expelled lets its lease end.
    let leases = store.leases;
    run(&mut one, &mut store, None, seconds(7));
    run(&mut one, &mut store, None, seconds(9));
    assert_eq!(one.lease, None, "no lease is renewed");
    store.forget_lease();
    assert_eq!(seen(&run(&mut one, &mut store, Some(3), seconds(11))), BTreeMap::new());
    assert_eq!(store.leases, leases + 2, "another one is asked for");
    assert_eq!(seen(&run(&mut one, &mut store, Some(3), seconds(13))), own);
    // Another start of a daemon does not take it over.
    let mut other = Etcd::new(EtcdConfig { incarnation: 78, ..one.config.clone() });
    run(&mut other, &mut store, Some(3), seconds(13));
    assert_eq!(seen(&run(&mut other, &mut store, Some(3), seconds(15))), own);
}

#[test]
fn an_endpoint_that_fails_is_left_at_once_and_a_fault_is_told_when_all_have_failed() {
    let mut store = Store::default();
    let mut one = etcd(3, None);
    run(&mut one, &mut store, None, seconds(0));
    let Some(request) = one.request(None, seconds(2)) else { panic!("a look is due") };
    assert!(request.url.starts_with("http://e0:"), "{request:?}");
    assert_eq!(one.answered(Err("\x1b[2Jno connection".to_owned()), seconds(2)), None);
    let next = one.request(None, seconds(2)).expect("at once");
    assert!(next.url.starts_with("http://e1:"), "{next:?}");
    assert_eq!(one.answered(Ok((503, b"{\"error\":\"no leader\"}")), seconds(2)), None);
    one.request(None, seconds(2)).expect("the third");
    let told = one.answered(Ok((200, b"<html>")), seconds(2));
    let Some(DirectoryNews::Away(reason)) = told else { panic!("{told:?}") };
    assert!(reason.contains("e2:2379") && reason.contains("not as etcd"), "{reason}");
    assert_eq!(one.request(None, seconds(2)), None, "a pause");
    let news = run(&mut one, &mut store, None, seconds(3));
    assert!(matches!(news[..], [DirectoryNews::Table { .. }]), "{news:?}");
}

#[test]
fn a_user_shows_a_token_and_a_wrong_password_is_told() {
    let mut store = Store::default();
    let mut right = etcd(1, Some("right"));
    let first = right.request(None, seconds(0)).expect("it begins");
    assert!(first.url.ends_with("/auth/authenticate") && first.authorization.is_none());
    let (status, body) = store.answer(&first).expect("there");
    assert_eq!(right.answered(Ok((status, &body)), seconds(0)), None);
    let next = right.request(None, seconds(0)).expect("a lease");
    assert_eq!(next.authorization.as_deref(), Some("t.1"));
    // Tokens end; another one is asked for.
    let old = b"{\"error\":\"etcdserver: invalid auth token\"}";
    assert_eq!(right.answered(Ok((401, old)), seconds(0)), None);
    let again = right.request(None, seconds(0)).expect("at once");
    assert!(again.url.ends_with("/auth/authenticate"), "{again:?}");
    let news = run(&mut etcd(1, Some("wrong")), &mut store, None, seconds(0));
    assert!(matches!(&news[..], [DirectoryNews::Away(reason)] if reason.contains("password")));
    assert!(!format!("{right:?}").contains("right"), "no password in a log");
}

#[test]
fn content_of_others_is_told_and_keys_of_others_are_passed_over() {
    let mut store = Store::default();
    let mut one = etcd(1, None);
    for (key, value) in [("present/x", "1"), ("present/4", "y"), ("present/5", "6")] {
        store.keys.insert(format!("/weft/f/{key}"), (STANDARD.encode(value), 1, None));
    }
    let news = run(&mut one, &mut store, None, seconds(0));
    let DirectoryNews::Table { present, .. } = &news[0] else { panic!("{news:?}") };
    assert_eq!(present, &BTreeMap::from([(5, 6)]));
    let mut twice = founded(1);
    twice.members.push(twice.members[0].clone());
    let twice = serde_json::to_string(&twice).expect("written");
    for (second, garbage) in (1..).zip(["", "garbage", "{}", &twice]) {
        let value = STANDARD.encode(garbage);
        store.keys.insert("/weft/f/table".to_owned(), (value, 1, None));
        let news = run(&mut one, &mut store, None, seconds(2 * second));
        let [DirectoryNews::Away(reason)] = &news[..] else { panic!("{garbage}: {news:?}") };
        assert!(reason.contains("/weft/f/table holds no table"), "{reason}");
    }
}

proptest! {
    #[test]
    fn any_answer_is_taken_and_asking_goes_on(
        answers in proptest::collection::vec(
            "[ !?]([ -~]{0,60}|\\{\"(result|header|ID|token|responses|error|succeeded)\":\
             (\"[0-9]{0,20}\"|\\[\\]|\\{\\}|null|true)\\})",
            1..40,
        ),
    ) {
        let _ = fuzz_answers(answers.join("\n").as_bytes());
    }
}

/// A daemon with its own random number.
fn daemon(incarnation: u64) -> Etcd {
    let mut etcd = etcd(1, None);
    etcd.config.incarnation = incarnation;
    etcd
}

#[test]
fn one_of_several_manages_and_another_follows_when_its_lease_ends() {
    let mut store = Store::default();
    let (mut one, mut other) = (daemon(1), daemon(2));
    let round = |one: &mut Etcd, other: &mut Etcd, store: &mut Store, at: u64| {
        run(one, store, Some(3), seconds(at));
        run(other, store, Some(4), seconds(at));
    };
    assert_eq!(one.lead(), None);
    round(&mut one, &mut other, &mut store, 0);
    round(&mut one, &mut other, &mut store, 2);
    let first = one.lead().expect("it was first");
    assert_eq!((first.until, other.lead()), (seconds(2 + LEASE_SECONDS) - MARGIN, None));
    round(&mut one, &mut other, &mut store, 4);
    let renewed = one.lead().expect("it goes on");
    assert_eq!((renewed.term, renewed.until), (first.term, first.until + seconds(2)));
    // It hears nothing of etcd any more: the end of its lease stays. Then the key goes with that.
    store.is_away = true;
    run(&mut one, &mut store, Some(3), seconds(6));
    store.is_away = false;
    assert_eq!(one.lead(), Some(renewed));
    store.keys.remove("/weft/f/manager");
    for at in [12, 14] {
        run(&mut other, &mut store, Some(4), seconds(at));
    }
    let second = other.lead().expect("it follows");
    assert!(second.term > first.term, "{second:?} after {first:?}");
    run(&mut one, &mut store, Some(3), seconds(14));
    assert_eq!(one.lead(), None, "it sees that another one manages");
}

#[test]
fn without_a_number_or_with_a_strange_key_nobody_manages() {
    let mut store = Store::default();
    let mut etcd = daemon(1);
    for at in [0, 2, 4] {
        run(&mut etcd, &mut store, None, seconds(at));
    }
    assert!(!store.keys.contains_key("/weft/f/manager"));
    let strange = (STANDARD.encode("nobody"), 1, None);
    store.keys.insert("/weft/f/manager".to_owned(), strange);
    for at in [6, 8, 10] {
        run(&mut etcd, &mut store, Some(0), seconds(at));
    }
    assert_eq!(etcd.lead(), None);
}
