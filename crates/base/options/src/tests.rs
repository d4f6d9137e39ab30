//! Tests of the table and of building values from it.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::table::ACCESSORS;

fn from_environment(name: &str, value: &str) -> (Options, Vec<Problem>) {
    Options::from_environment([(name, value)])
}

#[test]
fn the_table_is_in_the_order_of_its_ids_and_its_defaults_are_valid() {
    for (place, entry) in TABLE.iter().enumerate() {
        assert_eq!(entry.id as usize, place, "{}", entry.name);
        let (options, problems) = from_environment(&entry.variable(), &entry.kind.default_text());
        assert_eq!(problems, [], "{}", entry.name);
        assert_eq!(options.text(entry.id), Options::default().text(entry.id));
        assert!(entry.text.contains("emory"), "{} states its memory", entry.name);
    }
}

#[test]
fn accessors_return_the_defaults_of_the_table() {
    let options = Options::default();
    assert_eq!(options.shm_ring_slots(), 256);
    assert_eq!((options.shm_spin_us(), options.shm_yields()), (2, 100));
    assert_eq!(options.shm_copy(), CopyMethod::Auto);
    assert!(options.socket_enable());
    assert_eq!(options.socket_eager_bytes(), 480);
    assert_eq!(options.socket_sink_bytes(), 262_144);
    assert_eq!(options.socket_chunk_bytes(), 16_384);
    assert_eq!((options.socket_switch_calls(), options.socket_switch_bytes()), (4, 32_768));
    assert_eq!(options.socket_switch_wait_us(), 1_000);
    assert_eq!((options.socket_lanes_max(), options.socket_idle_ms()), (1_536, 250));
    assert_eq!(options.socket_lanes_kept(), 8);
    assert_eq!(options.socket_between_hosts(), BetweenHosts::Auto);
    assert_eq!(options.daemon_endpoints_max(), 256);
    assert_eq!(options.daemon_connections_max(), 16_384);
    assert_eq!(options.daemon_socket(), None);
    assert!(!options.daemon_allow().contain(0, &[0]));
    assert_eq!(options.daemon_trust_uid(), 0);
    assert_eq!((options.metrics_listen(), options.dash_listen()), (None, None));
    assert_eq!((options.fabric_listen(), options.fabric_seeds()), (None, Vec::new()));
    assert_eq!((options.fabric_etcd(), options.fabric_etcd_ca()), (Vec::new(), None));
    assert_eq!((options.fabric_etcd_cert(), options.fabric_etcd_key()), (None, None));
    assert_eq!((options.fabric_etcd_user(), options.fabric_etcd_password()), (None, None));
    assert_eq!(options.fabric_ports(), None);
    assert_eq!((options.fabric_key(), options.fabric_name()), (None, None));
    assert_eq!((options.fabric_file(), options.fabric_state()), (None, None));
    assert_eq!(options.fabric_transport(), TransportChoice::Auto);
    assert_eq!((options.fabric_provider(), options.fabric_device()), (None, None));
    assert_eq!(options.fabric_host(), None);
    assert_eq!(options.fabric_silence_ms(), Duration::from_secs(5));
}

#[test]
fn ids_and_accessors_are_called_as_their_options() {
    for entry in TABLE {
        let camel: String = entry.name.split(['.', '_']).map(capital).collect();
        assert_eq!(format!("{:?}", entry.id), camel);
    }
    for (name, accessor) in ACCESSORS {
        assert_eq!(name.replace('.', "_"), *accessor);
    }
    assert!(ACCESSORS.len() + 1 >= TABLE.len(), "an option without an accessor");
}

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_ascii_uppercase() + rest
}

#[test]
fn no_two_options_share_a_name_old_or_new() {
    let names = TABLE.iter().flat_map(|entry| {
        std::iter::once(entry.name).chain(entry.old_names.iter().copied()).map(variable)
    });
    let mut names: Vec<String> = names.collect();
    names.extend(OTHER_VARIABLES.iter().map(|other| other.name.to_owned()));
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "{names:?}");
}

