//! A story for a terminal.

use rnic_page::{Block, Flight, Kind, Step, Story};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Columns of a terminal.
const WIDTH: usize = 80;
/// Columns before what a step says.
const MARGIN: usize = 14;
/// Columns between the two lines of a ladder.
const SPAN: usize = 54;
/// Rules of a step that are shown with what they say.
pub(crate) const FEW_RULES: usize = 3;
/// Bytes in a row of a block.
const ROW: usize = 16;
/// Bytes of a block that are shown.
const MOST_BYTES: usize = 32;

/// What of a story was shown, so that nothing has to be said twice.
#[derive(Debug, Default)]
struct Shown {
    /// Every block with all its fields, also those like earlier ones.
    all_bytes: bool,
    said: BTreeSet<String>,
}

/// The whole story. Of blocks that are alike the first is shown, unless all bytes are wanted.
///
/// The answer to its question is not there: a reader should think first.
pub fn text(story: &Story, all_bytes: bool) -> String {
    let hint = format!("Answer: rnic lab {} --answer\n", story.name);
    format!("{}{hint}\n{}", told(story, all_bytes).concat(), next(story))
}

/// The answer to the question.
pub fn answer(story: &Story) -> String {
    wrapped(story.question.as_ref().map_or("", |question| &question.answer), 0)
}

/// The parts of the story between which a reader may pause: the beginning, each step, the question,
/// the answer and what to try next.
pub fn parts(story: &Story, all_bytes: bool) -> Vec<String> {
    let mut parts = told(story, all_bytes);
    parts.push(format!("Answer:\n{}\n{}", answer(story), next(story)));
    parts
}

/// Everything up to the question.
fn told(story: &Story, all_bytes: bool) -> Vec<String> {
    let mut shown = Shown { all_bytes, ..Shown::default() };
    let mut parts = vec![before(story)];
    parts.extend(story.steps.iter().map(|step| shown.step(story, step)));
    parts.push(question(story));
    parts
}

fn before(story: &Story) -> String {
    let mut text = format!("{}: {}\n\n", story.name, story.title);
    for paragraph in &story.about {
        text += &wrapped(paragraph, 0);
        text += "\n";
    }
    for host in &story.hosts {
        // Writing to a string does not fail, here and below.
        let _ = writeln!(text, "{} is {}.", host.name, host.address);
    }
    text + "\n      us\n"
}

fn question(story: &Story) -> String {
    let mut text = "\nThe packets:\n\n".to_owned();
    text += &ladder(story);
    if let Some(question) = &story.question {
        text += "\n";
        text += &wrapped(&format!("Question: {}", question.ask), 0);
    }
    text
}

fn next(story: &Story) -> String {
    let commands = story.next.iter().map(|command| format!("  {command}\n"));
    format!("Try next:\n{}", commands.collect::<String>())
}

impl Shown {
    fn step(&mut self, story: &Story, step: &Step) -> String {
        let time = time(step.at);
        let mut text = match &step.flight {
            Some(flight) => rung(story, step, flight),
            None => {
                let name = &story.hosts[step.host].name;
                let title = wrapped(&step.title, MARGIN);
                format!("{time:>8}  {name}   {}", title.trim_start())
            }
        };
        for paragraph in &step.text {
            text += &self.once(paragraph);
        }
        text += &self.rules(step);
        for block in &step.blocks {
            text += &self.block(step, block);
        }
        text
    }

    /// Rules that were not shown before; many only by name.
    fn rules(&mut self, step: &Step) -> String {
        let names: Vec<_> = step.rules.iter().map(|rule| rule.name.as_str()).collect();
        if names.len() > FEW_RULES {
            return self.once(&format!("Rules: {}.", names.join(", ")));
        }
        let sentences = step.rules.iter().map(|rule| format!("Rule {}: {}.", rule.name, rule.what));
        sentences.map(|sentence| self.once(&sentence)).collect()
    }

    /// A paragraph that was not shown before.
    fn once(&mut self, paragraph: &str) -> String {
        if self.said.insert(paragraph.to_owned()) {
            wrapped(paragraph, MARGIN)
        } else {
            String::new()
        }
    }

    fn block(&mut self, step: &Step, block: &Block) -> String {
        let names: Vec<_> = block.fields.iter().map(|field| field.name.as_str()).collect();
        let like = format!("{:?} {}", step.kind, names.join(" "));
        if step.kind == Kind::Memory || self.said.insert(like) || self.all_bytes {
            return table(block, MARGIN);
        }
        String::new()
    }
}

