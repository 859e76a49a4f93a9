//! The alerts as files that Prometheus and `promtool` read.
//!
//! Upstream:   `alerts`.
//! Downstream: `packaging/prometheus/`.
//!
//! An alert fires in the first test of it, and stays silent in the second.

use std::fmt::Write as _;

use crate::alerts::{ALERTS, Alert};

/// The labels of each series of the tests, in the order in which `promtool` prints them.
const TARGET: &str = "instance=\"cache1:9000\",job=\"kachel\"";
/// The server's name in the sentences of the tests.
const INSTANCE: &str = "cache1:9000";

const HEAD: &str = "# Generated: KACHEL_BLESS=1 cargo test -p kachel-observe --test monitoring\n";

/// The rules.
pub(crate) fn rules() -> String {
    let mut text = format!(
        "{HEAD}#\n\
         # docs/operating.md, Board and alerts, describes these alerts. The job of the servers must\n\
         # have a name that begins with kachel.\n\
         groups:\n  - name: kachel\n    rules:\n"
    );
    for alert in ALERTS {
        let Alert { name, expression, holds, severity, advice, .. } = alert;
        let says = alert.says_with("{{ $labels.instance }}", &alert.shown_as.template());
        let (expression, says, advice) = (quoted(expression), quoted(&says), quoted(advice));
        for line in [
            format!("      - alert: {name}"),
            format!("        expr: {expression}"),
            format!("        for: {holds}"),
            format!("        labels: {{severity: {severity}}}"),
            "        annotations:".into(),
            format!("          summary: {says}"),
            format!("          description: {advice}"),
        ] {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// The tests of the rules.
pub(crate) fn tests() -> String {
    let mut text = format!(
        "{HEAD}#\n# promtool test rules kachel.tests.yml: each alert fires, and stays silent.\n\
         rule_files: [kachel.rules.yml]\nevaluation_interval: 1m\ntests:\n"
    );
    for alert in ALERTS {
        for (series, does_fire) in [(alert.fires, true), (alert.silent, false)] {
            write_test(&mut text, alert, series, does_fire);
        }
    }
    text
}

fn write_test(text: &mut String, alert: &Alert, series: &[(&str, &str)], does_fire: bool) {
    let Alert { name, at, severity, advice, shown, .. } = alert;
    let _ = writeln!(text, "  - interval: 1m\n    input_series:");
    for (series, values) in series {
        let series = match series.strip_suffix('}') {
            Some(series) => format!("{series},{TARGET}}}"),
            None => format!("{series}{{{TARGET}}}"),
        };
        let _ = writeln!(text, "      - series: {}\n        values: {values}", quoted(&series));
    }
    let _ = writeln!(text, "    alert_rule_test:\n      - eval_time: {at}");
    let _ = writeln!(text, "        alertname: {name}");
    if !does_fire {
        return;
    }
    let labels = TARGET.replace("=\"", ": \"").replace(',', ", ");
    let says = quoted(&alert.says_with(INSTANCE, shown));
    for line in [
        "        exp_alerts:".into(),
        format!("          - exp_labels: {{severity: {severity}, {labels}}}"),
        "            exp_annotations:".into(),
        format!("              summary: {says}"),
        format!("              description: {}", quoted(advice)),
    ] {
        text.push_str(&line);
        text.push('\n');
    }
}

/// A text as a scalar of YAML.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