#[test]
fn addresses_are_checked_when_they_are_set() {
    let (options, problems) = from_environment("WEFT_FABRIC_SEEDS", "10.9.0.1:7700, [::1]:7,");
    assert_eq!(problems, []);
    assert_eq!(options.fabric_seeds().len(), 2);
    let named =
        from_environment("WEFT_FABRIC_SEEDS", "first:7700, n-1.example.:7,[::ffff:10.9.0.1]:9");
    assert_eq!(named.1, []);
    let told: Vec<String> = named.0.fabric_seeds().iter().map(ToString::to_string).collect();
    assert_eq!(told, ["first:7700", "n-1.example.:7", "10.9.0.1:9"]);
    let listen = from_environment("WEFT_FABRIC_LISTEN", "[::ffff:10.9.0.1]:7700").0.fabric_listen();
    assert_eq!(listen, "10.9.0.1:7700".parse().ok(), "it is an IPv4 address");
    let many = vec!["10.9.0.1:7700"; 65].join(",");
    for (name, value) in [
        ("WEFT_FABRIC_LISTEN", "10.9.0.1"),
        ("WEFT_FABRIC_LISTEN", "host:7700"),
        ("WEFT_FABRIC_SEEDS", "10.9.0.1:7700 10.9.0.2:7700"),
        ("WEFT_FABRIC_SEEDS", &many),
        ("WEFT_FABRIC_SEEDS", "first"),
        ("WEFT_FABRIC_SEEDS", "first:0"),
        ("WEFT_FABRIC_SEEDS", "10.9.0.300:7700"),
        ("WEFT_FABRIC_SEEDS", "fe80::1:7700"),
        ("WEFT_FABRIC_NAME", "a\nb"),
    ] {
        let (options, problems) = from_environment(name, value);
        assert_eq!(problems.len(), 1, "{name}={value}");
        assert_eq!((options.fabric_listen(), options.fabric_seeds()), (None, Vec::new()));
    }
}

#[test]
fn urls_are_those_of_servers_and_ports_are_a_range() {
    let (options, problems) =
        from_environment("WEFT_FABRIC_ETCD", "http://10.9.0.1:2379, https://e.example:2379/,");
    assert_eq!(problems, []);
    assert_eq!(options.fabric_etcd(), ["http://10.9.0.1:2379", "https://e.example:2379"]);
    let (options, problems) = from_environment("WEFT_FABRIC_PORTS", "7710-7790");
    assert_eq!((problems, options.fabric_ports()), (vec![], Some(7710..=7790)));
    let many = vec!["http://e:1"; 17].join(",");
    for (name, value) in [
        ("WEFT_FABRIC_ETCD", "10.9.0.1:2379"),
        ("WEFT_FABRIC_ETCD", "ftp://e:1"),
        ("WEFT_FABRIC_ETCD", "http://"),
        ("WEFT_FABRIC_ETCD", "http://e:1/v3"),
        ("WEFT_FABRIC_ETCD", "http://user@e:1"),
        ("WEFT_FABRIC_ETCD", &many),
        ("WEFT_FABRIC_PORTS", "7710"),
        ("WEFT_FABRIC_PORTS", "0-7"),
        ("WEFT_FABRIC_PORTS", "8-7"),
        ("WEFT_FABRIC_PORTS", "7-65536"),
    ] {
        let (options, problems) = from_environment(name, value);
        assert_eq!(problems.len(), 1, "{name}={value}");
        assert_eq!((options.fabric_etcd(), options.fabric_ports()), (Vec::new(), None));
    }
}

#[test]
fn durations_have_a_unit_of_time() {
    let options = Options::default();
    assert_eq!(options.ether_coalesce(), Duration::from_micros(50));
    assert_eq!(options.ether_learn_ms(), Duration::from_secs(12));
}

#[test]
fn an_old_name_counts_and_is_told_with_the_new_one() {
    let (options, problems) = from_environment("WEFT_SOCKET_REST_MS", "7");
    assert_eq!(options.socket_idle_ms(), 7);
    assert!(problems[0].is_warning());
    assert_eq!(
        problems[0].to_string(),
        "WEFT_SOCKET_REST_MS is an old name and will go; write WEFT_SOCKET_IDLE_MS in its place"
    );
    let mut builder = Builder::new();
    builder.file("a.toml", "[socket]\nrest_ms = 8\n");
    let (options, problems) = builder.clone().finish();
    assert_eq!(options.socket_idle_ms(), 8);
    assert_eq!(
        problems[0].to_string(),
        "a.toml: socket.rest_ms is an old name and will go; write socket.idle_ms in its place"
    );
    let (options, problems) = builder.flag("socket.rest_ms", "9").clone().finish();
    assert_eq!(options.socket_idle_ms(), 9);
    assert_eq!(
        problems[1].to_string(),
        "--socket-rest-ms is an old name and will go; write --socket-idle-ms in its place"
    );
    let given: Vec<_> = options.to_environment().collect();
    assert_eq!(given, [("WEFT_SOCKET_IDLE_MS".to_owned(), "9".to_owned())]);
    assert_eq!(old_variables().collect::<Vec<_>>(), ["WEFT_SOCKET_REST_MS"]);
}

