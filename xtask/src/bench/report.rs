//! The table: as text, as JSON and as docs/performance.md.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Run;
use super::idle_cost::Finding;
use super::latency_floor::{self, Floor};
use super::machine::Machine;
use super::rows::{Against, Column, LATENCY, Row};
use super::rxe::Comparison;
use super::series::Spread;

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
    /// The same ratio of the mechanism without an engine, where that misses the target too.
    limit: Option<f64>,
}

impl Verdict {
    fn show(&self) -> String {
        let Self { text, ratio, met, limit } = self;
        match (met, limit) {
            (Some(true), _) => format!("{text}: {ratio:.2}, met"),
            (Some(false), None) => format!("{text}: {ratio:.2}, MISSED"),
            (Some(false), Some(limit)) => {
                format!("{text}: {ratio:.2}, MISSED, as by raw: {limit:.2}")
            }
            (None, _) => format!("{text}: not measured"),
        }
    }
}

fn verdicts(targets: &[Verdict]) -> String {
    targets.iter().map(Verdict::show).collect::<Vec<_>>().join("; ")
}

impl Line {
    fn shares_group_with(&self, other: &Self) -> bool {
        self.row.group == other.row.group
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
        limit: limit(run, row, against),
    })
}

/// How the mechanism alone compares, where it does not meet the row's target either.
fn limit(run: &Run, row: &Row, against: &Against) -> Option<f64> {
    let target = against.target.filter(|_| against.column == Column::Tcp)?;
    let (probe, metric, share) = row.limit()?;
    let other = (against.probe, against.metric);
    let of = |scale| run.readings.ratio((probe, metric), other, scale);
    let (factor, offset) = target.scale();
    let scaled = of((factor / share, offset / share))?;
    (!target.is_met_by(scaled.median)).then_some(of((1.0 / share, 0.0))?.median)
}

/// Why there is no number. The full error was printed when it happened.
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

/// Results that are not rows.
struct Section<'a> {
    heading: &'a str,
    findings: &'a [Finding],
    notes: &'a [String],
}

fn sections(run: &Run) -> impl Iterator<Item = Section<'_>> {
    let idle_cost = Section { heading: "Standing costs", findings: &run.idle_cost, notes: &[] };
    let rxe = run.rxe.iter().map(|Comparison { heading, findings, notes }| Section {
        heading,
        findings,
        notes,
    });
    std::iter::once(idle_cost)
        .chain(rxe)
        .filter(|section| !section.findings.is_empty() || !section.notes.is_empty())
}

const METHOD: &str = "\
Every row is measured once per round, round after round, and its raw limit shortly before it; a \
cell is the median of the rounds, with the lowest and the highest. Ratios are taken round by \
round, then their median. A reading counts when the CPUs were as far from each other as usual before and after \
it: a cache line took between half and twice its median time to the other CPU and back. Programs and raw \
processes are pinned: left side on CPU 0, right side on CPU 1; a daemon places itself beside its \
program. Throughput is payload. Latency is half a round trip, as perftest and qperf print it; raw \
round trips are whole.";

/// How to read the table.
fn preamble(run: &Run, machine: &Machine) -> String {
    let [disturbed, left_out] =
        [&run.disturbed, &run.left_out].map(|counts| counts.values().sum::<usize>());
    format!(
        "{}\n{} rounds; {disturbed} readings were disturbed by other work in spite of repetitions, \
         {left_out} are missing because the CPUs were not as far apart as usual.\n",
        machine.line(),
        run.rounds
    )
}

