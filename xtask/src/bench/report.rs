//! The table: for people, for programs, for the book.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Run;
use super::machine::Machine;
use super::rows::{Against, Column, Row};
use super::rxe::Comparison;
use super::series::Spread;
use super::standing::Finding;

/// A row with its numbers.
struct Line {
    row: &'static Row,
    ours: String,
    tcp: String,
    raw: String,
    targets: Vec<Verdict>,
}

/// A target and how it was met.
struct Verdict {
    text: String,
    ratio: f64,
    met: Option<bool>,
}

impl Verdict {
    fn show(&self) -> String {
        match self.met {
            Some(met) => {
                format!("{}: {:.2}, {}", self.text, self.ratio, if met { "met" } else { "MISSED" })
            }
            None => format!("{}: not measured", self.text),
        }
    }
}

fn lines(run: &Run) -> Vec<Line> {
    run.rows.iter().map(|row| line(run, row)).collect()
}

fn line(run: &Run, row: &'static Row) -> Line {
    let ours = match run.readings.spread(row.probe, row.metric) {
        Some(spread) => row.metric.show_range(spread),
        None => note(run.failures.get(row.probe)),
    };
    let column = |wanted: Column| {
        let against = row.against.iter().find(|against| against.column == wanted);
        let ratio = against.and_then(|against| ratio(run, row, against, (1.0, 0.0)));
        ratio.map_or(String::new(), |ratio| format!("{:.2}x", ratio.median))
    };
    let targets = row.against.iter().filter_map(|against| verdict(run, row, against)).collect();
    Line { row, ours, tcp: column(Column::Tcp), raw: column(Column::Raw), targets }
}

fn ratio(run: &Run, row: &Row, against: &Against, scale: (f64, f64)) -> Option<Spread> {
    run.readings.ratio((row.probe, row.metric), (against.probe, against.metric), scale)
}

fn verdict(run: &Run, row: &Row, against: &Against) -> Option<Verdict> {
    let target = against.target?;
    let other = match against.column {
        Column::Tcp => "TCP",
        Column::Raw => "raw",
        Column::Other(name) => name,
    };
    let scaled = ratio(run, row, against, target.scale());
    let plain = ratio(run, row, against, (1.0, 0.0));
    Some(Verdict {
        text: format!("{} of {other}", target.show()),
        ratio: plain.map_or(f64::NAN, |ratio| ratio.median),
        met: scaled.map(|scaled| target.is_met_by(scaled.median)),
    })
}

/// Why there is no number. The whole error was shown when it happened.
fn note(failure: Option<&String>) -> String {
    let Some(text) = failure else { return "not measured".into() };
    if text.lines().count() > 1 {
        return "failed".into();
    }
    let mut line = text.clone();
    if line.chars().count() > 28 {
        line = line.chars().take(27).chain(['…']).collect();
    }
    line
}

/// Findings that are no rows.
struct Section<'a> {
    heading: &'a str,
    findings: &'a [Finding],
    notes: &'a [String],
}

fn sections(run: &Run) -> impl Iterator<Item = Section<'_>> {
    let standing = Section { heading: "Standing costs", findings: &run.standing, notes: &[] };
    let rxe = run.rxe.iter().map(|Comparison { heading, findings, notes }| Section {
        heading,
        findings,
        notes,
    });
    std::iter::once(standing)
        .chain(rxe)
        .filter(|section| !section.findings.is_empty() || !section.notes.is_empty())
}

const METHOD: &str = "\
Every row is measured once per round, round after round; a cell is the median of the rounds, with \
the lowest and the highest. Ratios are taken round by round, then their median. Programs and raw \
processes are pinned: left side on CPU 0, right side on CPU 1; a daemon places itself beside its \
program. Throughput is payload. Latency is half a round trip, as perftest and qperf print it; raw \
round trips are whole.";

/// How to read the table.
fn preamble(run: &Run, machine: &Machine) -> String {
    let disturbed: usize = run.disturbed.values().sum();
    format!(
        "{}\n{} rounds, {disturbed} readings disturbed by other work in spite of repetitions.\n",
        machine.line(),
        run.rounds
    )
}