#[test]
fn an_old_name_is_beaten_by_the_new_one_from_the_same_place_and_beats_lesser_places() {
    let (old, new) = (("WEFT_SOCKET_REST_MS", "1"), ("WEFT_SOCKET_IDLE_MS", "2"));
    for pairs in [[old, new], [new, old]] {
        assert_eq!(Options::from_environment(pairs).0.socket_idle_ms(), 2);
    }
    let mut builder = Builder::new();
    builder.file("a.toml", "[socket]\nidle_ms = 3\n").environment([old]);
    assert_eq!(builder.finish().0.socket_idle_ms(), 1);
}

#[test]
fn a_wrong_value_under_an_old_name_is_refused_by_that_name() {
    let (options, problems) = from_environment("WEFT_SOCKET_REST_MS", "soon");
    assert_eq!(options.socket_idle_ms(), 250);
    assert!(problems.iter().any(|problem| !problem.is_warning()
        && problem.to_string().starts_with("WEFT_SOCKET_REST_MS=\"soon\" is not valid")));
}

#[test]
fn a_value_for_a_file_reads_back_whatever_it_holds() {
    for path in ["", "/a b/c.sock", "/quote\"/back\\slash", "/\u{7f}\t\u{1b}"] {
        let mut builder = Builder::new();
        builder.flag("daemon.socket", path).flag("shm.copy", "plain");
        let (options, problems) = builder.finish();
        assert_eq!(problems, [], "{path:?}");
        let mut reader = Builder::new();
        reader.file(
            "f",
            &format!(
                "[daemon]\nsocket = {}\n[shm]\ncopy = {}\n",
                options.file_value(Id::DaemonSocket),
                options.file_value(Id::ShmCopy)
            ),
        );
        let (again, problems) = reader.finish();
        assert_eq!(problems, [], "{path:?}");
        assert_eq!(again.text(Id::DaemonSocket), path);
        assert_eq!(again.shm_copy(), CopyMethod::Plain);
    }
}

#[test]
fn names_follow_from_the_table() {
    let entry = Id::SocketSwitchWaitUs.entry();
    assert_eq!(entry.variable(), "WEFT_SOCKET_SWITCH_WAIT_US");
    assert_eq!(entry.flag(), "socket-switch-wait-us");
    assert_eq!(entry.file_key(), ("socket", "switch_wait_us"));
    assert_eq!((entry.with_unit("1"), entry.placeholder()), ("1 us".into(), "US".into()));
    assert_eq!(Id::EtherQueues.entry().with_unit("1"), "1 queue");
    assert_eq!(Id::EtherQueues.entry().with_unit("2"), "2 queues");
    assert_eq!(Id::DaemonSocket.entry().with_unit(""), "nothing");
    assert_eq!(Id::DaemonSocket.entry().placeholder(), "VALUE");
}

#[test]
fn flags_beat_the_environment_which_beats_the_file_in_any_order() {
    let mut builder = Builder::new();
    builder.flag("shm.spin_us", "3");
    builder.environment([("WEFT_SHM_SPIN_US", "4"), ("WEFT_SHM_YIELDS", "5")]);
    builder.file("a.toml", "[shm]\nspin_us = 6\nyields = 7\nring_slots = 512\n");
    let (options, problems) = builder.finish();
    assert_eq!(problems, []);
    assert_eq!((options.shm_spin_us(), options.origin(Id::ShmSpinUs)), (3, &Origin::Flag));
    assert_eq!((options.shm_yields(), options.origin(Id::ShmYields)), (5, &Origin::Environment));
    assert_eq!(options.shm_ring_slots(), 512);
    assert_eq!(options.origin(Id::ShmRingSlots).to_string(), "file a.toml");
    assert_eq!(options.origin(Id::ShmCopy), &Origin::Default);
}

#[test]
fn an_unknown_variable_is_a_warning_with_the_nearest_name() {
    let (options, problems) = from_environment("WEFT_SOCKET_EAGER_BYTE", "1");
    assert_eq!(options, Options::default());
    assert!(problems[0].is_warning());
    assert_eq!(
        problems[0].to_string(),
        "WEFT_SOCKET_EAGER_BYTE is not known; did you mean WEFT_SOCKET_EAGER_BYTES?"
    );
    assert_eq!(from_environment("WEFTY", "1").1, []);
    assert_eq!(from_environment("WEFT_LOG", "debug").1, []);
}

#[test]
fn a_value_out_of_range_is_an_error_that_names_the_range() {
    let (options, problems) = from_environment("WEFT_SHM_RING_SLOTS", "100");
    assert_eq!(options.shm_ring_slots(), 256);
    assert!(!problems[0].is_warning());
    assert_eq!(
        problems[0].to_string(),
        "WEFT_SHM_RING_SLOTS=\"100\" is not valid; allowed is a power of two from 16 to 65536 \
         (`weft config explain shm.ring_slots` says more)"
    );
    for (name, value) in [
        ("WEFT_SHM_SPIN_US", "1001"),
        ("WEFT_SHM_SPIN_US", "-1"),
        ("WEFT_SHM_SPIN_US", ""),
        ("WEFT_SHM_COPY", "fast"),
        ("WEFT_SOCKET_ENABLE", "maybe"),
        ("WEFT_DAEMON_SOCKET", "relative.sock"),
        ("WEFT_SHM_RING_SLOTS", "99999999999999999999999"),
    ] {
        assert_eq!(from_environment(name, value).1.len(), 1, "{name}={value}");
    }
}

