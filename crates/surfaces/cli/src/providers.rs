//! The offers of the installed libfabric's providers: a part of `weft info`.

use serde_json::{Value, json};
use weft_libfabric::{Library, Offer, Progress, Wanted};
use weft_options::Options;
use weft_transport_ofi::Ports;

use crate::table::Table;

/// The library's version, the endpoints that serve the fabric, and the provider that is used
/// between hosts, or why there are none.
pub fn json(options: &Options) -> Value {
    let found = Library::load().and_then(|library| {
        let offers = library.offers(&Wanted::default())?;
        let (major, minor) = library.version();
        Ok(json!({
            "version": format!("{major}.{minor}"),
            "endpoints": offers.iter().map(offer).collect::<Vec<_>>(),
            "between_hosts": between_hosts(options),
        }))
    });
    found.unwrap_or_else(|error| json!({ "missing": error.to_string() }))
}

/// The provider that is used between hosts, and why that one.
fn between_hosts(options: &Options) -> Value {
    let wanted = options.fabric_provider();
    let provider = wanted.map(str::to_owned);
    match Ports::between_hosts(Wanted { provider, ..Wanted::default() }) {
        Ok(ports) => json!({
            "provider": ports.wanted.provider,
            "why": match wanted {
                Some(_) => "fabric.provider names it",
                None => "the first that serves more than one host; fabric.provider names another",
            },
        }),
        Err(error) => json!({ "provider": null, "why": error.to_string() }),
    }
}

fn offer(offer: &Offer) -> Value {
    json!({
        "provider": offer.provider(),
        "domain": offer.domain(),
        "fabric": offer.fabric(),
        "inject_bytes": offer.inject_bytes(),
        "operation_bytes_max": offer.operation_bytes_max(),
        "progress": match offer.progress() {
            Progress::Automatic => "auto",
            Progress::Manual => "manual",
        },
    })
}

/// The same for people, a line for each provider.
pub fn text(found: &Value) -> String {
    if let Some(missing) = found["missing"].as_str() {
        return format!("\nlibfabric\n  {missing}\n");
    }
    let version = found["version"].as_str().unwrap_or_default();
    // The providers in the library's order, each with the domains that it has.
    let mut lines: Vec<([String; 3], Vec<String>)> = Vec::new();
    for endpoint in found["endpoints"].as_array().into_iter().flatten() {
        let word = |name: &str| endpoint[name].as_str().unwrap_or_default().to_owned();
        let own = [word("provider"), word("progress"), endpoint["inject_bytes"].to_string()];
        let domain = word("domain");
        match lines.iter_mut().find(|(provider, _)| *provider == own) {
            Some((_, domains)) if domains.contains(&domain) => {}
            Some((_, domains)) => domains.push(domain),
            None => lines.push((own, vec![domain])),
        }
    }
    if lines.is_empty() {
        return format!("\nlibfabric {version}\n  no endpoint here serves the fabric\n");
    }
    let mut table = Table::new(["provider", "progress", "inject bytes", "domains"]);
    for ([provider, progress, inject], domains) in lines {
        table.line([provider, progress, inject, domains.join(", ")]);
    }
    let used = &found["between_hosts"];
    let provider = used["provider"].as_str().unwrap_or("none");
    let why = used["why"].as_str().unwrap_or_default();
    let table = table.section(&format!("libfabric {version}"));
    format!("{table}  between hosts: {provider}, {why}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_provider_has_one_line_with_its_domains() {
        let endpoint = |provider: &str, domain: &str| {
            json!({
                "provider": provider, "domain": domain, "fabric": "f", "inject_bytes": 128,
                "operation_bytes_max": 1, "progress": "auto",
            })
        };
        let all = [endpoint("net", "eth0"), endpoint("verbs", "m"), endpoint("net", "lo")];
        let text = text(&json!({
            "version": "1.17",
            "endpoints": all,
            "between_hosts": { "provider": "net", "why": "it is wanted" },
        }));
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines.contains(&vec!["net", "auto", "128", "eth0,", "lo"]), "{text}");
        assert!(text.contains("between hosts: net, it is wanted\n"), "{text}");
        assert!(lines.contains(&vec!["verbs", "auto", "128", "m"]), "{text}");
        assert!(text.contains("libfabric 1.17"), "{text}");
    }

    #[test]
    fn a_missing_library_and_missing_providers_are_told() {
        let missing = text(&json!({ "missing": "libfabric cannot be loaded" }));
        assert!(missing.contains("cannot be loaded"), "{missing}");
        let none = text(&json!({ "version": "1.17", "endpoints": [] }));
        assert!(none.contains("no endpoint"), "{none}");
    }
}
