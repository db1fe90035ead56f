//! A story as a page of the walkthrough.

use crate::scenarios::{CHAPTERS, Scenario, named};
use crate::text::{FEW_RULES, ladder, table, time};
use rnic_page::{Block, Kind, Step, Story};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What all generated files begin with.
const GENERATED: &str = "<!-- Written by `cargo xtask walkthrough`. Do not edit. -->";

/// The page of a story.
pub fn markdown(story: &Story) -> String {
    let mut text = format!("{GENERATED}\n\n# {}: {}\n", story.name, story.title);
    for paragraph in &story.about {
        let _ = write!(text, "\n{}\n", plain(paragraph));
    }
    text += "\n## The packets\n\nTimes are microseconds.\n\n```text\n";
    text += &ladder(story);
    text +=
        "```\n\n## Step by step\n\nRules are those of [docs/compliance.md](../compliance.md).\n";
    let mut said = BTreeSet::new();
    for step in &story.steps {
        text += &described(story, step, &mut said);
    }
    if let Some(question) = &story.question {
        let _ = write!(text, "\n## Question\n\n{}\n", plain(&question.ask));
        let answer = plain(&question.answer);
        let _ = write!(text, "\n<details><summary>Answer</summary>\n\n{answer}\n\n</details>\n");
    }
    text += "\n## Try next\n\n```console\n";
    for command in &story.next {
        let _ = writeln!(text, "$ {command}");
    }
    text + "```\n\n[All stories](README.md)\n"
}

fn described(story: &Story, step: &Step, said: &mut BTreeSet<String>) -> String {
    let name = &story.hosts[step.host].name;
    let title = match &step.flight {
        Some(flight) => {
            let to = &story.hosts[flight.to].name;
            let again = if flight.again { ", again" } else { "" };
            let fate = flight.fate.as_ref().map_or(String::new(), |fate| format!(", **{fate}**"));
            format!("packet #{} to {to}: `{}`{again}{fate}", flight.number, flight.label)
        }
        None if is_code(step) => format!("`{}`", step.title),
        None => plain(&step.title),
    };
    let mut text = format!("\n- **{} {name}** {title}\n", time(step.at));
    for paragraph in &step.text {
        if said.insert(paragraph.clone()) {
            let _ = write!(text, "\n  {}\n", plain(paragraph));
        }
    }
    text += &rules(step, said);
    for block in &step.blocks {
        text += &bytes(step, block, said);
    }
    text
}

/// Rules that were not shown before; many only by name.
fn rules(step: &Step, said: &mut BTreeSet<String>) -> String {
    let names: Vec<_> = step.rules.iter().map(|rule| format!("`{}`", rule.name)).collect();
    if names.len() > FEW_RULES {
        let line = format!("Rules: {}.", names.join(", "));
        return if said.insert(line.clone()) { format!("\n  {line}\n") } else { String::new() };
    }
    let new = step.rules.iter().filter(|rule| said.insert(format!("rule {}", rule.name)));
    let lines = new.map(|rule| format!("  - Rule `{}`: {}.\n", rule.name, plain(&rule.what)));
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// The title begins with a call.
fn is_code(step: &Step) -> bool {
    step.title.starts_with("ibv_") || step.title.starts_with("rdma_")
}

fn bytes(step: &Step, block: &Block, said: &mut BTreeSet<String>) -> String {
    let names: Vec<_> = block.fields.iter().map(|field| field.name.as_str()).collect();
    let like = format!("{:?} {}", step.kind, names.join(" "));
    if step.kind != Kind::Memory && !said.insert(like) {
        return String::new();
    }
    let table = table(block, 2);
    let (title, rows) = table.split_once('\n').unwrap_or_default();
    format!(
        "\n  <details><summary>{}</summary>\n\n  ```text\n{rows}  ```\n\n  </details>\n",
        plain(title.trim())
    )
}

/// Text in which Markdown finds no markup.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for letter in text.chars() {
        match letter {
            '<' => plain.push_str("&lt;"),
            '*' | '_' | '`' | '#' | '|' | '[' | ']' | '\\' => {
                plain.push('\\');
                plain.push(letter);
            }
            _ => plain.push(letter),
        }
    }
    plain
}

/// The first page: all stories, in an order for a newcomer.
pub fn index() -> String {
    let mut text = format!("{GENERATED}\n\n{INTRODUCTION}");
    for (chapter, names) in CHAPTERS {
        let _ = write!(text, "\n## {chapter}\n\n");
        for name in *names {
            let line = named(name).map_or("", |scenario: &Scenario| scenario.line);
            let _ = writeln!(text, "- [{name}]({name}.md): {}", plain(line));
        }
    }
    text
}

const INTRODUCTION: &str = "# What an RDMA card does, story by story

Each page here is a small program of verbs, run by two real engines of soft-rnic in a simulated
network, and told step by step: what the program called, what it wrote into the ring, each packet with
its bytes, which check decided what, and the completion. Nothing is made up: `rnic lab` plays the same
story on your machine, and lets you change it.

```console
$ rnic lab                      # all stories
$ rnic lab send --step          # one, step by step
$ rnic lab loss --drop 2        # what if another packet is lost?
$ rnic lab loss --html x.html   # as a page for a browser
```

You should know sockets and C. Read from the top; each word of RDMA is explained where it comes up first.

The page of a story, in the dark and on a telephone:

![The bytes of an atomic request, explained field by field](../images/lab-atomic-dark.webp)

![A retransmission on a small screen](../images/lab-loss-telephone.webp)
";