#[test]
fn a_file_may_hold_every_type() {
    let mut builder = Builder::new();
    let text = "[shm]\ncopy = 'plain'\n[socket]\nenable = false\n[daemon]\nsocket = '/x/y'\n";
    builder.file("weft.toml", text);
    let (options, problems) = builder.finish();
    assert_eq!(problems, []);
    assert_eq!(options.shm_copy(), CopyMethod::Plain);
    assert!(!options.socket_enable());
    assert_eq!(options.daemon_socket(), Some("/x/y"));
}

#[test]
fn a_bad_file_says_where() {
    let mut builder = Builder::new();
    builder.file("a.toml", "[shm\n");
    builder.file("b.toml", "[shm]\nspin = 3\n[sea]\nx = 1\n");
    builder.file("c.toml", "[shm]\nspin_us = 5000\n");
    let problems: Vec<String> = builder.finish().1.iter().map(ToString::to_string).collect();
    assert!(problems[0].starts_with("a.toml cannot be read: TOML parse error at line 1"));
    assert!(problems[1..3].iter().any(|text| text.starts_with("b.toml: shm.spin is not known")));
    assert!(problems[1..3].iter().any(|text| text.starts_with("b.toml: sea.x is not known")));
    assert!(problems[3].starts_with("c.toml: shm.spin_us=\"5000\" is not valid"));
}

#[test]
fn what_is_no_default_can_be_passed_on_to_a_program() {
    let mut builder = Builder::new();
    builder.flag("socket.enable", "off").flag("shm.copy", "nontemporal");
    let (options, _) = builder.finish();
    let pairs: Vec<_> = options.to_environment().collect();
    assert_eq!(pairs.len(), 2);
    let (same, problems) = Options::from_environment(pairs);
    assert_eq!(problems, []);
    assert!(!same.socket_enable());
    assert_eq!(same.shm_copy(), CopyMethod::NonTemporal);
}

#[test]
fn a_chunk_is_never_longer_than_the_sink() {
    let pairs = [("WEFT_SOCKET_SINK_BYTES", "16384"), ("WEFT_SOCKET_CHUNK_BYTES", "1048576")];
    assert_eq!(Options::from_environment(pairs).0.socket_chunk_bytes(), 16_384);
}

proptest! {
    #[test]
    fn no_text_breaks_the_builder_or_leaves_the_range(
        place in 0..TABLE.len(), value in ".{0,40}", file in ".{0,200}",
    ) {
        let mut builder = Builder::new();
        builder.environment([(TABLE[place].variable(), value.clone())]);
        builder.file("f", &file).flag(TABLE[place].name, &value);
        let (options, _) = builder.finish();
        for entry in TABLE {
            let (_, problems) = Options::from_environment([
                (entry.variable(), options.text(entry.id)),
            ]);
            prop_assert_eq!(problems, []);
        }
    }

    #[test]
    fn every_number_is_accepted_exactly_in_its_range(number in 0_u64..2_000_000) {
        for entry in TABLE {
            let Kind::Integer { minimum, maximum, power_of_two, .. } = entry.kind else {
                continue;
            };
            let fits = (minimum..=maximum).contains(&number)
                && (!power_of_two || number.is_power_of_two());
            let (_, problems) = from_environment(&entry.variable(), &number.to_string());
            prop_assert_eq!(problems.is_empty(), fits, "{}", entry.name);
        }
    }
}

#[test]
fn rules_for_services_are_checked_when_they_are_set() {
    let mut builder = Builder::new();
    builder.file("a.toml", "[daemon]\nservices = \"\"\"\n1:kv:any\n2:job-*:3,4\n\"\"\"\n");
    let (options, problems) = builder.clone().finish();
    assert!(problems.is_empty(), "{problems:?}");
    assert!(options.daemon_services().may_use(4, 2, "job-1"));
    let (same, problems) = Options::from_environment(options.to_environment());
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(same.daemon_services(), options.daemon_services());
    let (options, problems) = builder.flag("daemon.services", "1:kv").clone().finish();
    assert!(options.daemon_services().may_use(9, 1, "kv"), "the former value stays");
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert!(problem.to_string().contains("rules OWNER:NAME:USERS"), "{problem}");
}
