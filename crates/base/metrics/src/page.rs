//! The page of the documentation.

use crate::METRICS;

/// The text of `docs/metrics.md`.
#[must_use]
pub fn page() -> String {
    let mut text = String::from(
        "# Metrics\n\nThe daemon tells these at `/metrics` with `weft daemon --metrics-listen \
         ADDRESS:PORT`;\n[observing.md](observing.md) says how. The table is made from the one in \
         `crates/base/metrics`:\n`WEFT_WRITE_DOCS=1 cargo test -p weft-metrics` writes it again.\n\
         \n\
         | name | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for metric in METRICS {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        text.push_str(&format!(
            "| `{}` | {} | {} | {} |\n",
            metric.full_name(),
            metric.kind.name(),
            labels.join(", "),
            metric.help
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_of_the_documentation_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/metrics.md");
        if std::env::var_os("WEFT_WRITE_DOCS").is_some() {
            std::fs::write(path, super::page()).expect("the page can be written");
        }
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(page, super::page(), "WEFT_WRITE_DOCS=1 cargo test -p weft-metrics mends it");
    }
}
