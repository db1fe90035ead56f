//! `rnic lab`: stories of the protocol, played by engines in a simulated world.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use rnic_lab::{Blow, Played, Scenario};
use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Which story, what goes wrong in it, and how to show it.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// The story; without it, all are listed
    scenario: Option<String>,
    /// Wait for the Enter key after each step
    #[arg(long, requires = "scenario")]
    step: bool,
    /// Lose the N-th packet of the story; may be given more than once, like the next three
    #[arg(long, value_name = "N", requires = "scenario")]
    drop: Vec<u64>,
    /// Deliver the N-th packet twice
    #[arg(long, value_name = "N", requires = "scenario")]
    duplicate: Vec<u64>,
    /// Deliver the N-th packet 30 microseconds late
    #[arg(long, value_name = "N", requires = "scenario")]
    delay: Vec<u64>,
    /// Flip a bit of the N-th packet
    #[arg(long, value_name = "N", requires = "scenario")]
    corrupt: Vec<u64>,
    /// Answer the question at the end of the story
    #[arg(long, requires = "scenario")]
    answer: bool,
    /// Explain the bytes of every WQE, packet and CQE, not only of the first of its kind
    #[arg(long, requires = "scenario")]
    bytes: bool,
    /// Print Markdown
    #[arg(long, requires = "scenario", conflicts_with = "json")]
    markdown: bool,
    /// Print JSON
    #[arg(long, requires = "scenario")]
    json: bool,
    /// Write a page for a browser
    #[arg(long, value_name = "FILE", requires = "scenario")]
    html: Option<PathBuf>,
    /// Write the packets for Wireshark, as their senders sent them
    #[arg(long, value_name = "FILE", requires = "scenario")]
    pcap: Option<PathBuf>,
    /// Write all stories as Markdown into a folder
    #[arg(long, value_name = "DIR", conflicts_with = "scenario")]
    walkthrough: Option<PathBuf>,
}

/// Nanoseconds that `--delay` means.
const LATE: u64 = 30_000;

/// Lists, plays or writes stories. What is returned is to be printed.
pub(super) fn lab(options: &Options) -> Result<String> {
    let Some(name) = &options.scenario else {
        return match &options.walkthrough {
            Some(folder) => walkthrough(folder),
            None => Ok(list()),
        };
    };
    let scenario = rnic_lab::named(name)
        .ok_or_else(|| anyhow!("there is no story {name:?}: `rnic lab` lists all"))?;
    let played = play(scenario, &blows(options))?;
    if let Some(file) = &options.html {
        write(file, rnic_lab::html(&played.story).as_bytes())?;
    }
    if let Some(file) = &options.pcap {
        write(file, &played.pcap)?;
    }
    let story = &played.story;
    if options.answer {
        return Ok(rnic_lab::answer(story).trim_end().to_owned());
    }
    if options.json {
        return Ok(serde_json::to_string_pretty(story)?);
    }
    if options.markdown {
        return Ok(rnic_lab::markdown(story).trim_end().to_owned());
    }
    if options.step {
        return step_by_step(&rnic_lab::parts(story, options.bytes));
    }
    let files = [&options.html, &options.pcap].into_iter().flatten();
    let written: Vec<_> = files.map(|file| format!("written: {}", file.display())).collect();
    if !written.is_empty() {
        return Ok(written.join("\n"));
    }
    Ok(rnic_lab::text(story, options.bytes).trim_end().to_owned())
}

fn play(scenario: &Scenario, blows: &[(u64, Blow)]) -> Result<Played> {
    rnic_lab::play(scenario, blows).context("cannot play the story")
}

fn blows(options: &Options) -> Vec<(u64, Blow)> {
    let lists = [
        (&options.drop, Blow::Drop),
        (&options.duplicate, Blow::Duplicate),
        (&options.delay, Blow::Delay(LATE)),
        (&options.corrupt, Blow::Corrupt),
    ];
    lists.into_iter().flat_map(|(list, blow)| list.iter().map(move |n| (*n, blow))).collect()
}

fn list() -> String {
    let mut text = String::new();
    for (chapter, scenarios) in rnic_lab::chapters() {
        text += &format!("{chapter}:\n");
        for scenario in scenarios {
            text += &format!("  {:<20} {}\n", scenario.name, scenario.line);
        }
    }
    text + "\nTo read one: rnic lab STORY, or step by step: rnic lab STORY --step"
}

fn walkthrough(folder: &Path) -> Result<String> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    write(&folder.join("README.md"), rnic_lab::index().as_bytes())?;
    for scenario in rnic_lab::all() {
        let page = rnic_lab::markdown(&play(scenario, &[])?.story);
        write(&folder.join(format!("{}.md", scenario.name)), page.as_bytes())?;
    }
    Ok(format!("written: {} stories to {}", rnic_lab::all().len(), folder.display()))
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
}