pub(super) fn text(run: &Run, machine: &Machine) -> String {
    let mut text = format!("\n{}", preamble(run, machine));
    for lines in lines(run).chunk_by(Line::shares_group_with) {
        let group = lines[0].row.group;
        let _ = writeln!(text, "\n{group:<82}{:>8}{:>8}  target", "/ TCP", "/ raw");
        for Line { row, ours, tcp, raw, targets } in lines {
            let _ = writeln!(
                text,
                "  {:<52}{ours:>28}{tcp:>8}{raw:>8}  {}",
                row.title,
                verdicts(targets)
            );
        }
        floor_text(&mut text, &latency_floor::below(group, &run.readings, machine.cpus));
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

fn floor_text(text: &mut String, floors: &[Floor]) {
    if floors.is_empty() {
        return;
    }
    let (heading, method) = latency_floor::about(floors);
    let _ = writeln!(text, "\n{heading}");
    for floor in floors {
        let Floor { title, wire, switches, poke, measured, ack, allowed: _ } = floor;
        let _ = writeln!(
            text,
            "  {title:<24}{wire:.2} wire + {switches:.2} threads + {poke:.2} memory = {:.2} us; \
             measured {measured:.2} us, {:.2} us more{}{}",
            floor.total(),
            floor.above(),
            ack.map_or(String::new(), |ack| format!(", {ack:.2} of it the ACK's frame")),
            floor.left().map_or(String::new(), |left| format!("; the target leaves {left:.2} us"))
        );
    }
    let _ = writeln!(text, "  {method}");
}

fn floor_markdown(text: &mut String, floors: &[Floor]) {
    if floors.is_empty() {
        return;
    }
    let (heading, method) = latency_floor::about(floors);
    let _ = write!(
        text,
        "\n## {heading}\n\n{method}\n\n| us | half the raw round trip | two changes of threads | 8 bytes by \
         process_vm | floor | measured | difference | of it the ACK's frame | target | it leaves |\n\
         |---|---|---|---|---|---|---|---|---|---|\n"
    );
    for floor in floors {
        let Floor { title, wire, switches, poke, measured, ack, allowed } = floor;
        let show = |us: Option<f64>| us.map_or(String::new(), |us| format!("{us:.2}"));
        let _ = writeln!(
            text,
            "| {title} | {wire:.2} | {switches:.2} | {poke:.2} | {:.2} | {measured:.2} | {:.2} | {} | {} | {} |",
            floor.total(),
            floor.above(),
            show(*ack),
            show(*allowed),
            show(floor.left())
        );
    }
}

pub(super) fn markdown(run: &Run, machine: &Machine) -> String {
    let mut text = format!(
        "# Performance\n\nWritten by `cargo xtask bench --write`. {METHOD}\n\n{}",
        preamble(run, machine)
    );
    for lines in lines(run).chunk_by(Line::shares_group_with) {
        let group = lines[0].row.group;
        let _ = write!(
            text,
            "\n## {group}\n\n| | measured | / TCP | / raw | target |\n|---|---|---|---|---|\n"
        );
        for Line { row, ours, tcp, raw, targets } in lines {
            let title = row.title;
            let _ = writeln!(text, "| {title} | {ours} | {tcp} | {raw} | {} |", verdicts(targets));
        }
        floor_markdown(&mut text, &latency_floor::below(group, &run.readings, machine.cpus));
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
                "raw_ratio_that_misses_too": limit(run, row, against),
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
            "left_out": run.left_out.get(row.probe),
            "failure": run.failures.get(row.probe),
        })
    });
    let list = |findings: &[Finding]| -> Vec<Value> {
        let one = |f: &Finding| json!({"title": f.title, "value": f.value, "met": f.met, "ratio": f.ratio});
        findings.iter().map(one).collect()
    };
    let comparison = |Comparison { heading, findings, notes }: &Comparison| json!({"heading": heading, "findings": list(findings), "notes": notes});
    let floors = latency_floor::below(LATENCY, &run.readings, machine.cpus).into_iter();
    let floor = |f: Floor| json!({"title": f.title, "wire": f.wire, "switches": f.switches, "poke": f.poke, "measured": f.measured, "ack": f.ack});
    json!({
        "machine": machine.line(),
        "rounds": run.rounds,
        "rows": rows.collect::<Vec<_>>(),
        "floors": floors.map(floor).collect::<Vec<_>>(),
        "standing": list(&run.idle_cost),
        "rxe": run.rxe.iter().map(comparison).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::series::Metric::{self, Bytes, P50};

    /// How a row's target against TCP is told, by what was read of it, of raw and of TCP.
    fn told(probe: &'static str, metric: Metric, readings: [f64; 3]) -> String {
        let mut run = Run::choose(&[], 1);
        let row = *run.rows.iter().find(|r| r.probe == probe && r.metric == metric).unwrap();
        let against = row.against.iter().find(|against| against.column == Column::Tcp).unwrap();
        let (raw, of_raw, _) = row.limit().unwrap();
        let read = [(probe, metric), (raw, of_raw), (against.probe, against.metric)];
        for ((probe, metric), value) in read.into_iter().zip(readings) {
            run.readings.add(probe, metric, 0, value);
        }
        verdict(&run, row, against).unwrap().show()
    }

    #[test]
    fn a_target_that_raw_misses_too_says_so() {
        let bulk = |readings| told("function/write-1m", Bytes, readings);
        assert_eq!(bulk([5.0, 6.0, 2.0]), ">= 2 of TCP: 2.50, met");
        assert_eq!(bulk([3.0, 6.0, 2.0]), ">= 2 of TCP: 1.50, MISSED");
        assert_eq!(bulk([3.0, 3.5, 2.0]), ">= 2 of TCP: 1.50, MISSED, as by raw: 1.75");
        // Half of a round trip.
        let latency = |readings| told("function/send-lat", P50, readings);
        assert_eq!(latency([5.0, 7.0, 20.0]), "<= 0.2 of TCP: 0.25, MISSED");
        assert_eq!(latency([5.0, 9.0, 20.0]), "<= 0.2 of TCP: 0.25, MISSED, as by raw: 0.23");
    }

    #[test]
    fn floors_fill_the_columns_of_their_table() {
        let floor = Floor {
            title: "WRITE",
            wire: 3.0,
            switches: 1.5,
            poke: 0.5,
            measured: 8.0,
            ack: Some(0.75),
            allowed: Some(6.5),
        };
        let mut text = String::new();
        floor_markdown(&mut text, &[floor, Floor { ack: None, allowed: None, ..floor }]);
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            rows[2],
            "| WRITE | 3.00 | 1.50 | 0.50 | 5.00 | 8.00 | 3.00 | 0.75 | 6.50 | 0.75 |"
        );
        let columns = |row: &&str| row.matches('|').count();
        assert!(rows.iter().all(|row| columns(row) == columns(&rows[2])), "{text}");
    }
}
