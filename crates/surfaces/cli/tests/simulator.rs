//! `weft sim` from outside: arguments, files, exit statuses.

mod place;

use place::{Place, text};

const SCENARIO: &str = r#"topology = "torus:3x3"
[traffic]
pattern = "uniform"
message_bytes = 100
loads = [10]
[run]
warmup_ns = 1000
measure_ns = 5000
"#;

#[test]
fn a_scenario_gives_the_same_bytes_twice_and_another_seed_others() {
    let place = Place::new();
    let path = |name: &str| place.directory.path().join(name).display().to_string();
    let file = path("scenario.toml");
    std::fs::write(&file, SCENARIO).expect("written");
    let run = |json: &str, html: &str, seed: &str| {
        let arguments = ["sim", "run", &file, "--json", json, "--html", html, "--seed", seed];
        let output = place.weft(&arguments).output().expect("weft starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let read = |name: &str| std::fs::read(path(name)).expect("weft wrote it");
    let lines = run(&path("a.json"), &path("a.html"), "7");
    assert!(lines.contains("uniform traffic on torus:3x3"), "{lines}");
    run(&path("b.json"), &path("b.html"), "7");
    assert_eq!(read("a.json"), read("b.json"));
    assert_eq!(read("a.html"), read("b.html"));
    assert_eq!(run("-", &path("c.html"), "7").as_bytes(), read("a.json"));
    assert_ne!(run("-", &path("c.html"), "8").as_bytes(), read("a.json"));
}

#[test]
fn a_fault_of_a_scenario_is_told_with_its_line() {
    let place = Place::new();
    let file = place.directory.path().join("scenario.toml").display().to_string();
    std::fs::write(&file, SCENARIO.replace("uniform", "unform")).expect("written");
    let output = place.weft(&["sim", "run", &file]).output().expect("weft starts");
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(told.contains("line 3") && told.contains("\"unform\" is no pattern"), "{told}");
    let output = place.weft(&["sim", "run", "/nonexistent"]).output().expect("weft starts");
    let told = text(&output.stderr);
    assert!(told.contains("cannot be read; name a scenario"), "{told}");
}

#[test]
fn a_swarm_tells_what_it_did_and_repeats_a_seed() {
    let place = Place::new();
    let weft = |arguments: &[&str]| {
        let output = place.weft(arguments).output().expect("weft starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let lines = weft(&["sim", "swarm", "--seeds", "3", "--from", "5"]);
    assert!(lines.starts_with("seeds 5 to 7: 0 with a violation"), "{lines}");
    let once = weft(&["sim", "swarm", "--seed", "6"]);
    assert!(once.contains("digest "), "{once}");
    assert_eq!(once, weft(&["sim", "swarm", "--seed", "6"]));
    let json = weft(&["sim", "swarm", "--seeds", "2", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!((&json["seeds"], &json["violations"]), (&2.into(), &serde_json::json!([])));
    let none = place.weft(&["sim", "swarm", "--seeds", "0"]).output().expect("weft starts");
    assert!(text(&none.stderr).contains("give --seeds 1 or more"), "{}", text(&none.stderr));
}