/// Shows the parts one by one.
fn step_by_step(parts: &[String]) -> Result<String> {
    if !io::stdin().is_terminal() {
        bail!("--step needs a terminal: leave it out to see the whole story");
    }
    let mut input = io::stdin().lock();
    let (last, others) = parts.split_last().context("a story has parts")?;
    for (number, part) in others.iter().enumerate() {
        print!("{part}");
        let hint = if number == 0 { "(Enter for the next step)" } else { "" };
        print!("{hint}");
        io::stdout().flush()?;
        if input.read_line(&mut String::new())? == 0 {
            return Ok(String::new());
        }
    }
    Ok(last.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;
    use clap::Parser;

    fn run(arguments: &[&str]) -> Result<String> {
        let arguments = ["rnic", "lab"].iter().chain(arguments);
        match Command::try_parse_from(arguments)?.action {
            crate::cli::Action::Lab(options) => lab(&options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_a_name_all_stories_are_listed() {
        let text = run(&[]).unwrap();
        assert!(rnic_lab::all().iter().all(|scenario| text.contains(scenario.name)));
    }

    #[test]
    fn an_unknown_story_says_where_to_look() {
        let error = crate::for_people(&run(&["nonsense"]).unwrap_err());
        assert_eq!(error, "there is no story \"nonsense\": `rnic lab` lists all");
    }

    #[test]
    fn the_answer_is_told_to_those_that_ask() {
        let (text, answer) = (run(&["send"]).unwrap(), run(&["send", "--answer"]).unwrap());
        assert!(answer.starts_with("An ACK names one PSN") && !text.contains("An ACK names"));
        assert!(text.contains("Answer: rnic lab send --answer\n\nTry next:\n  rnic lab write"));
    }

    #[test]
    fn a_lost_packet_changes_the_story() {
        let (good, bad) = (run(&["send"]).unwrap(), run(&["send", "--drop", "1"]).unwrap());
        assert!(!good.contains("---X"));
        assert!(bad.contains("---X") && bad.contains(" again "), "{bad}");
        assert!(run(&["send", "--corrupt", "2"]).unwrap().contains("damaged"));
        assert!(run(&["send", "--duplicate", "2"]).unwrap().contains("duplicated"));
        assert!(run(&["send", "--delay", "2"]).unwrap().contains("delayed"));
    }

    /// What a story says to try next can be tried, and the packets that it names exist.
    #[test]
    fn commands_to_try_next_do_something() {
        let next = rnic_lab::all().iter().flat_map(|scenario| scenario.next);
        for command in next.filter_map(|command| command.strip_prefix("rnic lab ")) {
            let words: Vec<&str> = command.split(' ').collect();
            let text = run(&words).unwrap_or_else(|error| panic!("{command}: {error:#}"));
            let fates = ["lost", "duplicated", "delayed", "damaged"];
            let is_bad = words.len() > 1;
            let (_, end) = text.split_once("The packets:").unwrap();
            let (ladder, _) = end.split_once("Question:").unwrap();
            let has_fate = fates.iter().any(|fate| ladder.contains(fate));
            assert!(!is_bad || has_fate, "{command} changes nothing");
        }
        for command in rnic_lab::all().iter().flat_map(|scenario| scenario.next) {
            let words = command.split(' ').take(2);
            let parsed = Command::try_parse_from(words.chain(["--help"]));
            let kind = parsed.map(drop).unwrap_err().kind();
            assert_eq!(kind, clap::error::ErrorKind::DisplayHelp, "{command}");
        }
    }

    #[test]
    fn a_story_can_be_written_in_every_form() {
        let folder = std::env::temp_dir().join(format!("rnic-lab-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (html, pcap) = (folder.join("a.html"), folder.join("a.pcap"));
        let names = [&html, &pcap].map(|path| path.to_str().unwrap().to_owned());
        let text = run(&["send", "--html", &names[0], "--pcap", &names[1]]).unwrap();
        assert!(text.starts_with("written: "));
        assert!(fs::read_to_string(&html).unwrap().contains("<script"));
        assert!(fs::read(&pcap).unwrap().len() > 24);
        let json = run(&["send", "--json"]).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["name"], "send");
        assert!(run(&["send", "--markdown"]).unwrap().contains("## Question"));
        assert!(run(&["--walkthrough", folder.to_str().unwrap()]).is_ok());
        assert!(folder.join("README.md").exists() && folder.join("loss.md").exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