pub(super) fn text(run: &Run, machine: &Machine) -> String {
    let mut text = format!("\n{}", preamble(run, machine));
    let mut group = "";
    for line in lines(run) {
        if line.row.group != group {
            group = line.row.group;
            let _ = writeln!(text, "\n{group:<82}{:>8}{:>8}  target", "/ TCP", "/ raw");
        }
        let verdicts: Vec<_> = line.targets.iter().map(Verdict::show).collect();
        let _ = writeln!(
            text,
            "  {:<52}{:>28}{:>8}{:>8}  {}",
            line.row.title,
            line.ours,
            line.tcp,
            line.raw,
            verdicts.join("; ")
        );
    }
    for Section { heading, findings, notes } in sections(run) {
        let _ = writeln!(text, "\n{heading}");
        for finding in findings {
            let Finding { title, value, .. } = finding;
            let _ = writeln!(text, "  {title:<52}{value:>28}{:>16}  {}", "", finding.verdict());
        }
        for note in notes {
            let _ = writeln!(text, "  {note}");
        }
    }
    text
}

pub(super) fn markdown(run: &Run, machine: &Machine) -> String {
    let mut text = format!(
        "# Performance\n\nWritten by `cargo xtask bench --write`. {METHOD}\n\n{}",
        preamble(run, machine)
    );
    let mut group = "";
    for line in lines(run) {
        if line.row.group != group {
            group = line.row.group;
            let _ = write!(
                text,
                "\n## {group}\n\n| | measured | / TCP | / raw | target |\n|---|---|---|---|---|\n"
            );
        }
        let verdicts: Vec<_> = line.targets.iter().map(Verdict::show).collect();
        let Line { row, ours, tcp, raw, .. } = &line;
        let _ =
            writeln!(text, "| {} | {ours} | {tcp} | {raw} | {} |", row.title, verdicts.join("; "));
    }
    for Section { heading, findings, notes } in sections(run) {
        let _ = write!(text, "\n## {heading}\n\n| | measured | target |\n|---|---|---|\n");
        for finding in findings {
            let Finding { title, value, .. } = finding;
            let _ = writeln!(text, "| {title} | {value} | {} |", finding.verdict());
        }
        for (index, note) in notes.iter().enumerate() {
            let _ = writeln!(text, "{}- {note}", if index == 0 { "\n" } else { "" });
        }
    }
    text
}

pub(super) fn json(run: &Run, machine: &Machine) -> Value {
    let rows = run.rows.iter().map(|row| {
        let spread = run.readings.spread(row.probe, row.metric);
        let ratios = row.against.iter().map(|against| {
            let ratio = ratio(run, row, against, (1.0, 0.0));
            json!({
                "to": against.probe,
                "ratio": ratio.map(|ratio| [ratio.median, ratio.min, ratio.max]),
                "target": against.target.map(|target| target.show()),
                "met": verdict(run, row, against).and_then(|verdict| verdict.met),
            })
        });
        json!({
            "group": row.group,
            "title": row.title,
            "probe": row.probe,
            "metric": format!("{:?}", row.metric),
            "value": spread.map(|spread| [spread.median, spread.min, spread.max]),
            "ratios": ratios.collect::<Vec<_>>(),
            "disturbed": run.disturbed.get(row.probe),
            "failure": run.failures.get(row.probe),
        })
    });
    let list = |findings: &[Finding]| -> Vec<Value> {
        let one = |f: &Finding| json!({"title": f.title, "value": f.value, "met": f.met, "ratio": f.ratio});
        findings.iter().map(one).collect()
    };
    let comparison = |Comparison { heading, findings, notes }: &Comparison| json!({"heading": heading, "findings": list(findings), "notes": notes});
    json!({
        "machine": machine.line(),
        "rounds": run.rounds,
        "rows": rows.collect::<Vec<_>>(),
        "standing": list(&run.standing),
        "rxe": run.rxe.iter().map(comparison).collect::<Vec<_>>(),
    })
}