/// The fields of a block, each with its bytes.
pub(crate) fn table(block: &Block, margin: usize) -> String {
    let bytes: Vec<&str> = pairs(&block.hex);
    let indent = " ".repeat(margin);
    let mut text = format!("{indent}{} ({} bytes)\n", block.title, bytes.len());
    if block.fields.is_empty() {
        let shown = bytes.len().min(MOST_BYTES);
        for (k, row) in bytes[..shown].chunks(ROW).enumerate() {
            let more = if shown < bytes.len() && (k + 1) * ROW >= shown { " ..." } else { "" };
            let _ = writeln!(text, "{indent}{:>4}  {}{more}", k * ROW, row.join(" "));
        }
        return text;
    }
    for field in &block.fields {
        let end = (field.start + field.len).min(bytes.len());
        let own = bytes.get(field.start..end).unwrap_or_default();
        let more = if own.len() > 8 { " ..." } else { "" };
        let hex = own[..own.len().min(8)].concat() + more;
        let note =
            if field.note.is_empty() { String::new() } else { format!("  ({})", field.note) };
        let line =
            format!("{indent}{:>4}  {hex:<20}  {}: {}{note}", field.start, field.name, field.value);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn pairs(hex: &str) -> Vec<&str> {
    (0..hex.len() / 2).filter_map(|k| hex.get(2 * k..2 * k + 2)).collect()
}

/// All packets between the first two hosts.
pub(crate) fn ladder(story: &Story) -> String {
    let [left, right, ..] = story.hosts.as_slice() else { return String::new() };
    let mut text = format!("{:>12} {:SPAN$}  {}\n", left.name, "", right.name);
    for step in &story.steps {
        if let Some(flight) = &step.flight {
            text += &rung(story, step, flight);
        }
    }
    text
}

/// A packet as an arrow between the lines of its hosts.
fn rung(story: &Story, step: &Step, flight: &Flight) -> String {
    let to_right = flight.to > step.host;
    let again = if flight.again { " again" } else { "" };
    let number = if flight.number == 0 { String::new() } else { format!("#{} ", flight.number) };
    let label = format!(" {number}{}{again} ", flight.label);
    let label: String = label.chars().take(SPAN - 4).collect();
    let body = match (to_right, flight.arrivals.is_empty()) {
        (true, false) => format!("-{label:-<width$}>", width = SPAN - 2),
        (true, true) => format!("{:<SPAN$}", format!("-{label}---X")),
        (false, false) => format!("<{label:->width$}-", width = SPAN - 2),
        (false, true) => format!("{:>SPAN$}", format!("X---{label}-")),
    };
    let arrivals: Vec<_> = flight.arrivals.iter().map(|at| time(*at)).collect();
    let fate = flight.fate.as_ref().map_or(String::new(), |fate| format!("  {fate}"));
    let far = match (flight.to, step.host) {
        (0 | 1, 0 | 1) => String::new(),
        (to, from) => format!(" {} to {}", story.hosts[from].name, story.hosts[to].name),
    };
    let line = format!("{:>8}    |{body}| {:>6}{far}{fate}", time(step.at), arrivals.join(", "));
    format!("{}\n", line.trim_end())
}

/// Microseconds, or seconds where these are too many.
pub(crate) fn time(nanos: u64) -> String {
    if nanos >= 1_000_000_000 {
        return format!("{}.{:03} s", nanos / 1_000_000_000, nanos / 1_000_000 % 1000);
    }
    format!("{}.{}", nanos / 1000, nanos / 100 % 10)
}

/// A paragraph in lines, each behind so many spaces.
pub(crate) fn wrapped(paragraph: &str, margin: usize) -> String {
    let indent = " ".repeat(margin);
    let mut text = String::new();
    let mut line = indent.clone();
    for word in paragraph.split_whitespace() {
        if line.len() + word.len() > WIDTH && line.len() > margin {
            text += line.trim_end();
            text += "\n";
            line.clone_from(&indent);
        }
        line += word;
        line += " ";
    }
    text + line.trim_end() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_wrapped_behind_their_margin() {
        let text = wrapped(&"word ".repeat(40), 4);
        assert!(text.lines().all(|line| line.len() <= WIDTH && line.starts_with("    word")));
        assert_eq!(wrapped("one two", 2), "  one two\n");
    }

    #[test]
    fn times_are_microseconds() {
        assert_eq!(
            (time(0), time(2_345), time(1_000_000)),
            ("0.0".into(), "2.3".into(), "1000.0".into())
        );
        assert_eq!(time(4_096_005_200), "4.096 s");
    }
}
